"""`claude-batch gateway`, `dashboard` and `worker`: commands that run until Ctrl-C.

The worker drives a ledger for others, and takes over from one that died. Its HTTP probes are for an
orchestrator such as Kubernetes: ``/healthz`` says whether the process serves, and ``/readyz``
whether requests are sent. They are apart, because an outage of the database must restart no worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from claude_batch.cli.help_sections import SectionedCommand
from claude_batch.cli.options import (
    DURATION,
    ProviderOptions,
    open_provider,
    option,
    provider_options,
    require_ledger,
    require_value,
)
from claude_batch.cli.user_messages import EXIT_CODES, print_line, say
from claude_batch.core.errors import ActorError
from claude_batch.core.settings import with_schema, without_password
from claude_batch.dashboard import TOKEN_VARIABLE, DashboardSettings
from claude_batch.gateway import GatewaySettings
from claude_batch.serving import Readiness, is_every_address

if TYPE_CHECKING:
    from claude_batch.core.events import Event
    from claude_batch.providers.batch import ClaudeBatchProvider

_F = TypeVar("_F", bound=Callable[..., Any])


def _address_options(defaults: GatewaySettings | DashboardSettings) -> Callable[[_F], _F]:
    """Add ``--host`` and ``--port`` to a command."""
    host = click.option(
        "--host",
        default=defaults.host,
        show_default=True,
        callback=require_value,
        help="Address to listen on.",
    )
    port = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=defaults.port,
        show_default=True,
        help="TCP port; 0 takes a free one.",
    )
    return lambda command: host(port(command))


_allow_host_option = click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    callback=require_value,
    help="Serve calls to this name or address of the machine too; other machines need one. "
    "Repeatable.",
)


def _unusable_address(host: str, port: int, error: OSError) -> click.UsageError:
    """Return the error for an address that a server cannot listen on."""
    return click.UsageError(
        f"{host}:{port}: {error.strerror}. Choose another address with --host or --port; "
        "--port 0 takes a free port"
    )


def _report_halts(event: Event, *, options: ProviderOptions) -> None:
    """Say that sending has halted, and that it continues: nobody else asks such a process."""
    from claude_batch.core.events import SendingHalted, SendingResumed
    from claude_batch.ledger.workspaces import remedy_of
    from claude_batch.lifecycle.observers import message_of_event

    if isinstance(event, SendingHalted):
        lifts = options.command(remedy_of(event.reason).removeprefix("claude-batch "))
        say(
            f"{message_of_event(event)}. Every request stays queued. Correct the cause, then run: "
            f"{lifts}"
        )
    elif isinstance(event, SendingResumed):
        say(message_of_event(event))


@contextlib.contextmanager
def naming_other_runs(provider: ClaudeBatchProvider) -> Generator[None]:
    """Log the runs that the provider cannot send, also those that are stored while it runs."""
    ended = threading.Event()

    def look() -> None:
        rest = 0.0
        while not ended.wait(rest):
            begun = time.monotonic()
            with contextlib.suppress(ActorError):  # the command reports why it stops
                provider.session()  # to open the ledger is no part of a look
                begun = time.monotonic()
                provider.warn_of_other_runs()
            took = time.monotonic() - begun
            rest = min(max(_LOOKS_APART, _RESTS_PER_LOOK * took), _MOST_APART)

    thread = threading.Thread(target=look, name="claude-batch-other-runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_LOOK)  # it may wait for a database that does not answer


_LAST_LOOK: Final = 1.0
"""Seconds that an ending command waits for a look that is under way."""

_LOOKS_APART: Final = 5.0
_RESTS_PER_LOOK: Final = 200
"""The least pause between two looks in seconds, and in times of a look, which reads all runs."""

_MOST_APART: Final = 600.0
"""The longest pause in seconds: a look may have waited for a server that was lost."""


# Gateway ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def saying_small_groups() -> Generator[None]:
    """Replace the warning about calls in small groups by a line for the operator of a gateway.

    The warning names functions of this library, which the callers of a gateway do not use.
    """
    from claude_batch.lifecycle.call_queue import SmallGroupsWarning

    show = warnings.showwarning

    def show_for_operator(
        message: Warning | str, category: type[Warning], *place: Any, **more: Any
    ) -> None:
        if not issubclass(category, SmallGroupsWarning):
            show(message, category, *place, **more)
            return
        say(
            "calls come a few at a time, and the next ones with the answers, so that each group "
            "waits for a batch of its own, which can take an hour. Let the programs that call the "
            "gateway make more calls at the same time (docs/how-to/frameworks.md)"
        )

    warnings.showwarning = show_for_operator
    try:
        yield
    finally:
        warnings.showwarning = show


_GATEWAY = GatewaySettings()


@click.command("gateway", cls=SectionedCommand)
@provider_options
@option("max_attempts")
@option("retry_on")
@option("reuse")
@option("failure_ttl")
@option("on_disconnect")
@_address_options(_GATEWAY)
@click.option(
    "--hold",
    type=DURATION,
    default=f"{_GATEWAY.hold:g}s",
    show_default=True,
    help="How long a response waits for its answer before it begins.",
)
@click.option(
    "--ping",
    type=DURATION,
    default=f"{_GATEWAY.ping:g}s",
    show_default=True,
    help="Time between two signs of life to a caller that waits.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Admit only callers with a token of this file. Required for an address that other "
    "machines reach.",
)
@click.option(
    "--new-token",
    metavar="NAME",
    help="Make a token for a caller, add it to --tokens FILE, print it, and exit.",
)
@_allow_host_option
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    callback=require_value,
    help="Admit calls of web pages of this origin, such as https://app.example.com; repeatable.",
)
@click.option(
    "--sandbox",
    is_flag=True,
    help="Answer from a temporary sandbox: nothing is sent or billed.",
)
def gateway_command(
    *,
    options: ProviderOptions,
    tokens: Path | None,
    new_token: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    **fields: Any,
) -> None:
    """Serve the Messages API locally, and answer it from batches.

    Each call costs half the price. Set ANTHROPIC_BASE_URL to the printed address in any program
    that uses Claude. Calls wait until their batch has ended, and connections are kept alive
    meanwhile. Requests that were sent go on if a program or the gateway ends, and the same call
    gets its answer later.
    """
    if new_token is not None:
        from claude_batch.gateway.access import add_token

        if tokens is None:
            raise click.UsageError("--new-token needs --tokens FILE")
        print_line(add_token(tokens, new_token))
        return
    settings = GatewaySettings(
        tokens=tokens,
        allowed_hosts=frozenset(allow_host),
        allowed_origins=frozenset(allow_origin),
        **fields,
    )
    try:
        from claude_batch.gateway.gateway_app import GatewayServer
    except ImportError as error:
        raise click.UsageError(
            f"{error}; install the gateway's libraries: pip install 'claude-batch[gateway]'"
        ) from None
    halts = partial(_report_halts, options=options)
    with saying_small_groups(), open_provider(options, observers=[halts]) as provider:
        try:
            with naming_other_runs(provider):
                GatewayServer(provider, settings).serve(
                    partial(_announce_gateway, settings=settings)
                )
        except OSError as error:
            raise _unusable_address(settings.host, settings.port, error) from None
        if options.sandbox:
            say("the gateway has ended; its sandbox and ledger are removed")
        else:
            say("the gateway has ended; its batches go on, and the next start collects them")


def _announce_gateway(url: str, *, settings: GatewaySettings) -> None:
    _announce("gateway", url, settings)
    where = ""
    if is_every_address(settings.host) and settings.allowed_hosts:
        # No program can call this address: it needs a name of the machine.
        url = f"http://HOST:{urlsplit(url).port}"
        where = f"; HOST is localhost or {' or '.join(sorted(settings.allowed_hosts))}"
    elif is_every_address(settings.host):
        url = f"http://localhost:{urlsplit(url).port}"
    say(f"set ANTHROPIC_BASE_URL={url} in the programs that use Claude{where}")


def _announce(what: str, url: str, settings: GatewaySettings | DashboardSettings) -> None:
    """Print where a server listens, and that it refuses other machines, if no host is allowed."""
    print_line(f"{what} listening on {url}")
    if is_every_address(settings.host) and not settings.allowed_hosts:
        say(
            "warning: other machines are refused, because no host is allowed: add --allow-host "
            "NAME, with the name or address of this machine that they use"
        )


# Dashboard ----------------------------------------------------------------------------------------

_DASHBOARD = DashboardSettings()


@click.command("dashboard", cls=SectionedCommand)
@provider_options
@_address_options(_DASHBOARD)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    metavar="TOKEN",
    help="Admit only browsers that log in with it. Required for an address that other machines "
    "reach.",
)
@_allow_host_option
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let pages cancel and retry runs, change budgets, and decide unknown requests.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option(
    "--sandbox",
    is_flag=True,
    help="Show runs that are being answered by a temporary sandbox: nothing is sent or billed.",
)
def dashboard_command(
    *,
    options: ProviderOptions,
    host: str,
    port: int,
    token: str | None,
    allow_host: tuple[str, ...],
    allow_actions: bool,
    no_open: bool,
) -> None:
    """Show the ledger in a browser: runs, requests and costs.

    The pages only read the ledger, and change as it does; with --allow-actions they also change
    runs and budgets. Ctrl-C ends the command; the runs are not affected.
    """
    # click takes an empty variable for one that is not set, and the pages would ask for no token.
    if token == "" or (token is None and os.environ.get(TOKEN_VARIABLE) == ""):
        raise click.UsageError(
            f"--token or {TOKEN_VARIABLE} is empty; give a value, or leave it out"
        )
    settings = DashboardSettings(
        host=host,
        port=port,
        token=token,
        allowed_hosts=frozenset(allow_host),
        allow_actions=allow_actions,
        prices=options.settings.get("prices"),
    )
    try:
        from claude_batch.dashboard.dashboard_server import DashboardServer
    except ImportError as error:
        raise click.UsageError(
            f"{error}; install the dashboard's libraries: pip install 'claude-batch[dashboard]'"
        ) from None
    with ExitStack() as stack:
        location = options.location
        if options.sandbox:
            from claude_batch.dashboard.demo_runs import demo_answer, start_demo

            provider = stack.enter_context(open_provider(options, responder=demo_answer))
            location = provider.ledger
            start_demo(provider)
        else:
            require_ledger(location)
        # Python's own thresholds. Those of a short command keep the cycles of broken responses,
        # each with a page of results, until there are a million new objects.
        gc.freeze()
        gc.set_threshold(700, 10, 10)
        try:
            announce = partial(_announce_dashboard, settings=settings, opens=not no_open)
            DashboardServer(location, settings).serve(announce)
        except OSError as error:
            raise _unusable_address(host, port, error) from None
    if options.sandbox:
        say("the dashboard has ended; its sandbox and ledger are removed")


def _announce_dashboard(url: str, *, settings: DashboardSettings, opens: bool) -> None:
    _announce("dashboard", url, settings)
    if opens:
        import webbrowser

        webbrowser.open(url)


# Worker -------------------------------------------------------------------------------------------


@click.command("worker", cls=SectionedCommand, epilog=EXIT_CODES)
@provider_options
@click.option(
    "--health",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the probes /healthz and /readyz on this port of all addresses; 0 takes a free one.",
)
@click.option(
    "--tools",
    multiple=True,
    metavar="MODULE",
    help="A module, or MODULE:FUNCTION. Runs in the ledger may call its functions in this process, "
    "also while another worker drives. Can be repeated.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="The most functions that run here at the same time (16).",
)
@click.option(
    "--schema",
    metavar="NAME",
    callback=require_value,
    help="The ledger's schema in its PostgreSQL database, if its URL names none (claude_batch).",
)
def worker_command(
    options: ProviderOptions,
    health: int | None,
    tools: tuple[str, ...],
    concurrency: int | None,
    schema: str | None,
) -> None:
    """Send and collect the requests that other programs store.

    A worker ends at Ctrl-C, SIGTERM or SIGHUP. Start as many as you like, on as many machines as
    reach the ledger: one of them drives each workspace, and another takes over within 15 seconds of
    its death. Workers on more than one machine need a ledger on PostgreSQL.
    """
    from claude_batch.actor.tools import offer_tools
    from claude_batch.cli.run_delivery import parkable

    if schema is not None:
        try:
            place = with_schema(options.location, schema)
        except ValueError as error:
            raise click.UsageError(f"--schema {schema}: {error}") from None
        options = msgspec.structs.replace(
            options,
            settings={**options.settings, "ledger": place},
            # Other commands have no --schema, so a hint names it in the URL.
            typed={**options.typed, "ledger": without_password(place)},
        )
    offered = [name for place in tools for name in offer_tools(place)]
    halts = partial(_report_halts, options=options)
    with open_provider(options, observers=[halts]) as provider:
        try:
            with parkable(), _health(provider, health):
                engine, _ = provider.opening().result()
                engine.workbench.helps = bool(offered)
                if concurrency is not None:
                    engine.workbench.most_running = concurrency
                say(f"worker {engine.process} works on {engine.ledger.location}")
                if offered:
                    say(f"it runs the tools {', '.join(offered)}")
                with naming_other_runs(provider):
                    while True:
                        engine.check()
                        engine.change_after(engine.version).result()
        except KeyboardInterrupt:
            say("the worker has ended; another worker, or the next one, continues its runs")


@contextlib.contextmanager
def _health(provider: ClaudeBatchProvider, port: int | None) -> Generator[None]:
    """Serve the probes, if there is a port for them."""
    if port is None:
        yield
        return

    with ExitStack() as stack:
        try:
            served = stack.enter_context(probes(port, provider.why_not_sending))
        except OSError as error:
            raise click.UsageError(f"--health {port}: {error.strerror}") from None
        say(f"probes on port {served}: /healthz and /readyz")
        yield


_TIMEOUT: Final = 10.0
"""Seconds in which a caller sends its request, at most half a second more."""

_MOST_CALLERS: Final = 100
"""Callers that may send their requests at the same time, each of which takes a thread."""


class _Server(ThreadingHTTPServer):
    """Answers each caller in a thread, and gives none longer than `_TIMEOUT` to send its request.

    The time-out of a socket does not do that: a caller that sends a byte now and then begins it
    again each time.
    """

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._begun: dict[socket.socket, float] = {}
        """When each open connection was accepted, the oldest first."""
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer a caller; if there are too many, the oldest has to make room."""
        for oldest in list(self._begun)[: 1 - _MOST_CALLERS]:
            self._read_no_more(oldest)
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the requests that take too long; called every half a second."""
        for connection, begun in list(self._begun.items()):
            if time.monotonic() - begun > _TIMEOUT:
                self._read_no_more(connection)

    def shutdown_request(self, request: Any) -> None:
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def _read_no_more(self, connection: socket.socket) -> None:
        """Let the thread that reads a request find its end; it may still answer."""
        self._begun.pop(connection, None)
        with contextlib.suppress(OSError):  # it has just been closed
            connection.shutdown(socket.SHUT_RD)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a caller that has gone: checks of a port close it like that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def probes(port: int, why_not_ready: Callable[[], str | None]) -> Generator[int]:
    """Serve both probes on all addresses of this machine; yields the port.

    ``why_not_ready`` returns None, or the reason why nothing is sent, and may raise `ActorError`.
    Raises ``OSError`` if the port is taken.
    """
    checks = {"/healthz": lambda: None, "/readyz": Readiness(why_not_ready).why_not}

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            check = checks.get(self.path)
            if check is None:
                self._answer(404, "the probes are /healthz and /readyz")
                return
            why = check()
            self._answer(200 if why is None else 503, why or "ok")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: an orchestrator asks every few seconds."""

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with _Server(("", port), Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, daemon=True, name="claude-batch-probes"
        )
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
