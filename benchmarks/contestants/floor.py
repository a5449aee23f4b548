"""The floor: one prepared body posted, the results streamed and decoded, nothing kept.

    floor.py BODY POLL_SECONDS

Counted is all that this process does. Making the body is not: it lies ready in a file, which is
sent as it is read. One JSON decode a line, of the two fields that tell that a request succeeded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec

CHUNK = 1 << 20


class Result(msgspec.Struct, gc=False):
    """The part of a line that is looked at."""

    type: str


class Line(msgspec.Struct, gc=False):
    """A line of the results."""

    custom_id: str
    result: Result


def main(body: Path, interval: float) -> None:
    """Print how many requests succeeded."""
    client = httpx2.Client(
        base_url=os.environ["ANTHROPIC_BASE_URL"],
        headers={
            "x-api-key": os.environ["ANTHROPIC_API_KEY"],
            "anthropic-version": "2026-10-21",
        },
        timeout=600,
    )
    with client:
        batch = object_of(
            client.post(
                "/v1/messages/batches",
                content=chunks(body),
                headers={
                    "content-type": "application/json",
                    "content-length": str(body.stat().st_size),
                },
            )
        )
        path = f"/v1/messages/batches/{batch['id']}"
        while batch["processing_status"] != "ended":
            time.sleep(interval)
            batch = object_of(client.get(path))
        decode = msgspec.json.Decoder(Line).decode
        with client.stream("GET", f"{path}/results") as response:
            response.raise_for_status()
            print(sum(decode(line).result.type == "succeeded" for line in lines(response)))


def object_of(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer."""
    response.raise_for_status()
    return msgspec.json.decode(response.content)


def chunks(path: Path) -> Iterator[bytes]:
    """A file, piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def lines(response: httpx2.Response) -> Iterator[bytes]:
    """Whole lines of a stream of bytes."""
    rest = b""
    for chunk in response.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
