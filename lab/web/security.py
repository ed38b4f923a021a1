"""Who may talk to the lab: Host and Origin checks, the owner cookie, response headers, and Gradio's environment.

One ASGI middleware around everything, Gradio's own routes included, because Gradio's `auth` covers only its own. It keeps
other web sites (cross-site requests, DNS rebinding, framing) out and gives each browser a random owner. It is no login:
passwords and seats belong to the workshop.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

COOKIE = "grpo_lab_owner"
LOCAL_OWNER = "local"  # rows written from the command line or a notebook on this machine
MOST_BYTES = 32 << 20  # of a request's body: the largest are files of tasks, which may have 20 MB
TOO_LARGE = f"A request may have at most {MOST_BYTES >> 20} MB."
_OWNER = re.compile(r"[0-9a-f]{32}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?", re.ASCII)
_COOKIE_AGE = 365 * 24 * 3600

# Gradio compiles its templates and styles in the browser, hence unsafe-eval and unsafe-inline; everything still comes from here.
_POLICY = ("default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
           "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
           "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'")
HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "same-origin",
           "x-frame-options": "SAMEORIGIN", "cross-origin-opener-policy": "same-origin",
           "cross-origin-resource-policy": "same-origin"}


def ignore_gradio_environment() -> None:
    """Drop every GRADIO_* variable, so that none of them can open the lab to a network, a share link or a folder.

    Must run before `import gradio`: analytics are then off and no outside host is looked up.
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"


def current_user(request: HTTPConnection) -> str:
    """The owner of this request: the one door through which routes learn whose rows to show."""
    return request.scope["state"]["owner"]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: refuses foreign Hosts and Origins, gives each browser an owner cookie, adds safe headers."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        """Answers with a refusal, or hands the request on with its owner in the scope's state."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        connection = HTTPConnection(scope)
        refusal = _refusal(connection)
        if refusal:
            return await _refuse(scope, receive, send, refusal)
        if _declared_length(connection) > MOST_BYTES:
            return await _refuse(scope, receive, send, TOO_LARGE, 413)
        owner = _owner_in_cookie(connection)
        is_new = owner is None
        scope.setdefault("state", {})["owner"] = owner or secrets.token_hex(16)
        await _answer_small(self.app, scope, receive, _with_headers(send, scope["state"]["owner"] if is_new else None))


def _refusal(connection: HTTPConnection) -> str | None:
    """Why this request is not answered, or None. A page of another site cannot choose its Host or Origin header."""
    host = connection.headers.get("host", "")
    if not is_loopback(_host_name(host)):
        return f"Host {host!r} is not this lab's address: open it as http://127.0.0.1 or http://localhost."
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"Origin {origin!r} is another site: only the lab's own page may call the lab."
    if connection.headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _is_navigation(connection):
        return "Another site made this request: only the lab's own page may call the lab."
    return None


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; "" where it is anything but a name and a port."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").lower() if match else ""


def _is_navigation(connection: HTTPConnection) -> bool:
    """Following a link to the lab is fine; a form posted to it is not."""
    return connection.scope.get("method") == "GET" and connection.headers.get("sec-fetch-mode") == "navigate"


def _declared_length(connection: HTTPConnection) -> int:
    length = connection.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0


async def _answer_small(app, scope, receive, send) -> None:
    """The app's answer, unless more comes than a request may have: a body sent in chunks declares no length."""
    read, started = 0, False

    async def receive_counted():
        nonlocal read
        message = await receive() if read <= MOST_BYTES else {}
        read += len(message.get("body", b""))
        return message if read <= MOST_BYTES else {"type": "http.disconnect"}

    async def send_unless_refused(message):
        nonlocal started
        if read <= MOST_BYTES or started:
            started = True
            await send(message)

    try:
        await app(scope, receive_counted, send_unless_refused)
    except Exception:
        if read <= MOST_BYTES or started:
            raise
    if read > MOST_BYTES and not started:
        await _refuse(scope, receive, send, TOO_LARGE, 413)


async def _refuse(scope, receive, send, reason: str, status: int = 403) -> None:
    if scope["type"] == "websocket":
        await receive()
        return await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
    await JSONResponse({"error": reason}, status_code=status, headers=HEADERS)(scope, receive, send)


def _owner_in_cookie(connection: HTTPConnection) -> str | None:
    owner = connection.cookies.get(COOKIE, "")
    return owner if _OWNER.fullmatch(owner) else None


def _with_headers(send, new_owner: str | None):
    async def send_with_headers(message):
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
            if new_owner:
                cookie = f"{COOKIE}={new_owner}; Path=/; Max-Age={_COOKIE_AGE}; HttpOnly; SameSite=Strict"
                extra.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers
