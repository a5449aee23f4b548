"""An HTTP server that answers each call with the finished message that its prompt names.

`POST /v1/messages` streams the message's events, or returns it whole. `GET /names` lists the names,
each with the SDK's resource that knows all of the message's fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from claude_batch.integrations.http_messages import events_of

sys.path.append(str(Path(__file__).parents[3] / "features"))

from finished_messages import finished_messages

MESSAGES = finished_messages()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        names = {name: message.api for name, message in MESSAGES.items()}
        self._send("application/json", [json.dumps(names).encode()])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = asked["messages"][0]["content"]
        # Some clients send text as a block.
        name = prompt if isinstance(prompt, str) else prompt[0]["text"]
        message = MESSAGES[name].body
        if asked.get("stream"):
            self._send("text/event-stream; charset=utf-8", events_of(message))
        else:
            self._send("application/json", [message])

    def _send(self, kind: str, pieces: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
