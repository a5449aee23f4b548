"""API sessions: the clients and drivers of an engine, one for each base URL and credential.

The ledger identifies a key by its fingerprint. A new key may belong to another workspace, whose
lists and 404s are no evidence on what the first key has sent. So it gets a workspace of its own
until the API or the user identifies it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec

from claude_batch.core.errors import (
    AccountHaltedError,
    ActorConfigurationError,
    BatchTimeoutError,
    EngineStoppedError,
)
from claude_batch.core.quantities import count_of, format_duration
from claude_batch.core.settings import naming_ledger
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import live_calls, queries, workspaces
from claude_batch.ledger.single_calls import Place
from claude_batch.ledger.store import Ledger, Record, Transaction
from claude_batch.lifecycle.contact import workspace_of
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.live_answers import unanswered_words
from claude_batch.wire.batches_client import (
    ApiError,
    BatchesClient,
    Unreachable,
    misplaced_error,
)
from claude_batch.wire.connection import CredentialFault

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

# Sessions -----------------------------------------------------------------------------------------

TAKEOVER = 5.0
"""Seconds in which a driver can take the place of one whose key was refused, if its own works."""


class ApiSession(msgspec.Struct, eq=False):
    """The client and the driver of one base URL and credential."""

    client: BatchesClient
    driver: Driver
    task: asyncio.Task[None] | None = None

    @property
    def workspace_id(self) -> int:
        """The credential's workspace, as far as it is known."""
        return self.driver.workspace_id

    @property
    def trouble(self) -> str:
        """Why the API cannot be reached, in parentheses; empty if it has answered."""
        contact = self.driver.contact
        return f" ({contact.last_failure})" if contact.failures and not contact.made else ""

    @property
    def is_driven(self) -> bool:
        """Whether its driver runs, in the leader's place or waiting for it."""
        return self.task is not None and not self.task.done()

    def may_lift_halt(self, row: Record, now: float) -> bool:
        """Return whether a workspace is halted for another key, and this driver may take over.

        ``row`` is the workspace's. This key was accepted, and the other one was refused just now.
        A driver that leads since then lifts the halt, or has lifted it since the row was read.
        """
        contact = self.driver.contact
        return (
            row.halt_reason == "credentials"
            and 0 <= now - row.halted < TAKEOVER
            and self.is_driven
            and not (self.driver.is_leader and self.driver.led_since < row.halted)
            and contact.made
            and not contact.may_only_list
        )


async def open_client(
    base_url: str | None, api_key: str | None, *, write_timeout: float
) -> BatchesClient:
    """Return a client of the API. Raises `ActorConfigurationError`, also without a key."""
    try:
        client = BatchesClient(base_url=base_url, api_key=api_key, write_timeout=write_timeout)
    except CredentialFault as error:
        raise ActorConfigurationError(str(error)) from None
    if not client.credential:
        await client.close()
        raise ActorConfigurationError(
            "no API key: set ANTHROPIC_API_KEY, or name the variable that holds it "
            "with --api-key-env"
        )
    return client


def closed_words(location: str) -> str:
    """Describe that the provider of a ledger is closed, and how to open another one."""
    return (
        f"the provider is closed; create a new one with cb.ClaudeBatchProvider(ledger={location!r})"
    )


def closed_error(run_id: str, location: str) -> EngineStoppedError:
    """Return the error of a caller that waits for a run, or a call in it, with a closed provider.

    ``location`` is that of the ledger, here as below.
    """
    words = (
        f"the provider is closed and no longer waits for {run_id}; the run stays in the ledger. "
        f"Continue with `claude-batch resume {run_id}`, or repeat the call with a new provider"
    )
    return EngineStoppedError(naming_ledger(words, location))


def halted_error(
    row: Any, run_id: str, location: str, *, cancelled: bool = False
) -> AccountHaltedError:
    """Return the error of a run that waits in a halted workspace, from the workspace's row.

    ``cancelled``: the run was cancelled, and what the API has of it is not collected yet.
    """
    words = f"{row.halt_type}: {row.halt_message}" if row.halt_type else row.halt_message
    remedy = workspaces.remedy_of(row.halt_reason)
    is_behind = row.halt_reason == "ledger_behind"
    if cancelled:
        # The same call again would send its canceled requests.
        kept = (
            f"{run_id} was cancelled, so nothing more of it is sent; the results of what the API "
            "has of it are fetched later"
        )
        first = f"First run `{remedy}`" if is_behind else "Fix the cause"
        then = f"{first}, then run `claude-batch resume {run_id}`"
    else:
        kept = f"Nothing was marked failed: every request of {run_id} stays queued"
        then = (
            f"First run `{remedy}`, then repeat the call"
            if is_behind
            else f"Fix the cause, then run `{remedy} {run_id}` or repeat the call"
        )
    message = f"sending is halted ({row.halt_reason}): {words}. {kept}. {then}"
    return AccountHaltedError(
        naming_ledger(message, location),
        reason=row.halt_reason,
        error_type=row.halt_type,
        run_id=run_id,
    )


def trouble_of(tx: Transaction, run_id: str, session: object) -> str:
    """Return why a run waits for the API, in parentheses; empty if nothing is amiss.

    ``session`` is the caller's, if it has one.
    """
    if isinstance(session, ApiSession) and session.trouble:
        return session.trouble
    note = live_calls.last_note(tx, run_id)
    return f" ({unanswered_words(note)})" if note else ""


def timed_out_error(
    run_id: str,
    location: str,
    place: Place,
    mode: BatchProcessingMode,
    *,
    shared: bool,
    held: str,
    trouble: str,
) -> BatchTimeoutError:
    """Return the error of a call that was not answered in time.

    ``shared``: its request was not cancelled, because another caller waits for it. ``held`` is what
    holds the request back, if anything does, and ``trouble`` is from `trouble_of`.
    """
    if mode.on_timeout != "cancel":
        kept = (
            f"it stays in the ledger; continue with `claude-batch resume {run_id}`, or repeat the "
            "call"
        )
    elif shared:
        kept = "another call waits for it, so it was not cancelled"
    else:
        kept = "it was cancelled; the results so far are kept"
    where = _words_of(place)
    longest = f"within max_wait ({format_duration(mode.max_wait)})"
    if mode.deadline is not None and "max_wait" not in mode.model_fields_set:
        longest += ", or until two hours after its deadline"
    if held:
        where += f": {naming_ledger(held, location)}"
    return BatchTimeoutError(
        f"no answer {longest}, {run_id}, {where}{trouble}: {naming_ledger(kept, location)}",
        run_id=run_id,
        batch_ids=(place.remote_id,) if place.remote_id else (),
    )


def _words_of(place: Place) -> str:
    if place.remote_id is not None:
        return f"batch {place.remote_id}"
    if place.batch_state is BatchState.LIVE:
        return "in a live call"
    if place.batch_state is BatchState.SUBMITTING:
        return "being submitted"
    undecided = (BatchState.UNKNOWN, BatchState.UNRESOLVED)
    if place.batch_state in undecided or place.state is RequestState.LOST:
        return "it is unknown whether the API accepted the request"
    return "not yet submitted"


def run_timed_out_error(
    run_id: str,
    location: str,
    batch_ids: tuple[str, ...],
    unknown: int,
    *,
    max_wait: float,
    cancelled: bool,
    trouble: str = "",
) -> BatchTimeoutError:
    """Return the error of a run that did not finish in time.

    ``unknown`` is the number of requests that the API may or may not have accepted. ``trouble`` is
    from `trouble_of`.
    """
    kept = (
        "it was cancelled; the results so far are kept. To send the others again, repeat the "
        "command with a longer --max-wait"
        if cancelled
        else f"everything is kept; continue with `claude-batch resume {run_id}`"
    )
    if unknown:
        kept += (
            f". It is unknown whether the API accepted {count_of(unknown, 'request')}; not sent "
            "again, because they may have been paid for"
        )
    return BatchTimeoutError(
        f"{run_id} did not finish within max_wait ({format_duration(max_wait)}){trouble}: "
        f"{naming_ledger(kept, location)}",
        run_id=run_id,
        batch_ids=batch_ids,
    )


def other_key_error(run_id: str, location: str, theirs: Any, ours: Any) -> AccountHaltedError:
    """Return the error of a run in another workspace than this process's, from both rows."""
    named = f" ({theirs.name})" if theirs.name else ""
    words = f"{run_id} waits in the workspace of another key{named}; use that key"
    if theirs.base_url != ours.base_url:
        there, here = theirs.base_url.rstrip("/"), ours.base_url.rstrip("/")
        words = (
            f"{run_id} waits for another base URL, {there}, and this process uses {here}; "
            f"add `--base-url {there}` (base_url=)"
        )
    elif theirs.name is None or ours.name is None:
        confirm = naming_ledger(f"`claude-batch ledger confirm-key {run_id}`", location)
        words += f". If both keys belong to one workspace, confirm it with {confirm}"
    return AccountHaltedError(f"{words}. Everything is kept", reason="other_key", run_id=run_id)


@contextlib.contextmanager
def contact_faults(client: BatchesClient, kept: str, again: str) -> Generator[None]:
    """Convert exceptions of API calls into errors for users.

    ``kept`` describes what a refused key has left unchanged; ``again`` is the advice for a retry.
    """
    try:
        yield
    except ApiError as error:
        if error.fault.account_reason is not None:
            raise AccountHaltedError(
                f"{error.fault.message}. {kept}",
                reason=error.fault.account_reason,
                error_type=error.fault.error_type,
            ) from None
        raise EngineStoppedError(f"{misplaced_error(error, client.base_url)}. {again}") from None
    except Unreachable as error:
        raise EngineStoppedError(
            f"{client.base_url} cannot be reached: {error.reason}. {again}"
        ) from None


# Key confirmation ---------------------------------------------------------------------------------

_KEPT = "Nothing was confirmed"
_JOINING = "its batches are about to join another workspace"


async def confirm_key(ledger: Ledger, client: BatchesClient, run_id: str) -> bool:
    """Let the client's key continue a run's workspace; return False if it already does.

    Raises `ActorConfigurationError` if the API reports another workspace or the run was asked
    elsewhere. Raises `AccountHaltedError` if the key is refused, and `EngineStoppedError` if the
    API cannot be reached. Raises `LedgerError` if a process drives either workspace.
    """
    again = f"{_KEPT}; try `claude-batch ledger confirm-key {run_id}` again"
    with contact_faults(client, _KEPT, again):
        await client.list_page(limit=1)
    name = client.workspace
    with ledger.write() as tx:
        ours = workspace_of(tx, ledger, client)
        theirs = queries.run_row(tx, run_id).workspace_id
        here, there = workspaces.workspace_row(tx, ours), workspaces.workspace_row(tx, theirs)
    if ours == theirs:
        return False
    if there.base_url != here.base_url:
        raise ActorConfigurationError(
            f"{run_id} was sent to {there.base_url}, but this key is for {here.base_url}; "
            f"name the run's server with --base-url. {_KEPT}"
        )
    if name is not None and here.name is None:
        # A process drove this key's row, which belongs to the row with the API's name.
        with ledger.every_leader_lock((ours,), _JOINING), ledger.write() as tx:
            workspaces.name_workspace(tx, ours, ledger.fingerprint(client.credential), name)
        return await confirm_key(ledger, client, run_id)
    if there.name is not None and here.name is not None:
        raise ActorConfigurationError(
            f"the API reports that this key belongs to the workspace {here.name}, but "
            f"{run_id} waits in {there.name}; use a key of that workspace. {_KEPT}"
        )
    with (
        ledger.every_leader_lock((ours, theirs), _JOINING),
        ledger.write() as tx,
    ):
        workspaces.join_workspaces(tx, source=ours, target=theirs, name=here.name)
    return True
