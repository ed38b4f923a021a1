"""A container's limit counts as the machine's memory does."""

from __future__ import annotations

import psutil
import pytest

from lab import ram as ram_module
from lab.memory import free
from lab.ram import ram

GB = 10**9


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A made-up tree of control groups; call it with the text of /proc/self/cgroup and files to write."""
    monkeypatch.setattr(ram_module, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(ram_module, "OWN_GROUP", tmp_path / "own")

    def write(own: str, **files: dict[str, object]) -> None:
        (tmp_path / "own").write_text(own)
        for folder, contents in files.items():
            place = tmp_path / "groups" / folder.replace("__", "/").removeprefix("top")
            place.mkdir(parents=True, exist_ok=True)
            for name, text in contents.items():
                (place / name).write_text(f"{text}\n")

    return write


def v2(limit, used, inactive=0):
    return {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {inactive}"}


def test_without_a_limit_the_machine_counts(groups):
    groups("0::/\n", top={"memory.stat": ""})
    assert ram().total == psutil.virtual_memory().total
    groups("0::/job\n", job=v2("max", GB))
    assert ram().total == psutil.virtual_memory().total


def test_a_limit_counts_what_is_used_but_for_cached_files(groups):
    # of 2 GB 1.5 are used, of which files that make room take 0.6: 0.5 + 0.6 GB are left (this machine has more)
    groups("0::/job\n", job=v2(2 * GB, int(1.5 * GB), int(0.6 * GB)))
    assert ram() == (2 * GB, pytest.approx(1.1 * GB))


def test_the_tightest_of_the_groups_above_decides(groups):
    groups("0::/slice/job\n", slice=v2(1 * GB, 0), slice__job=v2(2 * GB, 0))
    assert ram().total == GB


def test_the_older_version_and_a_container_that_sees_its_own_group_as_the_topmost(groups):
    # /proc names the path on the host, which does not exist inside the container
    groups("5:memory:/docker/abc\n0::/\n", memory={"memory.limit_in_bytes": GB, "memory.usage_in_bytes": GB // 4,
                                                  "memory.stat": f"inactive_file 7\ntotal_inactive_file {GB // 8}"})
    assert ram() == (GB, GB - GB // 4 + GB // 8)


def test_what_a_run_may_still_take_ends_there_too(groups, policy):
    groups("0::/job\n", job=v2(GB, GB // 2))
    assert free(policy.device) == GB // 2


def test_more_than_the_limit_leaves_nothing(groups):
    groups("0::/job\n", job=v2(GB, 2 * GB))
    assert ram().available == 0
