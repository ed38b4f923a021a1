"""Every test of a report or core rule fails once the code is broken as the report tells (`tests.mutations`)."""

import pytest

from tests import mutations

pytestmark = pytest.mark.soak


def test_every_mutation_makes_its_test_fail():
    assert [row["test"] for row in mutations.main() if not row["failed"]] == []
