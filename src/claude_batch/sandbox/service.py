"""The state of one sandbox, and the handlers of the API's routes."""

from __future__ import annotations

import asyncio
import mimetypes
from collections import deque
from dataclasses import replace
from email.message import Message
from typing import Any, cast
from urllib.parse import unquote

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from .answers import load_responder
from .api_errors import ApiError
from .fault_plan import (
    BATCH_CALLS,
    FaultPlan,
    LineAction,
    Meter,
    Unanswered,
    UnknownFields,
    load_plan,
)
from .http_calls import Call, events, json_response, stream
from .model_profiles import LISTED, Model, model_named
from .results import chunks, lines, message_json, spoiled
from .sandbox_settings import SandboxSettings
from .state import (
    FILE_MARK,
    Batch,
    Batches,
    Clock,
    Ending,
    Endings,
    Files,
    LiveRecord,
    StoredFile,
    answer_and_usage,
    need_beta,
)
from .validation import VERSIONS, CallContext, check_create, check_params

# Service ------------------------------------------------------------------------------------------

LOG_LENGTH = 20_000
"""Maximum calls in `GET /sandbox/log`."""

BATCH_ROUTES = frozenset({"create", "list", "retrieve", "cancel", "delete", "results"})

RETRY_AFTER = "10"
"""Seconds after which the API asks to look at a batch in progress again."""

MAX_MESSAGE_BYTES = 32_000_000
"""Maximum bytes of a live message's body."""


class Sandbox:
    """The whole state of one sandbox, and the handlers of the API's routes."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        responder = None if settings.responder is None else load_responder(settings.responder)
        self.files: Files = Files(any_id=settings.any_id)
        self.endings: Endings = Endings(
            responder, settings.seed, self.files, uses_tools=settings.uses_tools
        )
        self.clock: Clock = Clock(settings.clock_offset)
        self.batches: Batches = Batches(settings, self.endings, self.clock)
        self.log: deque[dict[str, Any]] = deque(maxlen=LOG_LENGTH)
        self._calls = 0
        self._meters: dict[str, Meter] = {}
        if settings.faults is not None:
            self.endings.plan = load_plan(settings.faults)

    @property
    def plan(self) -> FaultPlan:
        """The fault plan in force."""
        return self.endings.plan

    def new_request_id(self) -> str:
        """Return the next `request-id`."""
        self._calls += 1
        return f"req_sandbox_{self._calls:012d}"

    @property
    def reports_workspace(self) -> bool:
        """Return whether answers name the workspace."""
        planned = self.plan.plan.workspace_header
        return self.settings.workspace_header if planned is None else planned

    def authenticate(self, http: HttpRequest) -> str:
        """Return the workspace of the caller's key; raises `ApiError` (401, 403)."""
        key = key_of(http)
        if not key:
            raise ApiError("authentication_error", "x-api-key header is required")
        if "invalid" in key:
            raise ApiError("authentication_error")
        workspaces = self.plan.plan.workspaces
        if workspaces is None:
            workspaces = self.settings.workspaces
        wanted = http.headers.get("anthropic-workspace-id")
        # A key without a workspace is the organization's: the header chooses one.
        workspace = workspaces.get(key, wanted or self.settings.default_workspace)
        if wanted not in (None, workspace):
            raise ApiError("permission_error", "the API key belongs to another workspace")
        return workspace

    def batch_limits(self, workspace: str) -> dict[str, str]:
        """Count a call of a batch route, and return the headers of its rate limit."""
        now = self.clock.now()
        meter = self._meters.setdefault(workspace, Meter(BATCH_CALLS, now))
        meter.count(now)
        return meter.headers(now)

    def context(self, call: Call, workspace: str) -> CallContext:
        """Return the context of a call; raises `ApiError` (400) if it names no known version."""
        headers = call.http.headers
        version = headers.get("anthropic-version")
        if version is None:
            raise ApiError("invalid_request_error", "anthropic-version: header is required")
        if version not in VERSIONS:
            raise ApiError(
                "invalid_request_error", f'anthropic-version: "{version}" is not a valid version'
            )
        betas = ",".join(headers.getlist("anthropic-beta")).split(",")
        return CallContext(
            workspace=workspace,
            batch=call.route == "create",
            version=version,
            betas=frozenset(each.strip() for each in betas if each.strip()),
        )

    # Message batches

    async def create(self, call: Call) -> Response:
        """`POST /v1/messages/batches`."""
        body = await call.body(self.settings.max_body_bytes)
        entries = check_create(body, max_requests=self.settings.max_requests)
        listed_after = call.action.listed_after if isinstance(call.action, Unanswered) else 0.0
        batch = self.batches.create(entries, body, call.context, listed_after)
        return json_response(self.batches.as_json(batch, call.base_url))

    async def list(self, call: Call) -> Response:
        """`GET /v1/messages/batches`."""
        query = call.http.query_params
        after_id, before_id = query.get("after_id"), query.get("before_id")
        shown, more = self.batches.page(call.context.workspace, _limit(call), after_id, before_id)
        data = [self.batches.as_json(batch, call.base_url) for batch in shown]
        return _listed(data, more=more)

    async def retrieve(self, call: Call) -> Response:
        """`GET /v1/messages/batches/{id}`."""
        batch = self._batch(call)
        headers = {"retry-after": RETRY_AFTER} if batch.ended_at is None else None
        return json_response(self.batches.as_json(batch, call.base_url), headers=headers)

    async def cancel(self, call: Call) -> Response:
        """`POST /v1/messages/batches/{id}/cancel`."""
        batch = self._batch(call)
        self.batches.cancel(batch)
        return json_response(self.batches.as_json(batch, call.base_url))

    async def delete(self, call: Call) -> Response:
        """`DELETE /v1/messages/batches/{id}`."""
        batch = self._batch(call, ended=True)
        self.batches.delete(batch)
        return json_response({"id": batch.id, "type": "message_batch_deleted"})

    async def results(self, call: Call) -> Response:
        """`GET /v1/messages/batches/{id}/results`: streamed, generated while it is sent."""
        batch = self._batch(call, ended=True)
        if batch.ended_at is None:
            raise ApiError("not_found_error", f"Message Batch {batch.id} has no available results.")
        if self.batches.archived_at(batch) is not None:
            raise ApiError(
                "not_found_error",
                f"Results of message batch {batch.id} are no longer available: it is archived.",
            )
        sent = lines(batch, self.settings.seed, self.files)
        if isinstance(call.action, LineAction | UnknownFields):
            sent = spoiled(sent, call.action)
        return StreamingResponse(stream(chunks(sent)), media_type="application/x-jsonl")

    def _batch(self, call: Call, *, ended: bool = False) -> Batch:
        batch_id = unquote(call.http.path_params["batch_id"])
        return self.batches.find(batch_id, call.context.workspace, ended=ended)

    # Live messages

    async def messages(self, call: Call) -> Response:
        """`POST /v1/messages`, plain or streamed."""
        context = call.context
        raw = await call.body(min(self.settings.max_body_bytes, MAX_MESSAGE_BYTES))
        meter = self.plan.meter(context.workspace, self.clock.now())
        if meter is not None:
            meter.admit(self.clock.now(), len(raw) / 4)
        await asyncio.sleep(self.settings.live_latency)
        ending = self.endings.decide(raw, None, context, call.now)
        message_id = f"msg_live_{call.request_id[4:]}"
        if ending.error is not None:
            self._bill(message_id, raw, ending, None)
            raise ending.error
        request = check_params(raw, context)
        if FILE_MARK in raw:
            self.files.put_into(request, context, processed=True)
        given, usage = answer_and_usage(request, ending, self.settings.seed)
        message = message_json(message_id, request, given, usage, "standard")
        self._bill(message_id, raw, ending, message["usage"])
        if meter is not None:
            meter.answered(self.clock.now(), message["usage"])
            call.limit_headers = meter.headers(self.clock.now())
        if request.params.stream:
            sent = events(message, unknown_fields=isinstance(call.action, UnknownFields))
            return StreamingResponse(stream(sent), media_type="text/event-stream")
        return json_response(message)

    def _bill(
        self, message_id: str, raw: bytes, ending: Ending, usage: dict[str, Any] | None
    ) -> None:
        error_type = ending.error.type if ending.error else None
        self.batches.live.append(
            LiveRecord(message_id, raw, ending.outcome, error_type, usage, self.clock.now())
        )

    async def count_tokens(self, call: Call) -> Response:
        """`POST /v1/messages/count_tokens`."""
        raw = await call.body(min(self.settings.max_body_bytes, MAX_MESSAGE_BYTES))
        request = check_params(raw, call.context, counting=True)
        if FILE_MARK in raw:
            self.files.put_into(request, call.context)
        return json_response({"input_tokens": request.input_tokens})

    async def models(self, call: Call) -> Response:
        """`GET /v1/models` and `GET /v1/models/{id}`."""
        wanted = call.http.path_params.get("model_id")
        if wanted is not None:
            model = model_named(wanted)
            if model is None and self.settings.any_id:
                model = replace(_model(LISTED[0]), id=wanted)
            if model is None:
                raise ApiError("not_found_error", f"model: {wanted}")
            return json_response(_model_json(model))
        limit, after = _limit(call), call.http.query_params.get("after_id")
        left = LISTED[LISTED.index(after) + 1 :] if after in LISTED else LISTED
        data = [_model_json(_model(name)) for name in left[:limit]]
        return _listed(data, more=len(left) > limit)


def key_of(http: HttpRequest) -> str:
    """Return the API key (or bearer token) of a call; "" without one."""
    key = http.headers.get("x-api-key") or ""
    scheme, _, token = http.headers.get("authorization", "").partition(" ")
    return token.strip() if not key and scheme.lower() == "bearer" else key


def _model(name: str) -> Model:
    model = model_named(name)
    assert model is not None, "every listed model is known"
    return model


def _model_json(model: Model) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id.replace("-", " ").title(),
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": model.max_input_tokens,
        "max_tokens": model.max_tokens,
    }


def _listed(data: list[dict[str, Any]], *, more: bool) -> Response:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return json_response({"data": data, "has_more": more, "first_id": first, "last_id": last})


def _limit(call: Call) -> int:
    """Return how many entries a list asks for; raises `ApiError` (400)."""
    limit = _whole(call.http.query_params.get("limit", "20"))
    if limit is None or not 1 <= limit <= 1000:
        raise ApiError("invalid_request_error", "limit: Input should be from 1 to 1000")
    return limit


def _whole(text: str) -> int | None:
    # Short ones only: Python refuses to parse a number of thousands of digits.
    return int(text) if text.isdecimal() and len(text) <= 9 else None


# Uploads ------------------------------------------------------------------------------------------

MAX_FILE_BYTES = 500_000_000
"""Maximum bytes of one file."""


class FileCalls:
    """The handlers of the API's file routes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def upload(self, call: Call) -> Response:
        """`POST /v1/files`, one file in a form."""
        need_beta(call.context, "anthropic-beta")
        body = await call.body(MAX_FILE_BYTES + 10_000)
        filename, mime_type, data = _file_of(body, call.http.headers.get("content-type", ""))
        if not data:
            raise ApiError("invalid_request_error", "file: File is empty")
        now = self._sandbox.clock.timestamp()
        stored = self._sandbox.files.add(call.context.workspace, filename, mime_type, data, now)
        return json_response(stored.as_json())

    async def list(self, call: Call) -> Response:
        """`GET /v1/files`, files by id or a page of all."""
        need_beta(call.context, "anthropic-beta")
        query = call.http.query_params
        known = self._sandbox.files.of(call.context.workspace)
        if asked := [*query.getlist("ids"), *query.getlist("ids[]")]:
            if len(set(asked)) > 100:
                raise ApiError("invalid_request_error", "ids: at most 100 ids")
            return _page([each for each in known if each.id in asked], None)
        limit, page = _limit(call), query.get("page", "page_0")
        start = _whole(page[5:]) if page.startswith("page_") else None
        if start is None and self._sandbox.settings.any_id:
            start = 0
        if start is None:
            raise ApiError(
                "invalid_request_error", "page: Input should be the `next_page` of another page"
            )
        more = f"page_{start + limit}" if len(known) > start + limit else None
        return _page(known[start : start + limit], more)

    async def retrieve(self, call: Call) -> Response:
        """`GET /v1/files/{id}`."""
        return json_response(self._found(call).as_json())

    async def download(self, call: Call) -> Response:
        """`GET /v1/files/{id}/content`; the API gives an uploaded file's content to nobody."""
        stored = self._found(call)
        if not stored.downloadable:
            raise ApiError("invalid_request_error", "File is not downloadable")
        return Response(stored.data, media_type=stored.mime_type)

    async def delete(self, call: Call) -> Response:
        """`DELETE /v1/files/{id}`."""
        stored = self._found(call)
        stored.deleted = True
        return json_response({"id": stored.id, "type": "file_deleted"})

    def _found(self, call: Call) -> StoredFile:
        need_beta(call.context, "anthropic-beta")
        file_id = unquote(call.http.path_params["file_id"])
        return self._sandbox.files.find(file_id, call.context.workspace)


def _page(shown: list[StoredFile], more: str | None) -> Response:
    return json_response({"data": [each.as_json() for each in shown], "next_page": more})


def _file_of(body: bytes, content_type: str) -> tuple[str, str, bytes]:
    """Return name, type and content of the part called `file`; raises `ApiError` (400)."""
    kind, parameters = _header(content_type)
    boundary = parameters.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise ApiError("invalid_request_error", "content-type: must be multipart/form-data")
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode()):
        headers, *rest = part.split(b"\r\n\r\n", 1)
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (
                line.partition(":") for line in headers.decode("utf-8", "replace").splitlines()
            )
        }
        _, disposition = _header(fields.get("content-disposition", ""))
        if rest and disposition.get("name") == "file":
            filename = disposition.get("filename") or "unnamed"
            guessed = mimetypes.guess_type(filename)[0] or "application/octet-stream"
            mime_type, _ = _header(fields.get("content-type", guessed))
            return filename, mime_type, rest[0]
    raise ApiError("invalid_request_error", "file: Field required")


def _header(value: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["content-type"] = value
    parameters = message.get_params(failobj=[])
    # If a parameter is written with a charset (`name*=`), Python returns it in three parts. The
    # stubs of `get_params` only allow texts.
    given = cast("list[tuple[str, str | tuple[str, str, str]]]", parameters[1:])
    plain = {name: value if isinstance(value, str) else value[2] for name, value in given}
    return (parameters[0][0].lower() if parameters else ""), plain
