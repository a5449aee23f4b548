"""`claude-batch worker`: drive a ledger for others, and take over from a worker that died.

Its HTTP probes are for an orchestrator such as Kubernetes: ``/healthz`` says whether the process
serves, and ``/readyz`` whether requests are sent. They are apart, because an outage of the database
must restart no worker.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import click

from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.user_messages import EXIT_CODES, say
from claude_batch.core.settings import with_schema
from claude_batch.serving import Readiness

if TYPE_CHECKING:
    from collections.abc import Generator

    from claude_batch.providers.batch import ClaudeBatchProvider


@click.command("worker", epilog=EXIT_CODES)
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
    help="The ledger's schema in its PostgreSQL database, if its URL names none (claude_batch).",
)
def worker_command(
    options: ProviderOptions,
    health: int | None,
    tools: tuple[str, ...],
    concurrency: int | None,
    schema: str | None,
) -> None:
    """Send and collect what others store in the ledger, until Ctrl-C or SIGTERM.

    Start as many as you like, on as many machines as reach the ledger: one of them drives each
    workspace, and another takes over within 15 seconds of its death. The ledger has to be on
    PostgreSQL for more than one machine.
    """
    from claude_batch.actor.tools import offer_tools
    from claude_batch.cli.run_delivery import parkable

    if schema is not None:
        try:
            place = with_schema(options.location, schema)
        except ValueError as error:
            raise click.UsageError(f"--schema {schema}: {error}") from None
        options = replace(options, settings={**options.settings, "ledger": place})
    offered = [name for place in tools for name in offer_tools(place)]
    with open_provider(options) as provider:
        try:
            with parkable(), _health(provider, health):
                engine, _ = provider.opening().result()
                engine.workbench.helps = bool(offered)
                if concurrency is not None:
                    engine.workbench.most_running = concurrency
                say(f"worker {engine.process} works on {engine.ledger.location}")
                if offered:
                    say(f"it runs the tools {', '.join(offered)}")
                while True:
                    engine.check()
                    engine.change_after(engine.version).result()
        except KeyboardInterrupt:
            say("the worker has ended; others, or the next one, go on with what it left")


@contextlib.contextmanager
def _health(provider: ClaudeBatchProvider, port: int | None) -> Generator[None]:
    """Serve the probes, if there is a port for them."""
    if port is None:
        yield
        return

    with contextlib.ExitStack() as stack:
        try:
            served = stack.enter_context(probes(port, provider.why_not_sending))
        except OSError as error:
            raise click.UsageError(f"--health {port}: {error.strerror}") from None
        say(f"probes on port {served}: /healthz and /readyz")
        yield


# Probes -------------------------------------------------------------------------------------------

_TIMEOUT: Final = 10.0
"""Seconds in which a caller sends its request."""


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

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
