"""One lab (web process and engine) and one browser for all browser tests; each test gets its own owner and page.

Whatever a page asks for is watched: a request that leaves 127.0.0.1, a script error or a console error fails the test.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from lab.store import open_store
from lab.web.security import COOKIE
from tests.browsers import find_browser

expect.set_options(timeout=30_000)  # a crowded machine is slow, not wrong

ROOT = Path(__file__).resolve().parents[2]
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


class Lab:
    """`python app.py` on a runs folder, which tests may end and start again."""

    def __init__(self, runs: Path):
        self.runs, self.port, self.process = runs, 0, None
        self.store = open_store(runs)

    def start(self) -> None:
        before = time.monotonic()
        command = [sys.executable, str(ROOT / "app.py"), "--no-browser", "--port", str(self.port), "--runs", str(self.runs)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.runs.parent,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        self.port = int(line.split("http://127.0.0.1:")[1].split()[0])
        self._wait_for_answer()
        self.seconds_to_open = time.monotonic() - before

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        engine = self.store.process("engine")
        if engine:
            try:
                os.kill(engine.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _wait_for_answer(self) -> None:
        for _ in range(300):
            try:
                return urllib.request.urlopen(f"{self.address}/api/runs", timeout=5).close()
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.1)
        raise AssertionError("the lab gave no answer within 30 s")


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab") / "runs")
    lab.start()
    yield lab
    lab.stop()


@pytest.fixture(scope="package")  # Playwright keeps an event loop in this thread: it must be gone before other tests run theirs
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def owner() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def context(browser, lab, owner):
    """A browser profile of a new owner at a desk. At the end: nothing was asked of any other host, and nothing broke."""
    with watched(browser.new_context(viewport=DESK, color_scheme="light", reduced_motion="reduce"), lab, owner) as context:
        yield context


@pytest.fixture
def page(context) -> Page:
    return context.new_page()


class watched:
    """A context whose requests and errors are looked at when it closes. `forgive` lists console texts a test expects."""

    def __init__(self, context, lab: Lab, owner: str):
        self.context, self.lab = context, lab
        context.forgive = []
        context.add_cookies([{"name": COOKIE, "value": owner, "url": lab.address}])
        context.set_default_timeout(30_000)
        self.asked, self.errors = [], []
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def __enter__(self):
        return self.context

    def __exit__(self, kind, *rest):
        self.context.close()
        outside = [url for url in self.asked if not url.startswith((self.lab.address, "data:", "blob:"))]
        errors = [text for text in self.errors if not any(expected in text for expected in self.context.forgive)]
        if kind is None:
            assert not outside, f"asked outside 127.0.0.1: {outside}"
            assert not errors, errors


def open_page(page: Page, lab: Lab, query: str = "") -> Page:
    """The page at `query`, when Gradio and our own part are there and the first poll was answered."""
    page.goto(f"{lab.address}/{query}")
    page.wait_for_selector(".strip[data-contact=live]")
    return page
