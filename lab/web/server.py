"""Puts the web process together: guard, routes, assets, the Gradio page, and the engine it keeps alive.

It binds loopback only and holds no run state: everything it shows is in the store, so it can be killed and started again
in the middle of a training.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from contextlib import asynccontextmanager
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from lab.assets import asset
from lab.jobs import Engine
from lab.web import by_hand, data_routes
from lab.web.actions import Lab
from lab.web.page import HEAD, THEME, build_page, page_css
from lab.web.presence import Keeper
from lab.web.reward import routes as reward_routes
from lab.web.reward.benches import Benches
from lab.web.routes import add_routes
from lab.web.security import Guard

HOST = "127.0.0.1"


def build_app(runs_dir: Path) -> FastAPI:
    """The whole web process as one ASGI app over the runs in `runs_dir`."""
    keeper, benches = Keeper(Engine(runs_dir)), Benches()
    app = FastAPI(title="GRPO Lab", docs_url=None, redoc_url=None, openapi_url=None, lifespan=_alive(keeper, benches))
    add_routes(app, Lab.open(runs_dir), keeper)
    app.include_router(by_hand.router)
    app.include_router(data_routes.router)
    app.include_router(reward_routes.router)
    app.state.benches = benches
    for folder in ("css", "js", "fonts"):
        app.mount(f"/lab/{folder}", Revalidated(directory=asset(folder)))
    app.get("/lab/vendor/plotly.min.js")(plotly_js)
    page = build_page()
    page.queue(default_concurrency_limit=None, max_size=256)
    app = gr.mount_gradio_app(app, page, path="/", server_name=HOST, footer_links=[], run_history=False, allowed_paths=[],
                              enable_monitoring=False, max_file_size="20mb", ssr_mode=False, mcp_server=False, pwa=False,
                              theme=THEME, css=page_css(), head=HEAD, favicon_path=str(asset("css/favicon.svg")))
    app.add_middleware(Guard)
    return app


def serve(runs_dir: Path, *, port: int, open_browser: bool) -> int:
    """Serve until Ctrl-C. The address is printed, and opened in a browser if wanted. Returns the exit status."""
    try:
        listener = _listen(port)
    except OSError as error:
        print(f"grpo-lab: port {port} on {HOST} cannot be used ({error.strerror}). Another lab may be open there; choose one with --port, "
              f"or 0 for any free one.", file=sys.stderr)
        return 1
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(build_app(runs_dir), log_level="warning", access_log=False, timeout_graceful_shutdown=3))
    print(f"GRPO Lab is open at {address} (Ctrl-C closes it; a training that is going is kept and goes on without the page).", flush=True)
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    return 0


def _alive(keeper: Keeper, benches: Benches):
    """What goes on beside the answers while the lab is open: the engine is kept, reward workers end with the page."""
    @asynccontextmanager
    async def lifespan(app: FastAPI):
        keeper.start()
        yield
        benches.close()
        keeper.stop()

    return lifespan


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name != "nt":  # on Windows it would let a second lab take the port of the first
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(128)
    return listener


class Revalidated(StaticFiles):
    """Static files the browser may keep but must ask about: a new version of the lab is seen at the next load."""

    def file_response(self, *args, **kwargs):
        """The file, with the order to ask again before it is used."""
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def plotly_js() -> FileResponse:
    """The plotly.js that the plotly package carries: nothing is fetched from outside."""
    package = Path(importlib.util.find_spec("plotly").origin).parent
    return FileResponse(package / "package_data" / "plotly.min.js", media_type="text/javascript",
                        headers={"cache-control": "max-age=86400"})
