"""A built wheel, installed in an empty folder, starts the lab: the assets travel inside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent


def test_an_installed_wheel_opens_the_page_and_its_recorded_run(tmp_path):
    wheels, installed, empty = tmp_path / "wheels", tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)], check=True, timeout=300)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(*wheels.glob("*.whl"))], check=True, timeout=300)
    # -P and the path: only the installed copy can be imported, not the checkout
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    where = subprocess.run([sys.executable, "-c", "import lab; print(lab.__file__)"], cwd=empty, env=environment, capture_output=True,
                           text=True, check=True).stdout
    assert str(installed) in where
    lab = subprocess.Popen([sys.executable, "-m", "lab.cli", "--no-browser", "--port", "0"], cwd=empty, env=environment,
                           stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+", lab.stdout.readline()).group()
        with httpx.Client(base_url=address, timeout=60) as page:
            assert "GRPO Lab" in page.get("/").text
            assert page.get("/lab/css/lab.css").status_code == 200
            runs = page.get("/api/runs").json()
            recorded = next(run for run in runs["runs"] if run["status"] == "recorded" or run.get("kind") == "recorded")
            assert page.get(f"/api/runs/{recorded['id']}/steps").json()["rows"]
            deadline = time.time() + 120  # the engine loads the tiny model out of the wheel
            while page.get("/api/live").json()["engine"]["info"].get("model") != "tiny":
                assert time.time() < deadline, page.get("/api/live").text
                time.sleep(1)
    finally:
        lab.terminate()
        lab.wait(60)
