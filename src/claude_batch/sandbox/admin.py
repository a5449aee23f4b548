"""The sandbox's own routes, under `/sandbox`: billing, log, fault plan and clock.

They need no key, are never faulty, and do not appear in the log. They answer only programs of this
machine. A page in the user's browser can also reach a port of the loopback: it can send simple
requests to another site, which then carry `Origin`, or, once its own name resolves to the loopback
(DNS rebinding), it can call the port as its own site, with its own name in `Host`. So a caller
without the token must be on this machine, must use a name of the loopback, and must not be a page.
docs/how-to/sandbox.md lists the routes.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .api_errors import ApiError, as_api_error, error_body
from .fault_plan import FaultPlan, PlanError, load_plan
from .http_calls import json_response, stream
from .results import chunks, usage_of
from .state import IMPOSSIBLE_TIME, OUTCOMES, Batch
from .token_usage import params_sha256

if TYPE_CHECKING:
    from .service import Sandbox

# Access control -----------------------------------------------------------------------------------

TOKEN_HEADER = "x-sandbox-token"


def check_caller(http: HttpRequest, token: str | None) -> None:
    """Raise `ApiError` (403) for a caller that may not use the sandbox's own routes."""
    given = http.headers.get(TOKEN_HEADER)
    if token and given is not None and hmac.compare_digest(token.encode(), given.encode()):
        return
    if "origin" in http.headers or http.headers.get("sec-fetch-site", "none") != "none":
        raise _refused("not from a page in a browser")
    if not _is_loopback_name(http.headers.get("host", "")):
        raise _refused("only by a name of the loopback, such as 127.0.0.1")
    # None: a Unix socket, or no network at all.
    if http.client is not None and not _is_loopback(http.client.host):
        raise _refused("only from the machine that it runs on")


def _refused(words: str) -> ApiError:
    return ApiError(
        "permission_error",
        f"the sandbox's own routes can be called {words}, or with its --admin-token in the header "
        f"{TOKEN_HEADER}",
    )


def _is_loopback_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = name.removeprefix("[").removesuffix("]").lower()
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback


# Admin --------------------------------------------------------------------------------------------

MAX_ADMIN_BYTES = 8_000_000
"""Maximum body size of these routes, in bytes."""


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of the clock: `advance` is added to the offset, `offset` replaces it. Seconds."""

    advance: float | None = None
    offset: float | None = None


class _Asked(msgspec.Struct):
    model: Any = None


_asked = msgspec.json.Decoder(_Asked)


def model_of(raw: bytes) -> str | None:
    """Return the model in the params, which may be an alias of the answer's."""
    try:
        model = _asked.decode(raw).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return model if isinstance(model, str) else None


def hashes_of(batch: Batch) -> list[str]:
    """Return the SHA-256 of each request's params, computed once per batch on first use."""
    if batch.hashes is None:
        batch.hashes = [params_sha256(bytes(entry.params)) for entry in batch.entries]
    return batch.hashes


def billed(sandbox: Sandbox, batch_id: str | None) -> Iterator[dict[str, Any]]:
    """Yield a record for each request processed, canceled or expired, in batches and live."""
    for batch in list(sandbox.batches):
        if batch.ended_at is None or batch_id not in (None, batch.id):
            continue
        hashes = hashes_of(batch)
        for position, entry in enumerate(batch.entries):
            usage = usage_of(batch, position, sandbox.settings.seed, sandbox.files)
            ending = batch.ending(position)
            yield {
                "route": "batch",
                "batch_id": batch.id,
                "custom_id": entry.custom_id,
                "message_id": f"msg_{batch.id[9:]}{position:06d}",
                "outcome": ending.outcome,
                "error_type": ending.error.type if ending.error else None,
                "model": model_of(bytes(entry.params)),
                "usage": usage,
                "params_sha256": hashes[position],
                "accepted_at": batch.created_at,
                "processed_at": batch.ended_at,
            }
    for record in list(sandbox.batches.live) if batch_id is None else []:
        yield {
            "route": "live",
            "batch_id": None,
            "custom_id": None,
            "message_id": record.message_id,
            "outcome": record.outcome,
            "error_type": record.error_type,
            "model": model_of(record.raw),
            "usage": record.usage,
            "params_sha256": params_sha256(record.raw),
            "accepted_at": record.processed_at,
            "processed_at": record.processed_at,
        }


def summary(sandbox: Sandbox, batch_id: str | None) -> dict[str, Any]:
    """Return billing counts without usage: fast for a batch of 100,000.

    `paid_more_than_once` counts the params (by hash) that succeeded, and so were paid for, more
    than once. `processed_more_than_once` counts those that were processed more than once, with any
    outcome.
    """
    outcomes = Counter[str](dict.fromkeys(OUTCOMES, 0))
    processed: Counter[str] = Counter()
    paid: Counter[str] = Counter()
    ended = [
        batch
        for batch in list(sandbox.batches)
        if batch.ended_at is not None and batch_id in (None, batch.id)
    ]
    for batch in ended:
        outcomes.update(batch.counts)
        hashes = hashes_of(batch)
        processed.update(hashes[: batch.processed])
        lost = {at for at, ending in batch.endings.items() if ending.outcome != "succeeded"}
        paid.update(hashes[at] for at in range(batch.processed) if at not in lost)
    live = list(sandbox.batches.live) if batch_id is None else []
    for record in live:
        outcomes[record.outcome] += 1
        digest = params_sha256(record.raw)
        processed[digest] += 1
        if record.outcome == "succeeded":
            paid[digest] += 1
    return {
        "requests": sum(outcomes.values()),
        "batches": len(ended),
        "live": len(live),
        "outcomes": dict(outcomes),
        "paid": paid.total(),
        "distinct_params": len(processed),
        "paid_more_than_once": sum(count > 1 for count in paid.values()),
        "processed_more_than_once": sum(count > 1 for count in processed.values()),
    }


def admin_routes(sandbox: Sandbox) -> list[Route]:
    """Return the routes under `/sandbox`."""

    async def healthz(_: HttpRequest) -> Response:
        return json_response({"ok": True, "now": sandbox.clock.now()})

    async def billing(http: HttpRequest) -> Response:
        await sandbox.batches.settle()
        batch_id = http.query_params.get("batch_id")
        if http.query_params.get("summary") == "true":
            # Hashing 100,000 params takes a second or two: other calls continue meanwhile.
            return json_response(await asyncio.to_thread(summary, sandbox, batch_id))
        pieces = chunks(_listed(billed(sandbox, batch_id)))
        return StreamingResponse(stream(pieces), media_type="application/json")

    async def log(http: HttpRequest) -> Response:
        if http.method == "DELETE":
            sandbox.log.clear()
        return json_response(list(sandbox.log))

    async def set_plan(plan: FaultPlan) -> None:
        # The plan before decides the requests that were due before.
        await sandbox.batches.settle()
        sandbox.endings.plan = plan

    async def faults(http: HttpRequest) -> Response:
        if http.method == "POST":
            await set_plan(load_plan(await _body(http)))
        elif http.method == "DELETE":
            await set_plan(FaultPlan())
        return json_response(sandbox.plan.as_written())

    async def counters(_: HttpRequest) -> Response:
        return json_response(sandbox.plan.counters())

    async def clock(http: HttpRequest) -> Response:
        if http.method == "POST":
            change = msgspec.json.decode(await _body(http), type=ClockChange)
            before = sandbox.clock.offset
            if change.offset is not None:
                sandbox.clock.offset = change.offset
            sandbox.clock.offset += change.advance or 0.0
            if not sandbox.clock.is_possible:
                sandbox.clock.offset = before
                raise PlanError(IMPOSSIBLE_TIME)
        return json_response({"now": sandbox.clock.now(), "offset": sandbox.clock.offset})

    table: list[tuple[str, Callable[..., Any], list[str]]] = [
        ("/sandbox/healthz", healthz, ["GET"]),
        ("/sandbox/billing", billing, ["GET"]),
        ("/sandbox/log", log, ["GET", "DELETE"]),
        ("/sandbox/faults", faults, ["GET", "POST", "DELETE"]),
        ("/sandbox/faults/counters", counters, ["GET"]),
        ("/sandbox/clock", clock, ["GET", "POST"]),
    ]
    token = sandbox.settings.admin_token
    return [
        Route(path, _guarded(handler, token), methods=methods) for path, handler, methods in table
    ]


async def _body(http: HttpRequest) -> bytes:
    """Return the whole body; raises `ApiError` (413) above `MAX_ADMIN_BYTES`."""
    held = bytearray()
    async for part in http.stream():
        held += part
        if len(held) > MAX_ADMIN_BYTES:
            raise ApiError(
                "request_too_large", f"Request exceeds the maximum size of {MAX_ADMIN_BYTES} bytes"
            )
    return bytes(held)


def _guarded(handler: Callable[..., Any], token: str | None) -> Callable[..., Any]:
    """Restrict a handler to permitted callers; answer an unreadable body with 400."""

    async def wrapped(http: HttpRequest) -> Response:
        try:
            check_caller(http, token)
            return await handler(http)
        except (PlanError, msgspec.DecodeError, UnicodeDecodeError) as error:
            refused = ApiError("invalid_request_error", str(error))
        except Exception as error:
            refused = as_api_error(error, http.url.path)
        return json_response(error_body(refused, "req_sandbox"), refused.status)

    return wrapped


def _listed(records: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Yield the records as the text of one JSON list, one per line."""
    opened = b"[\n"
    for record in records:
        yield opened + msgspec.json.encode(record)
        opened = b",\n"
    yield b"\n]\n" if opened == b",\n" else b"[]\n"
