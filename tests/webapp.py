"""The web process as an app in the test's own process, built once: without its engine keeper, with made-up runs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from lab.store import ALIVE_STATUSES, Store

ALICE, BOB = "a" * 32, "b" * 32  # two owners, as their cookies name them
ADDRESS = "http://127.0.0.1:7860"


@functools.cache
def app_and_store():
    """The app over a fresh runs folder, and the store it reads."""
    from lab.web.server import build_app

    folder = tempfile.TemporaryDirectory(prefix="lab-web-", ignore_cleanup_errors=True)
    app = build_app(Path(folder.name))
    app.state.folder = folder  # lives as long as the app
    return app, app.state.lab.store


def client(owner: str | None = ALICE, **headers: str):
    """An HTTP client of this owner's browser; None is a browser that has never been here."""
    from starlette.testclient import TestClient

    from lab.web.security import COOKIE

    made = TestClient(app_and_store()[0], base_url=ADDRESS, headers=headers)
    if owner:
        made.cookies.set(COOKIE, owner)
    return made


def store() -> Store:
    return app_and_store()[1]


def end_all_runs() -> None:
    """Made-up runs that one module left going would stop another module's from starting: they have the same owners."""
    for run in store().runs() if app_and_store.cache_info().currsize else ():
        if run.status in ALIVE_STATUSES:
            store().set_status(run.id, "stopped")
