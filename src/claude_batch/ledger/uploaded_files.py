"""Transactions of uploaded documents: which exist, and which runs use them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, exists, insert, literal, select, update

from claude_batch.ledger.portable_sql import count_rows, insert_one, update_row, upsert
from claude_batch.ledger.schema import files, leaving_files, run_files, runs


class RememberedFile(NamedTuple):
    """An uploaded document."""

    id: int
    file_id: str
    """The API's id of the file."""
    checked: float
    """When the API was last known to have it."""
    tokens: int | None
    """Upper bound of its input tokens; None if unknown."""


def find_file(tx: Connection, workspace_id: int, digest: str) -> RememberedFile | None:
    """Return the file that holds this content; None if none was uploaded."""
    query = select(files.c.id, files.c.file_id, files.c.checked, files.c.tokens).where(
        files.c.workspace_id == workspace_id, files.c.digest == digest
    )
    row = tx.execute(query).first()
    return None if row is None else RememberedFile(*row)


def file_tokens(tx: Connection, file_id: str) -> int | None:
    """Return the upper bound of an uploaded file's input tokens; None if unknown."""
    return tx.scalar(select(files.c.tokens).where(files.c.file_id == file_id))


def note_tokens(tx: Connection, file: int, tokens: int) -> None:
    """Store the token bound of a file that was uploaded before bounds were recorded."""
    update_row(tx, files, file, tokens=tokens)


def use_file(tx: Connection, run_id: str, file: int) -> bool:
    """Record that a run uses a file. The file stays as long as the run does.

    Returns False if the file is not in the ledger any more.
    """
    if tx.scalar(select(files.c.id).where(files.c.id == file)) is None:
        return False
    tx.execute(upsert(run_files).values(run_id=run_id, file=file).on_conflict_do_nothing())
    return True


def confirm_file(tx: Connection, file: int, now: float) -> None:
    """Record that the API still has the file."""
    update_row(tx, files, file, checked=now)


def remember_file(
    tx: Connection,
    workspace_id: int,
    digest: str,
    file_id: str,
    *,
    media_type: str,
    size: int,
    tokens: int | None,
    now: float,
    instead_of: str | None = None,
) -> RememberedFile:
    """Store an upload; return the file that holds the content from now on.

    If another process has uploaded the same content meanwhile, that file is returned, and this
    upload is left to be deleted. ``tokens`` is the upper bound of its tokens, `None` if unknown.
    ``instead_of`` is the file that the API no longer has.
    """
    known = find_file(tx, workspace_id, digest)
    if known is None:
        values = {
            "workspace_id": workspace_id,
            "digest": digest,
            "file_id": file_id,
            "media_type": media_type,
            "size": size,
            "created": now,
            "checked": now,
            "tokens": tokens,
        }
        return RememberedFile(insert_one(tx, files, **values), file_id, now, tokens)
    if known.file_id == instead_of:
        update_row(tx, files, known.id, file_id=file_id, created=now, checked=now, tokens=tokens)
        return RememberedFile(known.id, file_id, now, tokens)
    tx.execute(insert(leaving_files).values(workspace_id=workspace_id, file_id=file_id))
    return known


def drop_run_files(tx: Connection, run_id: str) -> None:
    """Remove the records of the files that a run used."""
    tx.execute(delete(run_files).where(run_files.c.run_id == run_id))


def move_files(tx: Connection, source: int, target: int) -> None:
    """Move files between two rows that turned out to be one workspace.

    Files whose content the target already has stay behind; `dismiss_unused` finds them there.
    """
    there = select(files.c.digest).where(files.c.workspace_id == target)
    tx.execute(
        update(files)
        .where(files.c.workspace_id == source, files.c.digest.not_in(there))
        .values(workspace_id=target)
    )
    left = leaving_files.c.workspace_id
    tx.execute(update(leaving_files).where(left == source).values(workspace_id=target))


# A run may have begun to use a file while it was dropped.
_used = exists().where(run_files.c.file == files.c.id, run_files.c.run_id == runs.c.id)


def count_unused(tx: Connection) -> int:
    """Return how many files no run uses, or are to be deleted, in all workspaces."""
    return count_rows(tx, files, ~_used) + count_rows(tx, leaving_files)


def dismiss_unused(tx: Connection, workspace_id: int, merged: Collection[int]) -> int:
    """Mark the files of a workspace that no run uses for deletion; return their number.

    ``merged`` are the rows that were merged into the workspace, to which no key leads any more.
    """
    unused = (files.c.workspace_id.in_((workspace_id, *merged)), ~_used)
    found = select(literal(workspace_id), files.c.file_id).where(*unused).distinct()
    tx.execute(insert(leaving_files).from_select(["workspace_id", "file_id"], found))
    count = tx.execute(delete(files).where(*unused)).rowcount
    tx.execute(delete(run_files).where(run_files.c.file.not_in(select(files.c.id))))
    return count


def files_leaving(tx: Connection, workspace_id: int) -> list[str]:
    """Return the files that are to be deleted at the API."""
    query = select(leaving_files.c.file_id).where(leaving_files.c.workspace_id == workspace_id)
    return list(tx.scalars(query))


def file_left(tx: Connection, workspace_id: int, file_id: str) -> None:
    """Record that the API has deleted a file."""
    tx.execute(
        delete(leaving_files).where(
            leaving_files.c.workspace_id == workspace_id, leaving_files.c.file_id == file_id
        )
    )
