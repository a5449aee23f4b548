"""The dashboard: its routes, the checks before each of them, live pages, and the running server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from claude_batch._version import __version__
from claude_batch.core.errors import (
    ActorConfigurationError,
    ActorError,
    LedgerError,
    RunNotFoundError,
)
from claude_batch.dashboard import SHORTEST_TOKEN, TOKEN_VARIABLE, DashboardSettings
from claude_batch.dashboard.ledger_actions import ACTIONS
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.dashboard.overview_pages import (
    actor_page,
    actors_page,
    costs_page,
    ledger_page,
    overview_page,
)
from claude_batch.dashboard.page_renderer import address, render
from claude_batch.dashboard.run_pages import raw_of, request_page, run_page
from claude_batch.ledger import queries
from claude_batch.money.prices import prices_of
from claude_batch.providers.export import chunks, finals
from claude_batch.providers.status import find_run_id
from claude_batch.serving import HostCheck, is_loopback
from claude_batch.serving.local_server import AppServer, LocalServer, listen

# Access -------------------------------------------------------------------------------------------

_PROTECTION: Final = {
    # Nothing inline, nothing from elsewhere: a text that slipped through as HTML could do nothing.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Without any referrer, browsers would send "Origin: null" with the forms of our own pages.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response."""


class _Access:
    """Decides about each call by its headers and cookie."""

    def __init__(self, settings: DashboardSettings) -> None:
        """Raises `ActorConfigurationError` for an address that other machines reach, untold."""
        token = settings.token
        if token is None and not is_loopback(settings.host):
            raise ActorConfigurationError(
                f"{settings.host} can be reached by other machines, and the pages show prompts and "
                f"answers: add --token TOKEN, or set {TOKEN_VARIABLE}"
            )
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise ActorConfigurationError(
                f"the token has fewer than {SHORTEST_TOKEN} characters, so it could be found by "
                f"trying; a random one is {secrets.token_urlsafe(24)}"
            )
        self._token = None if token is None else token.encode("utf-8", "surrogateescape")
        self.hosts: HostCheck = HostCheck(settings.host, settings.allowed_hosts)
        # For the forms of this process. A page of another origin can send a form, but not read one.
        self.form_token: str = secrets.token_urlsafe(32)

    @property
    def has_token(self) -> bool:
        """Whether a browser must log in."""
        return self._token is not None

    def is_admitted(self, request: Request) -> bool:
        """Return whether a call may see pages."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Starlette reads headers as Latin-1; clients send either that or UTF-8.
        sent = given.encode("latin-1")
        in_latin_1, in_utf_8 = self.is_token(given), hmac.compare_digest(sent, self._token)
        if scheme.lower() == "bearer" and (in_latin_1 or in_utf_8):
            return True
        cookie = request.cookies.get(self.cookie(request), "")
        # As bytes: texts with other than ASCII characters are refused by an exception.
        return hmac.compare_digest(cookie.encode(), self.session.encode())

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token."""
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    @property
    def session(self) -> str:
        """The cookie of a browser that has sent the token; it does not contain the token."""
        return hmac.new(self._token or b"", b"claude-batch dashboard", hashlib.sha256).hexdigest()

    @staticmethod
    def cookie(request: Request) -> str:
        """Return the cookie's name. Browsers share cookies between the ports of a host."""
        return f"claude_batch_dashboard_{request.url.port or 80}"

    def is_own_form(self, request: Request, token: str) -> bool:
        """Return whether a POST comes from a form of these pages."""
        # Browsers send both headers with a form, and no page can change them; programs send none.
        # A proxy in front of this server may speak TLS, so the schemes may differ.
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        return (
            request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and (origin is None or origin.partition("://")[2] == host)
            and hmac.compare_digest(
                token.encode("utf-8", "surrogateescape"), self.form_token.encode()
            )
        )


_LARGEST_FORM: Final = 16 * 1024


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; none of one that is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_FORM:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


# Application --------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

Page = Callable[[LedgerReader, Mapping[str, str]], dict[str, Any]]
"""Reads what a page shows. Its template has the page's name; its query and its path's parts come in
one mapping."""

_PAGES: Final[Mapping[str, tuple[str, Page]]] = {
    "/": ("overview", overview_page),
    "/runs/{run_id}": ("run", run_page),
    "/runs/{run_id}/requests/{number}": ("request", request_page),
    "/actors": ("actors", actors_page),
    "/actors/{actor:path}": ("actor", actor_page),
    "/costs": ("costs", costs_page),
    "/ledger": ("ledger", ledger_page),
}

_KEPT_PAGES: Final = 200
"""Pages that are kept until the ledger changes. Everybody who watches a run shares one."""

_LARGEST_KEPT: Final = 512 * 1024

_KEPT_NOTICES: Final = 100
"""What actions have done, for the pages to which they lead. Only they know its random name."""

_FAILURES: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (RunNotFoundError, 404, "There is no such run or request"),
    (LedgerError, 503, "The ledger cannot be read"),
    (ActorError, 400, "This cannot be done"),
)

_FORMS: Final = {"jsonl": "application/jsonl", "csv": "text/csv"}


def _saved_as(name: str) -> dict[str, str]:
    """Return headers with which a browser stores a response, and never shows it as a page."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return {"content-disposition": f'attachment; filename="{plain}"'}


def _place_of(request: Request) -> str:
    """Return the path and query of a call as they were sent.

    `Request.url` is made of the decoded path, so a `%` of an actor's name would be decoded again.
    """
    path, query = request.scope["raw_path"], request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


class DashboardApp:
    """The ASGI application."""

    def __init__(self, reader: LedgerReader, settings: DashboardSettings) -> None:
        """Raises `ActorConfigurationError` for unusable settings."""
        self._reader = reader
        self._access = _Access(settings)
        self._settings = settings
        self.streams: ChangeStreams = ChangeStreams(lambda: reader.version)
        self._drawn: tuple[int, dict[str, bytes]] = (0, {})
        self._notices: OrderedDict[str, str] = OrderedDict()
        folders = StaticFiles(packages=[("claude_batch.dashboard", "static")])
        self._app: ASGIApp = Starlette(
            routes=[
                *(Route(path, self._page(*page)) for path, page in _PAGES.items()),
                Route("/runs/{run_id}/results.{form}", self._results),
                Route("/runs/{run_id}/requests/{number}/{what}.json", self._raw),
                Route("/actions/{action}", self._act, methods=["POST"]),
                Route("/events", self._events),
                Route("/login", self._login, methods=["GET", "POST"]),
                Mount("/static", folders),
            ],
            exception_handlers={404: self._not_found, ActorError: self._failed},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _PROTECTION.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        response = self._refusal(request)
        await (response or self._app)(scope, receive, protected)

    def _refusal(self, request: Request) -> Response | None:
        host = self._access.hosts.refused(request.headers.get("host", ""))
        if host is not None:
            words = (
                f"this dashboard does not serve the host {host[:200]!r}; "
                "allow it with --allow-host NAME\n"
            )
            return Response(words, 421, media_type="text/plain")
        path: str = request.scope["path"]
        if path == "/login" or path.startswith("/static/") or self._access.is_admitted(request):
            # PostgreSQL takes no text with this character.
            has_null = "\0" in path or b"%00" in request.scope["query_string"]
            return self._problem(404, "There is no such page", path[:200]) if has_null else None
        if request.method == "GET" and path != "/events":
            return RedirectResponse("/login", 303)
        return Response("log in first, at /login\n", 401, media_type="text/plain")

    # Pages --------------------------------------------------------------------------------------

    def _page(self, template: str, page: Page) -> Callable[[Request], Any]:
        def draw(place: str, values: Mapping[str, str]) -> bytes:
            version = self._reader.version
            of, kept = self._drawn
            if of != version:
                kept: dict[str, bytes] = {}
                self._drawn = (version, kept)
            if place in kept:
                return kept[place]
            with self._reader.drawing():
                found = page(self._reader, values)
                found["notice"] = self._notices.get(values.get("notice", ""))
                body = self._render(template, place, version, found)
            if len(body) <= _LARGEST_KEPT and len(kept) < _KEPT_PAGES:
                kept[place] = body
            return body

        async def answer(request: Request) -> Response:
            place = _place_of(request)
            values = {**request.query_params, **request.path_params}
            body = await run_in_threadpool(draw, place, values)
            return Response(body, media_type="text/html")

        return answer

    def _render(self, template: str, place: str, version: int, values: dict[str, Any]) -> bytes:
        return render(
            f"{template}.html",
            self._reader.ledger.now(),
            page=template,
            address_here=place,
            version=version,
            package_version=__version__,
            allow_actions=self._settings.allow_actions,
            form_token=self._access.form_token,
            ledger_location=self._reader.ledger.location,
            **{"notice": None, **values},
        )

    def _problem(self, status: int, title: str, words: str) -> Response:
        body = self._render("problem", "/", 0, {"title": title, "words": words})
        return Response(body, status, media_type="text/html")

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return self._problem(404, "There is no such page", request.scope["path"][:200])

    async def _failed(self, request: Request, error: Exception) -> Response:
        status, title = next(each[1:] for each in _FAILURES if isinstance(error, each[0]))
        return self._problem(status, title, str(error))

    # Actions ------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        if not self._settings.allow_actions:
            words = "Start the dashboard with --allow-actions to change runs from its pages."
            return self._problem(403, "This dashboard only reads", words)
        form = await _read_form(request)
        if not self._access.is_own_form(request, form.get("form_token", "")):
            words = (
                "It was not sent by a page of this dashboard, or the dashboard has been started "
                "again since. Nothing was changed. Open the page again."
            )
            return self._problem(403, "This form is refused", words)
        name = request.path_params["action"]
        if name not in ACTIONS:
            raise HTTPException(404)
        return RedirectResponse(await run_in_threadpool(self._perform, name, form), 303)

    def _perform(self, name: str, form: Mapping[str, str]) -> str:
        """Perform an action; return the address of the page that shows what it has done."""
        ledger = self._reader.ledger
        ledger.reopen()  # a change of a file that was replaced would be lost
        done = ACTIONS[name](ledger, form, prices_of(self._settings.prices))
        _log.info("the dashboard's action %s: %s", name, done.words)
        self._reader.read_again()
        notice = secrets.token_urlsafe(16)
        self._notices[notice] = done.words
        while len(self._notices) > _KEPT_NOTICES:
            self._notices.popitem(last=False)
        page = "/" if done.run_id is None else address("runs", done.run_id)
        return f"{page}?notice={notice}"

    # Downloads ----------------------------------------------------------------------------------

    async def _results(self, request: Request) -> Response:
        form = request.path_params["form"]
        if form not in _FORMS:
            raise HTTPException(404)
        ledger = self._reader.ledger
        run_id = await run_in_threadpool(find_run_id, ledger, request.path_params["run_id"])
        # A spreadsheet would compute a text that begins like a formula.
        written = "csv-safe" if form == "csv" else "jsonl"
        answers = finals(queries.outputs_by_position(ledger, run_id))
        pieces = chunks(answers, written, ledger.location)
        headers = _saved_as(f"{run_id}.{form}")
        return StreamingResponse(pieces, headers=headers, media_type=_FORMS[form])

    async def _raw(self, request: Request) -> Response:
        name, body = await run_in_threadpool(raw_of, self._reader, request.path_params)
        return Response(body, headers=_saved_as(name), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        if self.streams.count >= MOST_STREAMS:
            return Response("too many open pages\n", 503, media_type="text/plain")
        seen = request.query_params.get("since", "")
        return StreamingResponse(self.streams.events(seen), media_type="text/event-stream")

    async def _login(self, request: Request) -> Response:
        if not self._access.has_token:
            return RedirectResponse("/", 303)
        wrong = False
        if request.method == "POST":
            form = await _read_form(request)
            if self._access.is_token(form.get("token", "")):
                response = RedirectResponse("/", 303)
                response.set_cookie(
                    self._access.cookie(request),
                    self._access.session,
                    httponly=True,
                    samesite="strict",
                )
                return response
            wrong = True
        body = self._render("login", "/login", 0, {"wrong": wrong})
        return Response(body, 401 if wrong else 200, media_type="text/html")


# Live pages ---------------------------------------------------------------------------------------

_BEAT: Final = 15.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it."""

MOST_STREAMS: Final = 500
"""Open streams; further pages are not live. Each costs some kilobytes."""


class ChangeStreams:
    """The open streams of all pages. All methods but `announce` are for the event loop's thread."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version`` returns the version of what pages show now."""
        self._version = version
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        """Set, and replaced by another one, at the next version."""
        self._is_ending = False
        self.count: int = 0
        """Number of open streams."""

    def announce(self) -> None:
        """Tell every stream that there is a new version; from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """End every stream."""
        self._is_ending = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self, seen: str) -> AsyncGenerator[str]:
        """Yield an event for each version that follows ``seen``, the one that a page shows."""
        self._loop = asyncio.get_running_loop()
        self.count += 1
        try:
            # A browser waits so long before it connects again.
            yield "retry: 3000\n\n"
            while not self._is_ending:
                changed, version = self._changed, str(self._version())
                if version != seen:
                    seen = version
                    yield f"event: ledger\ndata: {version}\n\n"
                    continue
                try:
                    async with asyncio.timeout(_BEAT):
                        await changed.wait()
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.count -= 1


# Server -------------------------------------------------------------------------------------------


class DashboardServer(AppServer):
    """A dashboard of a ledger."""

    def __init__(self, ledger: str, settings: DashboardSettings) -> None:
        super().__init__("claude-batch-dashboard")
        self._ledger = ledger
        self._settings = settings
        self.reader: LedgerReader
        """The reader of the running dashboard, once it is started."""

    def _prepare(self) -> tuple[LocalServer, socket.socket]:
        reader = self.reader = LedgerReader(self._ledger)
        try:
            app = DashboardApp(reader, self._settings)
            listener = listen(self._settings.host, self._settings.port)
        except BaseException:
            reader.close()
            raise

        async def close() -> None:
            reader.close()

        server = LocalServer(app, end_calls=app.streams.end, close=close, http="h11")
        reader.start(app.streams.announce)
        return server, listener
