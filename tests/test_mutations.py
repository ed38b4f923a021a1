"""The list of mutations stays true: every text to be broken is there, every test exists, every report has one."""

import ast
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT
from tests.reports import REPORTS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.row} {mutation.test}")
def test_every_mutation_breaks_code_that_is_there_and_stays_python(mutation):
    for edit in mutation.edits:
        text = (ROOT / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{edit.file}: {edit.old!r}"
        ast.parse(text.replace(edit.old, edit.new))
    module, _, function = mutation.test.partition(".")
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.row} {report.seen}")
def test_every_test_of_every_report_has_a_mutation(report):
    broken = {mutation.test for mutation in MUTATIONS if mutation.row == report.row}
    assert set(report.tests) <= broken
