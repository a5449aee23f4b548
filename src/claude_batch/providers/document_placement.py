"""Documents of single calls: those that many share are uploaded once, as in runs."""

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

__all__ = ["CallDocuments"]


class CallDocuments:
    """Where the documents of a provider's calls are. Waits for the API: not for an event loop."""

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
        """Encode a call, its documents placed. Raises `LedgerError` and `EngineStoppedError`."""
        # The run that holds the calls keeps their files, for as long as it is there.
        run_id = engine.calls_run(door, actor, mode, talk).result()
        # One at a time: others that share the document wait for its upload, and then name it.
        with self._lock:
            uploads = self._uploads.get(run_id)
            if uploads is None:
                uploads = self._uploads[run_id] = Uploads(engine, door)
                uploads.run_id = run_id
            return encode(uploads.place)
