"""Upload a document that many requests or calls share once, and refer to it by file id.

The number of a document's uses cannot be known beforehand, because requests are read as a stream.
So uses are counted, and the rule asks whether one more repetition would be too much.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from claude_batch.actor.documents import LEAST_UPLOADED, Content, Placing
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.ledger import uploaded_files
from claude_batch.lifecycle.api_sessions import ApiSession
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.tool_runner import ConversationSettings
from claude_batch.wire.batches_client import ApiError, Unreachable
from claude_batch.wire.bounds import content_bound
from claude_batch.wire.encoding import EncodedRequest

# Document upload ----------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

MOST_REPEATED = 1_000_000
"""Bytes that a document may occupy in a run's requests before it is uploaded instead."""

CHECKED_EVERY = 60.0
"""Seconds between checks that the API still has a file.

The interval is short so that a user who deleted a file can soon submit again; a check is one short
API call.
"""

_ENDINGS = {
    "application/pdf": "pdf",
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "text/plain": "txt",
}


def is_uploaded(size: int, uses: int) -> bool:
    """Return whether a document of ``size`` bytes is uploaded for its ``uses``-th request of a run.

    The first request always carries it inline, because a document of one request gains nothing.
    """
    return size >= LEAST_UPLOADED and uses > 1 and size * uses > MOST_REPEATED


class Uploads:
    """Documents of one run. `place` may block on the API; not for an event loop."""

    def __init__(self, engine: Engine, session: ApiSession) -> None:
        self._engine = engine
        self._session = session
        self.run_id: str = ""
        """The run that owns the documents; set before the first document is placed."""
        # Keyed by half a digest: a run may have a million documents, each used once.
        self._uses: dict[int, int] = {}
        self._known: dict[str, tuple[str | None, float]] = {}

    def place(self, content: Content) -> str | None:
        """Return the id of the uploaded file for a document, or None if it travels inline."""
        known, until = self._known.get(content.digest, (None, 0.0))
        if time.monotonic() < until:
            return known
        place = int(content.digest[:16], 16)
        uses = self._uses[place] = self._uses.get(place, 0) + 1
        if not is_uploaded(content.size, uses):
            return None
        try:
            found = self._remembered(content) or self._uploaded(content, uses)
        except (ApiError, Unreachable) as error:
            found = None
            _log.warning(
                "%s could not be uploaded (%s); it is sent inside each request instead",
                content.name,
                error,
                extra={"for_people": True},
            )
        # Calls of a process may share it for days; a later check notices if the file was deleted.
        self._known[content.digest] = (found, time.monotonic() + CHECKED_EVERY)
        return found

    def _remembered(self, content: Content) -> str | None:
        """Return the file of an earlier upload if the API still has it."""
        ledger, workspace_id = self._engine.ledger, self._session.workspace_id
        with ledger.read() as tx:
            known = uploaded_files.find_file(tx, workspace_id, content.digest)
        if known is None:
            return None
        now = ledger.now()
        stale = not 0 <= now - known.checked < CHECKED_EVERY
        if stale and not self._is_there(known.file_id):
            _log.info("%s: the API no longer has %s", content.name, known.file_id)
            return self._upload(content, instead_of=known.file_id)
        learned = None
        if known.tokens is None:
            learned = content_bound(content.media_type, content.data())
        with ledger.write() as tx:
            # It may have been pruned meanwhile.
            if not uploaded_files.use_file(tx, self.run_id, known.id):
                return None
            if stale:
                uploaded_files.confirm_file(tx, known.id, now)
            if learned is not None:
                uploaded_files.note_tokens(tx, known.id, learned)
        _log.info("%s was uploaded before, as %s", content.name, known.file_id)
        return known.file_id

    def _is_there(self, file_id: str) -> bool:
        try:
            return self._engine.do(self._session.client.has_file(file_id)).result()
        except (ApiError, Unreachable) as error:
            # Files are rarely deleted, and sending the document inline would cost more than
            # trusting it.
            _log.info("could not ask the API whether it still has %s: %s", file_id, error)
            return True

    def _uploaded(self, content: Content, uses: int) -> str:
        file_id = self._upload(content)
        _log.info(
            "%s (%s bytes) is uploaded once, as %s; from its use in request %d of the run on, "
            "requests name it instead of repeating it",
            content.name,
            f"{content.size:,}",
            file_id,
            uses,
            extra={"for_people": True},
        )
        return file_id

    def _upload(self, content: Content, instead_of: str | None = None) -> str:
        # The document's own name might contain characters the API rejects; the block has the title.
        name = f"{content.digest[:16]}.{_ENDINGS[content.media_type]}"
        client, data = self._session.client, content.data()
        # Computed while the data is in memory: a later budget needs the maximum cost of each
        # request.
        tokens = content_bound(content.media_type, data)
        sending = client.upload_file(name, data, content.media_type)
        file_id = self._engine.do(sending).result()
        reach(CrashPoint.AFTER_FILE_UPLOADED)
        with self._engine.ledger.write() as tx:
            known = uploaded_files.remember_file(
                tx,
                self._session.workspace_id,
                content.digest,
                file_id,
                media_type=content.media_type,
                size=content.size,
                tokens=tokens,
                now=self._engine.ledger.now(),
                instead_of=instead_of,
            )
            uploaded_files.use_file(tx, self.run_id, known.id)
        return known.file_id


# Document placement -------------------------------------------------------------------------------


class CallDocuments:
    """Place the documents of a provider's calls. Blocks on the API; not for an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: dict[str, Uploads] = {}

    def encode(
        self,
        engine: Engine,
        session: ApiSession,
        encode: Callable[[Placing], EncodedRequest],
        *,
        actor: str,
        mode: BatchProcessingMode,
        conversation: ConversationSettings | None,
    ) -> EncodedRequest:
        """Encode a call and place its documents. Raises `LedgerError`, `EngineStoppedError`."""
        # The run that groups the calls keeps their files for as long as it exists.
        run_id = engine.calls.run_of(session, actor, mode, conversation).result()
        # One at a time, so that calls that share a document wait for its upload and reuse it.
        with self._lock:
            uploads = self._uploads.get(run_id)
            if uploads is None:
                uploads = self._uploads[run_id] = Uploads(engine, session)
                uploads.run_id = run_id
            return encode(uploads.place)
