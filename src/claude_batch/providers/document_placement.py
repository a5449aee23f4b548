"""Documents of single calls: a document that many calls share is uploaded once, as in runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from claude_batch.actor.documents import Placing
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.tool_runner import Talk
from claude_batch.providers.document_upload import Uploads
from claude_batch.wire.encoding import EncodedRequest


class CallDocuments:
    """Place the documents of a provider's calls. Blocks on the API; not for an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: dict[str, Uploads] = {}

    def encode(
        self,
        engine: Engine,
        door: Door,
        encode: Callable[[Placing], EncodedRequest],
        *,
        actor: str,
        mode: BatchProcessingMode,
        talk: Talk | None,
    ) -> EncodedRequest:
        """Encode a call and place its documents. Raises `LedgerError`, `EngineStoppedError`."""
        # The run that groups the calls keeps their files for as long as it exists.
        run_id = engine.calls_run(door, actor, mode, talk).result()
        # One at a time, so that calls that share a document wait for its upload and reuse it.
        with self._lock:
            uploads = self._uploads.get(run_id)
            if uploads is None:
                uploads = self._uploads[run_id] = Uploads(engine, door)
                uploads.run_id = run_id
            return encode(uploads.place)
