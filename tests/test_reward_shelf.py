"""Drafts and frozen versions: rows and read-only files, owners kept apart."""

from __future__ import annotations

import stat

import pytest

from lab.storage.rewards import RewardShelf, ShelfError

SOURCE = "def mine(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
ALICE, BOB = "a" * 32, "b" * 32


@pytest.fixture
def shelf(tmp_path):
    shelf = RewardShelf.beside(tmp_path)
    yield shelf
    shelf.close()


def test_a_draft_is_the_last_thing_typed_and_only_its_owners(shelf):
    shelf.save_draft(ALICE, "x = 1")
    shelf.save_draft(ALICE, "x = 2")
    shelf.save_draft(ALICE, "before", "previous")
    assert shelf.draft(ALICE) == "x = 2" and shelf.draft(ALICE, "previous") == "before" and shelf.draft(BOB) is None


def test_versions_count_up_and_the_same_source_is_the_same_version(shelf):
    first, again = shelf.freeze(ALICE, "mine", SOURCE), shelf.freeze(ALICE, "mine", SOURCE)
    second = shelf.freeze(ALICE, "mine", SOURCE + "# better\n", note="why")
    assert (first.label, again.label, second.label, second.note) == ("mine@1", "mine@1", "mine@2", "why")
    assert [v.label for v in shelf.versions(ALICE)] == ["mine@2", "mine@1"]
    assert shelf.versions(BOB) == [] and len(shelf.versions()) == 2


def test_a_version_is_a_read_only_file_and_comes_back_if_it_was_changed(shelf):
    path = shelf.file(shelf.freeze(ALICE, "mine", SOURCE))
    assert path.name == "mine@1.py" and path.parent.name == ALICE and path.read_text() == SOURCE
    assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    path.chmod(0o644)
    path.write_text("import os")
    assert shelf.file(shelf.version(ALICE, "mine@1")).read_text() == SOURCE
    path.unlink()
    assert shelf.reward_of(ALICE, "mine@1") == f"{path}:mine" and path.read_text() == SOURCE


def test_a_version_that_is_not_there_or_not_ones_own_is_refused_with_what_there_is(shelf):
    shelf.freeze(ALICE, "mine", SOURCE)
    with pytest.raises(ShelfError, match="no frozen reward mine@2. Frozen: mine@1"):
        shelf.reward_of(ALICE, "mine@2")
    with pytest.raises(ShelfError, match="none yet"):
        shelf.reward_of(BOB, "mine@1")
    assert shelf.reward_of(BOB, "accuracy(source='boxed')") == "accuracy(source='boxed')"


@pytest.mark.parametrize("name", ["", "../mine", "mi ne", "1mine", "mine@2", "class", "ｍｉｎｅ", "a" * 65])
def test_names_that_are_no_functions_name_are_refused(shelf, name):
    with pytest.raises(ShelfError, match="cannot name a frozen reward"):
        shelf.freeze(ALICE, name, SOURCE)
