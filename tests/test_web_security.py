"""Who may talk to the lab. Every check is made on the real app, on our own routes and on Gradio's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from lab.web.security import COOKIE, HEADERS, is_loopback
from tests.browser.made_runs import write_run
from tests.webapp import ALICE, BOB, app_and_store, client, store

STATE_CHANGING = [("/api/sample", {"prompt": "1 + 1"}), ("/api/runs", {}), ("/api/runs/x/commands", {"kind": "stop"}),
                  ("/api/engine/restart", {}),
                  ("/api/commands/1/cancel", {}), ("/gradio_api/queue/join", {"data": [], "fn_index": 0, "session_hash": "x"}),
                  ("/gradio_api/run/predict", {"data": [], "fn_index": 0}), ("/gradio_api/upload", {}), ("/gradio_api/reset", {})]


@pytest.mark.parametrize(("path", "body"), STATE_CHANGING)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1.evil.example:7860"])
def test_a_foreign_origin_is_refused_on_every_state_changing_route(path, body, origin):
    answer = client(origin=origin).post(path, json=body)
    assert answer.status_code == 403
    assert "only the lab's own page" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/live", "/config", "/gradio_api/info", "/lab/js/main.js"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "192.168.1.4:7860", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused_everywhere(path, host):
    assert client(host=host).get(path).status_code == 403  # DNS rebinding: the browser sends the attacker's name


@pytest.mark.parametrize("host", ["127.0.0.1:7860.evil.example", "evil.example:80@127.0.0.1", "127.0.0.1/evil", "127.0.0.1 evil", "[::1"])
def test_a_host_that_is_more_than_a_name_and_a_port_is_refused(host):
    assert client(host=host).get("/api/runs").status_code == 403


def test_a_body_that_is_larger_than_any_file_is_refused_before_it_is_read():
    answer = client().post("/api/sample", content=b"{}", headers={"content-length": str(40 << 20), "content-type": "application/json"})
    assert answer.status_code == 413 and "at most 32 MB" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/sample", "/api/data/upload", "/gradio_api/queue/join"])
def test_a_body_without_a_declared_length_is_refused_as_soon_as_too_much_has_come(path):
    """A chunked request, as a server hands it over: piece by piece, 100 of 1 MB each."""
    taken, told = [], []

    async def receive():
        taken.append(1)
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": len(taken) < 100}

    async def send(message):
        told.append(message)

    headers = [(b"host", b"127.0.0.1:7860"), (b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
             "raw_path": path.encode(), "query_string": b"name=a.csv", "root_path": "", "headers": headers, "client": ("127.0.0.1", 1),
             "server": ("127.0.0.1", 7860)}
    asyncio.run(app_and_store()[0](scope, receive, send))
    assert told[0]["status"] == 413 and b"MB" in told[1]["body"] and len(taken) <= 34  # 32 MB, and the pieces around them


def json_post(path, text):
    return client().post(path, content=text.encode(), headers={"content-type": "application/json"})


def test_what_no_file_or_database_can_hold_is_refused_in_a_sentence_and_no_crash():
    half = json_post("/api/sample", '{"prompt": "\\ud800 hi"}')  # half of a surrogate pair: JSON can say it, UTF-8 cannot
    assert half.status_code == 422 and "half a character" in half.json()["error"]
    nul = client().post("/api/runs", json={"config": {"task": "a\0b.jsonl"}})
    assert nul.status_code == 422 and "task holds a NUL" in nul.json()["error"]
    assert client().get(f"/api/samples/{10 ** 30}").status_code == 422  # beyond SQLite's integers
    assert client().get("/api/live", params={"after": "nan"}).status_code == 422
    assert client().post("/api/sample", json={"prompt": "a" * 200_001}).status_code == 422
    assert client().post("/api/runs", json={"steps": -1}).status_code == 422


def test_half_a_character_in_what_is_told_hides_nothing_else():
    from starlette.requests import Request

    from lab.web.routes import json_answer

    answer = json_answer(Request({"type": "http", "headers": []}), {"error": "\ud800 x"})
    assert answer.body == b'{"error":"? x"}'


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860", "127.0.0.1"])
def test_loopback_names_are_let_in(host):
    assert client(host=host).get("/api/runs").status_code == 200


def test_the_own_origin_and_no_origin_at_all_are_let_in():
    assert client(origin="http://127.0.0.1:7860").post("/api/sample", json={"prompt": ""}).status_code == 422  # reached the action
    assert client().post("/api/sample", json={"prompt": ""}).status_code == 422  # a script on this machine


def test_a_foreign_page_may_not_even_read():
    assert client(origin="https://evil.example").get("/api/runs").status_code == 403
    assert client(**{"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).get("/api/runs").status_code == 403
    assert client(**{"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).get("/api/runs").status_code == 200  # a followed link
    assert client(**{"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).post("/api/runs", json={}).status_code == 403  # a form


def test_the_owner_cookie_is_random_strict_and_out_of_reach_of_scripts():
    given = [client(None).get("/").headers["set-cookie"] for _ in range(2)]
    for cookie in given:
        name, _, value = cookie.partition(";")[0].partition("=")
        assert name == COOKIE and len(value) == 32 and int(value, 16) > 0  # 32 hexadecimal digits = 128 bit
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert given[0] != given[1]
    assert "set-cookie" not in client(ALICE).get("/").headers  # known: keeps its own


@pytest.mark.parametrize("forged", ["", "local", "x" * 32, "A" * 32, "a" * 31, "../../etc"])
def test_a_cookie_that_is_no_owner_gets_a_new_one(forged):
    answer = client(None, cookie=f"{COOKIE}={forged}").get("/api/runs")
    assert COOKIE in answer.headers["set-cookie"]


def test_another_owners_rows_are_as_unknown_as_rows_that_never_were():
    run = write_run(store(), owner=ALICE, steps=2)
    rollout = store().begin_rollout(owner=ALICE, kind="sample", prompts=["secret"])
    store().write_live(rollout, [(0, 0, "secret text", 2, False)])
    sample = store().send_command("sample", {"config": {}, "prompts": []}, owner=ALICE)
    paths = [f"/api/runs/{run}", f"/api/runs/{run}/steps", f"/api/runs/{run}/steps/1/groups", f"/api/runs/{run}/steps/1/groups/0/tokens",
             f"/api/live?run={run}", f"/api/samples/{rollout}"]
    for path in paths:
        assert client(ALICE).get(path).status_code == 200, path
        assert client(BOB).get(path).status_code == 404, path
    assert client(BOB).post(f"/api/runs/{run}/commands", json={"kind": "stop"}).status_code == 404
    assert client(BOB).post(f"/api/commands/{sample.id}/cancel", json={}).status_code == 404
    assert client(BOB).post("/api/sample", json={"prompt": "1 + 1", "adapter": run}).status_code == 404
    assert run not in client(BOB).get("/api/runs").text
    theirs = client(BOB).get("/api/live").json()
    assert "secret" not in str(theirs) and all("id" not in command for command in theirs["queue"])
    assert client(ALICE).get("/api/live").json()["partials"][0]["text"] == "secret text"
    store().finish_rollout(rollout, [])
    store().finish_command(sample.id)


@pytest.mark.parametrize("path", ["/", "/api/runs", "/lab/js/main.js", "/config", "/nothing-here"])
def test_every_answer_carries_the_safe_headers(path):
    headers = client().get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "frame-ancestors 'self'" in headers["content-security-policy"] and "default-src 'self'" in headers["content-security-policy"]


def test_gradio_reads_no_variable_from_the_environment():
    code = ("import os, lab.web.server as server\n"
            "left = {k: v for k, v in os.environ.items() if k.startswith('GRADIO_')}\n"
            "assert left == {'GRADIO_ANALYTICS_ENABLED': 'False'}, left\n"
            "assert server.HOST == '127.0.0.1'\n")
    hostile = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SHARE": "True", "GRADIO_ALLOWED_PATHS": "/", "GRADIO_MCP_SERVER": "True",
               "GRADIO_ANALYTICS_ENABLED": "True", "GRADIO_ROOT_PATH": "/x"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **hostile}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_gradio_offers_no_event_no_monitoring_no_file_and_no_history():
    app_and_store()
    page = client()
    assert page.get("/gradio_api/info").json()["named_endpoints"] == {}
    config = page.get("/config").json()
    assert all(event["api_visibility"] == "private" for event in config["dependencies"])
    assert page.get("/monitoring").status_code in (403, 404)
    assert not config.get("run_history")
    for path in ("/etc/passwd", "/proc/self/environ", "../pyproject.toml", str(store().path)):
        assert page.get(f"/gradio_api/file={path}").status_code in (403, 404), path
    for path in ("/lab/js/../../pyproject.toml", "/lab/js/%2e%2e/%2e%2e/pyproject.toml", "/lab/css/%2fetc%2fpasswd"):
        assert page.get(path).status_code == 404, path


def test_no_page_holds_state_in_gradio():
    kinds = {component["type"] for component in client().get("/config").json()["components"]}
    assert not kinds & {"state", "timer", "browserstate"}  # a State holds a connection for each tab: the sixth tab would hang


def test_html_templates_hold_no_placeholder():
    for component in client().get("/config").json()["components"]:
        if component["type"] == "html":
            template = component["props"].get("html_template", "")
            assert "{{" not in template and "${" not in template.replace("${value}", ""), template
            assert "${value}" not in template or not component["props"].get("value") or "<h3>" in component["props"]["value"]


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True),
                                                ("0.0.0.0", False),
                                                ("10.0.0.1", False), ("localhost.evil.example", False), ("", False)])
def test_what_counts_as_loopback(host, expected):
    assert is_loopback(host) is expected
