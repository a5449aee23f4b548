"""The Files API's routes: upload, list, retrieve and delete."""

from __future__ import annotations

import mimetypes
from email.message import Message
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from starlette.responses import Response

from .api_errors import ApiError
from .file_store import StoredFile, need_beta
from .http_calls import Call, json_response

if TYPE_CHECKING:
    from .service import Sandbox

MAX_FILE_BYTES = 500_000_000
"""Maximum bytes of one file."""


class FileCalls:
    """The handlers of the API's file routes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def upload(self, call: Call) -> Response:
        """`POST /v1/files`, one file in a form."""
        need_beta(self._sandbox.context(call), "anthropic-beta")
        body = await call.body(MAX_FILE_BYTES + 10_000)
        filename, mime_type, data = _file_of(body, call.http.headers.get("content-type", ""))
        if not data:
            raise ApiError("invalid_request_error", "file: File is empty")
        now = self._sandbox.clock.timestamp()
        stored = self._sandbox.files.add(_workspace(call), filename, mime_type, data, now)
        return json_response(stored.as_json())

    async def list(self, call: Call) -> Response:
        """`GET /v1/files`, files by id or a page of all."""
        need_beta(self._sandbox.context(call), "anthropic-beta")
        query = call.http.query_params
        known = self._sandbox.files.of(_workspace(call))
        if asked := [*query.getlist("ids"), *query.getlist("ids[]")]:
            if len(set(asked)) > 100:
                raise ApiError("invalid_request_error", "ids: at most 100 ids")
            return _page([each for each in known if each.id in asked], None)
        limit, page = query.get("limit", "20"), query.get("page", "page_0")[5:]
        # Short ones only: Python refuses to parse a number of thousands of digits.
        numbers = all(each.isdecimal() and len(each) <= 9 for each in (limit, page))
        if not (numbers and 1 <= int(limit) <= 1000):
            raise ApiError("invalid_request_error", "limit: Input should be from 1 to 1000")
        start, limit = int(page), int(limit)
        more = f"page_{start + limit}" if len(known) > start + limit else None
        return _page(known[start : start + limit], more)

    async def retrieve(self, call: Call) -> Response:
        """`GET /v1/files/{id}`."""
        return json_response(self._found(call).as_json())

    async def delete(self, call: Call) -> Response:
        """`DELETE /v1/files/{id}`."""
        stored = self._found(call)
        stored.deleted = True
        return json_response({"id": stored.id, "type": "file_deleted"})

    def _found(self, call: Call) -> StoredFile:
        need_beta(self._sandbox.context(call), "anthropic-beta")
        file_id = unquote(call.http.path_params["file_id"])
        return self._sandbox.files.find(file_id, _workspace(call))


def _page(shown: list[StoredFile], more: str | None) -> Response:
    return json_response({"data": [each.as_json() for each in shown], "next_page": more})


def _workspace(call: Call) -> str:
    assert call.workspace is not None, "handlers run after authentication"
    return call.workspace


def _file_of(body: bytes, content_type: str) -> tuple[str, str, bytes]:
    """Return name, type and content of the part called `file`; raises `ApiError` (400)."""
    kind, told = _header(content_type)
    boundary = told.get("boundary", "")
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
    told = message.get_params(failobj=[])
    # If a parameter is written with a charset (`name*=`), Python returns it in three parts. The
    # stubs of `get_params` only allow texts.
    given = cast("list[tuple[str, str | tuple[str, str, str]]]", told[1:])
    plain = {name: value if isinstance(value, str) else value[2] for name, value in given}
    return (told[0][0].lower() if told else ""), plain
