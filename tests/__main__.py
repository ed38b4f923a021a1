"""`python -m tests` makes sure a browser is there, then runs pytest; `--soak` runs the long ones instead.

Anything else on the command line goes to pytest (`python -m tests -k store`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsers import find_browser

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    os.chdir(ROOT)
    soak = "--soak" in arguments
    arguments = [argument for argument in arguments if argument != "--soak"]
    if find_browser() is None:
        print("No Chromium, Chrome or Edge was found: installing Playwright's Chromium (about 150 MB, once).", flush=True)
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)
    return pytest.main(["-m", "soak" if soak else "not soak", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
