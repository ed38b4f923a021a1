"""Where the browser is that the tests drive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome", "msedge")
FIXED = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)


def find_browser() -> str | None:
    """Path of a Chromium-family browser: $GRPO_LAB_BROWSER, one on the PATH, a usual place, or Playwright's own."""
    if chosen := os.environ.get("GRPO_LAB_BROWSER"):
        return chosen
    candidates = [path for name in NAMES if (path := shutil.which(name))] + [path for path in FIXED if Path(path).exists()]
    return candidates[0] if candidates else _playwright_browser()


def _playwright_browser() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if path and Path(path).exists() else None
