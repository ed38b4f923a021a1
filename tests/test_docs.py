"""The README says what the program says: same help, same glossary, same commands as CI."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from lab.config import RunConfig
from lab.glossary import METRICS, WORDS, fill_tables, metric

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_tables_are_made_from_the_current_help():
    assert fill_tables(README) == README, "run: python -m lab.glossary README.md"


@pytest.mark.parametrize("field", dataclasses.fields(RunConfig), ids=lambda f: f.name)
def test_every_setting_has_help_a_label_and_a_row_in_the_readme(field):
    assert len(field.metadata["help"]) > 20 and field.metadata["help"].endswith(".")
    assert f"| `{field.name}` | {field.metadata['label']} |" in README and field.metadata["help"] in README


def test_every_metric_and_word_is_in_the_readme():
    for entry in METRICS:
        assert entry.text in README
    for word, text in WORDS.items():
        assert f"| {word} | {text} |" in README


def test_a_metric_of_one_reward_function_is_found_by_its_pattern():
    assert metric("rewards/accuracy/mean").name == "rewards/{func}/mean"
    with pytest.raises(KeyError, match="not in the glossary"):
        metric("rewards/accuracy/median")


def test_ci_calls_the_readmes_test_command_and_nothing_else_after_the_browser():
    commands = re.findall(r"^python3 -m venv .+$", README, flags=re.MULTILINE)
    assert len(commands) == 2, "the README has two commands"
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1] == commands[1]


def test_annotated_tree_names_every_file_of_the_top_level_of_lab():
    tree = README.partition("## Where things are")[2].partition("\n## ")[0]
    for path in (ROOT / "lab").iterdir():
        if path.name.startswith(("__", "_assets")) or path.suffix in (".pyc", ".pyi"):
            continue
        assert path.name in tree, f"{path.name} is missing from the README's tree"


def test_pictures_of_the_readme_exist():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).stat().st_size > 10_000
