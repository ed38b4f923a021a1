"""Where the files that travel with the lab are: the tiny model, the demo run, css, js, fonts.

In a checkout they lie beside the package in `assets/`; a wheel carries them inside it as `lab/_assets/`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset(path: str) -> Path:
    """The file or folder `path` of the assets, e.g. `asset("models/tiny")`. FileNotFoundError if it is not there."""
    for folder in (_PACKAGE / "_assets", _PACKAGE.parent / "assets"):
        if (folder / path).exists():
            return folder / path
    raise FileNotFoundError(f"The asset {path} is missing: the installation is incomplete, install GRPO Lab again.")
