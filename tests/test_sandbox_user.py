"""The whole of the sandbox's tests once more as an ordinary user, when they run as root (the other way round, they did)."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user; these tests ran as one")
def test_the_sandbox_holds_for_an_ordinary_user_as_well():
    folder = Path(tempfile.mkdtemp(prefix="of-nobody-", dir="/tmp"))  # every pytest of root shuts root's own folders again
    try:
        done = run_the_tests_as_nobody(folder)
        assert done.returncode == 0, done.stdout[:6000] + "\n…\n" + done.stdout[-3000:] + done.stderr[-2000:]
        assert "[100%]" in done.stdout
    finally:
        shutil.rmtree(folder)


def run_the_tests_as_nobody(folder):
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    os.chown(folder, NOBODY, NOBODY)
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1",
                   "HOME": str(folder), "TMPDIR": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
                   "OMP_NUM_THREADS": "1"}
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": environment, "cwd": ROOT}
    python = a_python_that_runs_for(options)
    tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_sandbox_*.py")) if path.name != Path(__file__).name]
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/pytest", "-m", "not soak", *tests],
                          capture_output=True, text=True, **options)


def a_python_that_runs_for(options):
    """This Python, or the system's of the same version where this one lies in root's home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    tried = [sys.executable, getattr(sys, "_base_executable", sys.executable), f"/usr/bin/python{version}",
             f"/usr/local/bin/python{version}"]
    for python in tried:
        try:
            if subprocess.run([python, "-c", "import pytest, lab"], capture_output=True, **options).returncode == 0:
                return python
        except OSError:  # not there, or not for this user
            continue
    pytest.skip(f"no Python {version} here can be run by an ordinary user (tried {', '.join(tried)})")
