"""Takes the pictures of the README from the running page: `python -m tests.browser.screenshots`.

They show the recorded run that comes with the lab, in both themes, on a desk and on a phone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import DESK, PHONE, ROOT, Lab, open_page
from tests.browsers import find_browser

TARGET = ROOT / "assets" / "screenshots"
READY = {"lab": ".group article", "train": ".curves[data-state=ready]", "reward": ".reward-functions td", "data": ".data-table td"}
PICTURES = [(tab, theme, size) for tab in READY for theme in ("light", "dark") for size in ("desk", "phone")]


def main(target: Path = TARGET) -> int:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder) / "runs")
        lab.start()
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        try:
            for tab, theme, size in PICTURES:
                take(browser, lab, tab, theme, size, target)
        finally:
            browser.close()
            lab.stop()
    return 0


def take(browser, lab: Lab, tab: str, theme: str, size: str, target: Path) -> None:
    context = browser.new_context(viewport=DESK if size == "desk" else PHONE, color_scheme=theme, reduced_motion="reduce")
    page = open_page(context.new_page(), lab, f"?tab={tab}")
    page.wait_for_function("!['–', ''].includes(document.querySelector('.strip .cell.device dd').textContent)", timeout=120_000)
    page.wait_for_selector(READY[tab])
    page.wait_for_function("document.querySelectorAll('#lab-notice-lab .notice').length === 0", timeout=120_000)
    page.wait_for_timeout(800)
    name = f"{tab}-{theme}" if size == "desk" else f"{tab}-{theme}-phone"
    page.screenshot(path=target / f"{name}.png")
    context.close()


if __name__ == "__main__":
    sys.exit(main())
