"""Steps that replace a part of the program: a limit by a lower one, an extra by nothing."""

from __future__ import annotations

import importlib
import json
import os
import sys
from unittest import mock

from behave import given
from behave.runner import Context
from staging import lowered_limits

LIMITS = {
    "bytes in a request with marks": "claude_batch.wire.caching._LARGEST",
    "bytes in a batch": "claude_batch.lifecycle.conversation_driver.MAX_BODY_BYTES",
    "seconds for a function that a driver leaves": (
        "claude_batch.lifecycle.conversation_loop.LAST_LOOK"
    ),
    "bytes in an unpacked DOCX": "claude_batch.wire.media._LARGEST_DOCX",
    "bytes in an encoded request": "claude_batch.wire.encoding.MAX_BODY_BYTES",
    "PDFs whose bounds are remembered": "claude_batch.wire.bounds._REMEMBERED",
    "bytes in a line": "claude_batch.actor.inputs._LONGEST_LINE",
    "bytes in a result that is kept": "claude_batch.wire.batches_client.MOST_BODY_BYTES",
    "bytes in a text": "claude_batch.actor.inputs._LARGEST_TEXT",
    "characters in a field": "claude_batch.actor.inputs._LONGEST_FIELD",
    "seconds for cancelled batches to end": "claude_batch.providers.run_waiter.CANCEL_GRACE",
    "results that become final at once": "claude_batch.ledger.collected_batches.SLICE",
    "requests that middleware takes at once": "claude_batch.providers.run_storage.REQUESTS_AT_ONCE",
    "results in a page": "claude_batch.providers.run.PAGE",
    "second that the preflight waits for an answer": "claude_batch.providers.preflight.PATIENCE",
    "bytes in the results of a small batch": "claude_batch.lifecycle.collection.SMALL_BYTES",
    "result line that is stored at once": "claude_batch.lifecycle.collection.CHUNK_LINES",
    "countings before a call is stored": "claude_batch.lifecycle.calls.COUNTINGS",
    "kinds of calls whose run is remembered": "claude_batch.lifecycle.calls.RUNS_KEPT",
    "runs of calls that are forgotten at once": "claude_batch.lifecycle.call_queue.RUNS_AT_ONCE",
    "live calls that are looked at together": "claude_batch.lifecycle.live_driver.PAGE",
    "seconds between two lines about stored requests": "claude_batch.cli.run_command.LINES_APART",
    "second that an idle connection of the gateway lasts": (
        "claude_batch.gateway.gateway_app._KEEP_ALIVE"
    ),
    "seconds to send a probe": "claude_batch.cli.server_commands._TIMEOUT",
    "callers of probes": "claude_batch.cli.server_commands._MOST_CALLERS",
    "requests of a refused batch that fail together": (
        "claude_batch.lifecycle.submission.FAILED_TOGETHER"
    ),
    "prices that are remembered": "claude_batch.money.prices._REMEMBERED",
    "paces that a client remembers": "claude_batch.wire.live_client.PACES_KEPT",
    "run on the dashboard's first page": "claude_batch.dashboard.ledger_reader.NEWEST",
    "prefixes that are remembered": "claude_batch.wire.caching._KEPT",
}

EXTRAS = {
    "docx": ("mammoth",),
    "langchain": ("langchain_anthropic", "claude_batch.integrations.langchain"),
}


@given("a limit of {count:d} {what}")
def _(context: Context, count: int, what: str) -> None:
    patch = mock.patch(LIMITS[what], count)
    patch.start()
    context.add_cleanup(patch.stop)
    os.environ["LOWERED_LIMITS"] = json.dumps({**lowered_limits(), LIMITS[what]: count})


@given("the extra {name} is not installed")
def _(context: Context, name: str) -> None:
    patch = mock.patch.dict(sys.modules, dict.fromkeys(EXTRAS[name]))
    patch.start()
    context.add_cleanup(patch.stop)
    for module in EXTRAS[name]:
        package, _, own = module.rpartition(".")
        if not package:
            continue
        del sys.modules[module]  # it is imported again, and fails as if for the first time
        # `from package import module` would find what an earlier scenario has left on the package.
        whole = importlib.import_module(package)
        if hasattr(whole, own):
            context.add_cleanup(setattr, whole, own, getattr(whole, own))
            delattr(whole, own)
