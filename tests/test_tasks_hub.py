"""Data sets by the `datasets` library: a folder in the Hub's layout is read like one of the Hub; offline is said in a sentence."""

from __future__ import annotations

import json

import pytest

from lab.tasks import TaskError
from lab.tasks.hub import read_hub
from lab.tasks.mapping import apply, guess
from lab.tasks.read_apart import fetched_apart

pytest.importorskip("datasets", reason="the extra hub is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "grades"
    folder.mkdir()
    rows = [{"question": f"What is {n} + 1?", "answer": f"so\n#### {n + 1}"} for n in range(9)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text('{"question": "held", "answer": "#### 1"}\n')
    return str(folder)


def test_a_split_is_taken_with_its_columns_and_only_so_many_rows(folder):
    table = read_hub(folder, split="train", rows=4)
    assert table.columns == ["question", "answer"] and len(table.rows) == 4 and table.notes == ["Only the first 4 rows were taken."]
    assert apply(table, guess(table))[1] == {"prompt": "What is 1 + 1?", "answer": "2"}  # what stands behind ####
    assert len(read_hub(folder, split="test").rows) == 1


@pytest.mark.parametrize("config, split, said", [(None, "dev", "has no split 'dev'"),
                                                 ("algebra", "train", "has no configuration 'algebra'")])
def test_a_wrong_split_or_configuration_is_named(folder, config, split, said):
    with pytest.raises(TaskError, match=said):
        read_hub(folder, config, split)


def test_without_a_network_it_is_one_sentence_also_from_the_other_process(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TaskError) as caught:
        fetched_apart("nobody/nothing-here", None, "train", 10)
    assert str(caught.value) == ("nobody/nothing-here is not on this machine and the Hub cannot be reached: connect to the network once, "
                                 "or download the file and upload it here.")


def test_an_id_is_never_taken_for_a_folder_near_the_lab(monkeypatch, tmp_path):
    (tmp_path / "runs" / "data").mkdir(parents=True)
    (tmp_path / "runs" / "data" / "secret.jsonl").write_text('{"prompt": "of somebody else"}\n')
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match="runs/data is not on this machine"):
        fetched_apart("runs/data", None, "train", 10)


def test_what_the_library_prints_does_not_spoil_the_answer(folder):
    assert len(fetched_apart(folder, None, "train", 3).rows) == 3
