"""The page and its HTTP routes: a Gradio form on a FastAPI app, fed by the run store. Nothing in here imports torch."""

from __future__ import annotations

from pathlib import Path

from lab.storage import default_runs_dir
from lab.web.security import ignore_gradio_environment

ignore_gradio_environment()  # here, so that it comes before the first import of gradio


def serve(runs_dir: str | Path | None = None, *, port: int = 7860, open_browser: bool = True) -> int:
    """Open the lab on 127.0.0.1 and block until Ctrl-C. Port 0 takes a free one; `runs_dir` None is `default_runs_dir()`.

    Returns the exit status.
    """
    from lab.web.server import serve as run  # gradio takes seconds to import: only when the page is wanted

    return run(Path(runs_dir or default_runs_dir()), port=port, open_browser=open_browser)
