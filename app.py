"""Starts the lab: `python app.py` is the same as `grpo-lab`."""

import sys

from lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
