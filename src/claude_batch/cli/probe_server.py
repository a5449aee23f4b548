"""HTTP probes of a worker, for an orchestrator such as Kubernetes.

``/healthz`` says whether the process works, so that one that hangs is restarted. ``/readyz`` says
whether requests are sent. They are apart, because an outage of the database must restart no worker.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from claude_batch.core.errors import ActorError

_TIMEOUT: Final = 10.0
"""Seconds in which a caller sends its request."""


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


@contextlib.contextmanager
def probes(
    port: int, why_not_alive: Callable[[], str | None], why_not_ready: Callable[[], str | None]
) -> Generator[int]:
    """Serve both probes on all addresses of this machine; yields the port.

    Each function returns None, or the reason why its probe fails, and may raise `ActorError`.
    Raises ``OSError`` if the port is taken.
    """
    checks = {"/healthz": why_not_alive, "/readyz": why_not_ready}

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            check = checks.get(self.path)
            if check is None:
                self._answer(404, "the probes are /healthz and /readyz")
                return
            try:
                why = check()
            except ActorError as error:
                why = str(error)
            self._answer(200 if why is None else 503, why or "ok")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: an orchestrator asks every few seconds."""

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
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
