"""Key changes without a workspace name: the user confirms that the workspace is the same.

The ledger identifies a key by its fingerprint. A new key may belong to another workspace, whose
lists and 404s are no evidence on what the first key has sent. So it gets a workspace of its own
until the API or the user identifies it.
"""

from __future__ import annotations

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.ledger import enqueue, queries
from claude_batch.ledger.leader_locks import every_seat
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.doors import contact_faults
from claude_batch.wire.batches_client import BatchesClient

_KEPT = "Nothing was confirmed"


async def confirm_key(ledger: Ledger, client: BatchesClient, run_id: str) -> bool:
    """Let the client's key continue a run's workspace; return False if it already does.

    Raises `ActorConfigurationError` if the API reports another workspace or the run was asked
    elsewhere. Raises `AccountHaltedError` if the key is refused, and `EngineStoppedError` if the
    API cannot be reached. Raises `LedgerError` if a process drives either workspace.
    """
    path = ledger.sibling("")
    again = f"{_KEPT}; try `claude-batch ledger confirm-key {run_id}` again"
    with contact_faults(client, _KEPT, again):
        await client.list_page(limit=1)
    fingerprint = ledger.fingerprint(client.credential)
    with ledger.write() as tx:
        ours = enqueue.ensure_workspace(tx, client.base_url, fingerprint)
        if client.workspace is not None:
            ours = enqueue.name_workspace(tx, ours, fingerprint, client.workspace)
        theirs = queries.run_row(tx, run_id).workspace_id
        here, there = queries.workspace_row(tx, ours), queries.workspace_row(tx, theirs)
    if ours == theirs:
        return False
    if there.base_url != here.base_url:
        raise ActorConfigurationError(
            f"run {run_id} was sent to {there.base_url}, but this key is for {here.base_url}; "
            f"name the run's server with --base-url. {_KEPT}"
        )
    if there.name is not None and here.name is not None:
        raise ActorConfigurationError(
            f"the API reports that this key belongs to the workspace {here.name}, but run "
            f"{run_id} waits in {there.name}; use a key of that workspace. {_KEPT}"
        )
    with (
        every_seat(path, (ours, theirs), "what it drives is about to be moved"),
        ledger.write() as tx,
    ):
        enqueue.join_workspaces(tx, source=ours, target=theirs, name=here.name)
    return True
