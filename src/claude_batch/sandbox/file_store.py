"""The files of a sandbox: uploads, and the sources of requests that refer to them.

A file belongs to a workspace. Its content is kept after deletion, for batches that were processed
before. Before API version 2026-10-21, the endpoints and `file` sources need a beta.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, cast

from .api_errors import ApiError
from .validation import FILES_VERSION, Block, CallContext, Request, blocks_of

FILES_BETA = "files-api-2025-04-14"
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
FILE_MARK = b'"file_id"'
_EXAMPLE = ("example.txt", "text/plain", b"Example data", "2026-01-01T00:00:00.000000+00:00")


@dataclass(slots=True)
class StoredFile:
    """One uploaded file."""

    id: str
    workspace: str
    filename: str
    mime_type: str
    data: bytes
    created_at: str
    downloadable: bool = False
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the API's file object."""
        return {
            "id": self.id,
            "type": "file",
            "filename": self.filename,
            "mime_type": self.mime_type,
            "size_bytes": len(self.data),
            "created_at": self.created_at,
            "downloadable": self.downloadable,
            "expires_at": None,
        }


class Files:
    """All files, of all workspaces."""

    def __init__(self, *, any_id: bool = False) -> None:
        self.any_id: bool = any_id
        self._all: dict[str, StoredFile] = {}

    def add(
        self, workspace: str, filename: str, mime_type: str, data: bytes, created_at: str
    ) -> StoredFile:
        """Store a file."""
        file_id = f"file_{uuid.uuid4().hex[:24]}"
        stored = StoredFile(file_id, workspace, filename, mime_type, data, created_at)
        self._all[file_id] = stored
        return stored

    def find(self, file_id: str, workspace: str) -> StoredFile:
        """Return the file of this id in this workspace; raises `ApiError` (404).

        With the setting `any_id`, an unknown id returns an example, which is not stored.
        """
        stored = self._all.get(file_id)
        if stored is None or stored.deleted or stored.workspace != workspace:
            if self.any_id:
                return StoredFile(file_id, workspace, *_EXAMPLE, downloadable=True)
            raise ApiError("not_found_error", f"File not found: {file_id}")
        return stored

    def of(self, workspace: str) -> list[StoredFile]:
        """Return a workspace's files that were not deleted, newest first."""
        stored = reversed(self._all.values())
        return [each for each in stored if each.workspace == workspace and not each.deleted]

    def put_into(
        self, request: Request, workspace: str, context: CallContext, *, processed: bool = False
    ) -> None:
        """Replace file sources by the files' content; raises `ApiError`.

        ``processed``: the request was valid before, so a file that was deleted since is no error.
        """
        for position, message in enumerate(request.messages):
            for number, block in enumerate(blocks_of(message)):
                source: Any = block.source
                if not isinstance(source, dict):
                    continue
                fields = cast(dict[str, Any], source)
                if fields.get("type") == "file":
                    where = f"messages.{position}.content.{number}.source"
                    known = self._all.get(str(fields.get("file_id"))) if processed else None
                    if known is None:
                        need_beta(context, where)
                        known = self.find(str(fields.get("file_id")), workspace)
                        _check_kind(block, known, where)
                    block.source = _source(known)


def _check_kind(block: Block, stored: StoredFile, where: str) -> None:
    kind = stored.mime_type
    fits = kind in _IMAGES if block.type == "image" else kind in ("application/pdf", "text/plain")
    if not fits:
        raise ApiError(
            "invalid_request_error",
            f"{where}: a file of type {kind} cannot be the source of a block of type {block.type}",
        )


def _source(stored: StoredFile) -> dict[str, Any]:
    source = {"media_type": stored.mime_type, "file_id": stored.id}
    if stored.mime_type == "text/plain":
        return {**source, "type": "text", "data": stored.data.decode("utf-8", "replace")}
    return {**source, "type": "base64", "data": stored.data}


def need_beta(context: CallContext, what: str) -> None:
    """Raise `ApiError` (400) if files are used without their beta."""
    if context.version < FILES_VERSION and FILES_BETA not in context.betas:
        raise ApiError(
            "invalid_request_error",
            f"{what}: files need the beta {FILES_BETA} before version {FILES_VERSION}",
        )
