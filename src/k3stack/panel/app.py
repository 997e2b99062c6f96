"""The panel as an ASGI application.

GET  /                   the page
GET  /api/answer?...     everything it shows for a choice; without a query, the choice it begins with
GET  /api/machine        what GPUs this machine has
POST /api/check?...      the doctor's diagnosis of a copied command, the request's body

What cannot be answered for a reason that the page can show (a choice that the rules refuse, a link's unknown value, a
text that is no command) is answered with `error`, and with 200 as any other.

It listens on the loopback address and answers only requests that name it or the host it was told: a page elsewhere
that points a name of its own at 127.0.0.1 gets nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from k3stack.errors import K3Error, UsageError
from k3stack.hardware.table import gpu
from k3stack.panel.about import about
from k3stack.panel.answer import answer
from k3stack.panel.checking import MAX_COMMAND_BYTES, diagnosis
from k3stack.panel.dimensions import start
from k3stack.panel.files import LANGUAGES, POLICY, SCRIPTS, call, page, strings
from k3stack.panel.follow import against
from k3stack.recipe.choice import Parsers
from k3stack.recipe.link import from_query
from k3stack.recipe.render import Form
from k3stack.values import dump

__all__ = ["MAX_QUERY_BYTES", "PanelApp"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_QUERY_BYTES = 4_096

_KINDS = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
_HEADERS = (
    ("content-security-policy", f"{POLICY}; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


W = TypeVar("W", bound=StrEnum)


class RefusedError(Exception):
    """A request that is not answered: the status, and what is wrong with it."""

    def __init__(self, status: HTTPStatus, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.hint = hint


class PanelApp:
    """The ASGI application.

    Args:
        hosts: names by which it may be called, besides the loopback's.
    """

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        self._hosts = frozenset((*_LOOPBACK, *(host.lower() for host in hosts)))
        self._everywhere = bool(self._hosts & {"0.0.0.0", "[::]"})
        self._begin = start()
        self._files = {**_page_files(), "/about.js": ("js", call("about", dump(about(self._begin, served=True))))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "the panel speaks HTTP only"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._admit(scope)
            kind, body = await self._answered(scope, receive)
            status = HTTPStatus.OK
        except RefusedError as error:
            status, kind, body = error.status, "json", _error(str(error), "", error.hint)
        except K3Error as error:
            # The page asks whether things are possible: no is an answer, and nothing for a browser's list of errors.
            status, kind, body = HTTPStatus.OK, "json", _error(error.what, error.where, error.hint)
        await _respond(send, status, kind, body, head=scope["method"] == "HEAD")

    def _admit(self, scope: Scope) -> None:
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        host = named.rpartition(":")[0] if not named.endswith("]") and ":" in named else named
        if host.lower() not in self._hosts and not (self._everywhere and _is_address(host)):
            raise RefusedError(HTTPStatus.FORBIDDEN, f"this panel is not called {host!r}", "Start it with --name.")
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, f"a link has at most {MAX_QUERY_BYTES:,} characters")

    async def _answered(self, scope: Scope, receive: Receive) -> tuple[str, str]:
        path, method = scope["path"], scope["method"]
        if path == "/api/check":
            _only(method, "POST")
            return "json", _json(await self._check(scope, receive))
        _only(method, "GET", "HEAD")
        if path == "/api/answer":
            return "json", await asyncio.to_thread(self._asked, scope["query_string"].decode("latin-1"))
        if path == "/api/machine":
            from k3stack.panel.machine import found

            return "json", _json(dump(await asyncio.to_thread(found)))
        if path in self._files:
            return self._files[path]
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such page", "The panel is at /.")

    def _asked(self, query: str) -> str:
        pairs = parse_qsl(query, keep_blank_values=True)
        form = _word(Form, dict(pairs).get("form", Form.DOCKER.value), "form")
        words = "&".join(part for part in query.split("&") if part and not part.startswith("form="))
        choice = from_query(words) if words else self._begin
        if refusals := against(choice):
            reason = refusals[0].reason
            return _error(reason.why.rstrip("."), reason.rule, refusals[0].fix)
        return _json(dump(answer(choice, form)))

    async def _check(self, scope: Scope, receive: Receive) -> Any:
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        body = await _body(receive, MAX_COMMAND_BYTES)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the command is not UTF-8 text") from None
        kind = gpu(asked["hardware"]) if "hardware" in asked else None
        parsers = _word(Parsers, asked.get("parsers", Parsers.KIMI_K3.value), "parsers")
        return dump(await asyncio.to_thread(diagnosis, text, kind, parsers))


def _page_files() -> dict[str, tuple[str, str]]:
    found = {"/": ("html", page("index.html")), "/panel.css": ("css", page("panel.css"))}
    found |= {f"/{name}": ("js", page(name)) for name in SCRIPTS}
    found |= {f"/strings.{language}.js": ("js", strings(language)) for language in LANGUAGES}
    found["/source.js"] = ("js", page("served.js"))
    found["/icon.svg"] = ("svg", page("icon.svg"))
    return found


def _is_address(host: str) -> bool:
    """Whether a host is a numeric address: no name that somebody else could point at this machine."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _word(kind: type[W], name: str, where: str) -> W:
    try:
        return kind(name)
    except ValueError:
        raise UsageError(f"cannot be {name[:40]!r}", where=where, hint=f"Known: {', '.join(kind)}.") from None


def _only(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(allowed)} here")


async def _body(receive: Receive, limit_bytes: int) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > limit_bytes:
            what = f"a command has at most {limit_bytes // 1024} KiB"
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what, "Paste the command alone.")
        if not message.get("more_body", False):
            return body


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _error(what: str, where: str | None, hint: str | None) -> str:
    return _json({"error": {"what": what, "where": where or "", "next": hint or ""}})


async def _respond(send: Send, status: HTTPStatus, kind: str, body: str, head: bool) -> None:
    data = body.encode()
    media = "application/json" if kind == "json" else _KINDS[kind]
    headers = [("content-type", f"{media}; charset=utf-8"), ("content-length", str(len(data))), *_HEADERS]
    raw = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": int(status), "headers": raw})
    await send({"type": "http.response.body", "body": b"" if head else data})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
