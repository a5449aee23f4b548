"""The ledger's tables. Times are seconds since the epoch (UTC); sizes are bytes.

A request's row is narrow and changes a few times; its params and its raw result line are written
once, in tables of their own, so that a change of state never rewrites them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

SCHEMA_VERSION = 3
"""Raised with every change of a table; a ledger of another version is not written to."""

metadata: MetaData = MetaData()


def _only(condition: str) -> dict[str, Any]:
    """What makes an index one of some rows alone."""
    # To name a dialect is to import it: that of a database that is not used costs every command
    # a third of what the whole of SQLAlchemy does.
    return {"sqlite_where": text(condition)}


# SQLite's own row number needs the type INTEGER exactly; other databases want 64 bits.
_Serial = BigInteger().with_variant(Integer, "sqlite")

meta: Table = Table(
    "meta",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)
"""``schema_version``; ``incarnation``, which tells this ledger from its copies, and
``former_incarnations``; ``salt``; ``stamp``; ``posts``, which the high-water mark counts too."""

workspaces: Table = Table(
    "workspaces",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("base_url", String, nullable=False),
    # ``anthropic-workspace-id``; None until the API has sent it.
    Column("name", String),
    # Rises whenever the driver's seat changes hands.
    Column("epoch", Integer, nullable=False, default=0),
    # Why and since when sending is halted; None where it is not.
    Column("halt_reason", String),
    Column("halt_type", String),
    Column("halt_message", Text),
    Column("halted", Float),
    # Probes since then that were refused too, and when the next one may leave.
    Column("probes", Integer, nullable=False, default=0, server_default=text("0")),
    Column("next_probe", Float),
    # Under ``exclusive_workspace``: batches made before this server time were here already.
    Column("explained_until", Float),
    # Since when the ledger is known to be behind its high-water mark: nothing is sent.
    Column("behind", Float),
    # Nothing is uploaded before this time (a 429 or 529 asked to wait).
    Column("wait_until", Float),
    Column("wait_reason", Text),
)

credentials: Table = Table(
    "credentials",
    metadata,
    Column("base_url", String, primary_key=True),
    # A salted hash; the key itself is nowhere in the ledger.
    Column("fingerprint", String, primary_key=True),
    Column("workspace_id", _Serial, ForeignKey("workspaces.id"), nullable=False),
)

lanes: Table = Table(
    "lanes",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("workspace_id", _Serial, ForeignKey("workspaces.id"), nullable=False),
    Column("api_version", String, nullable=False),
    Column("betas", String, nullable=False),  # comma-separated, sorted
    Column("user_profile", String, nullable=False),  # "" for none
    UniqueConstraint("workspace_id", "api_version", "betas", "user_profile"),
)

runs: Table = Table(
    "runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),  # "run", or "calls": the single calls of one process
    Column("digest", String),
    Column("label", String),
    Column("actor", String, nullable=False),
    Column("workspace_id", _Serial, ForeignKey("workspaces.id"), nullable=False),
    Column("output", String),  # where the command line was told to write
    Column("output_format", String),  # and how; None where the name of the output tells
    Column("results_dir", String),  # the folder for one file a result, where one was named
    # The process that makes it: what a dead one had not wholly stored is removed.
    Column("process", String),
    Column("created", Float, nullable=False),
    Column("stored", Float),  # when it was wholly stored; nothing is packed before
    Column("cancelled", Float),
    Column("delivered", Float),
    # The W3C ``traceparent`` of who asked; None where nobody observes.
    Column("trace", String),
    Column("request_count", Integer, nullable=False, default=0),
    # The run's batch_processing, as `BatchProcessingMode` has it.
    Column("linger", Float, nullable=False),
    Column("max_requests", Integer, nullable=False),
    Column("poll_interval", Float, nullable=False),
    Column("max_poll_interval", Float, nullable=False),
    Column("max_wait", Float, nullable=False),
    Column("on_timeout", String, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("max_turns", Integer, nullable=False, default=10, server_default=text("10")),
    Column("turn_linger", Float, nullable=False, default=30.0, server_default=text("30")),
    Column("validation_attempts", Integer, nullable=False, default=1, server_default=text("1")),
    # Whether its conversations go on by themselves, and the functions that its tools are, as JSON.
    Column("converses", Boolean, nullable=False, default=False, server_default=text("0")),
    Column("tools", Text),
    # Whether some of its requests have a prefix.
    Column("prefixed", Boolean, nullable=False, default=False, server_default=text("0")),
    Index("ix_runs_digest", "digest"),
    # How and until when it is to be answered.
    Column("mode", String, nullable=False, server_default=text("'batch'")),
    Column("auto_threshold", Integer, nullable=False, server_default=text("0")),
    Column("live_concurrency", Integer, nullable=False, server_default=text("8")),
    Column("live_retry", String, nullable=False, server_default=text("'safe'")),
    Column("fallback", String, nullable=False, server_default=text("'live'")),
    Column("deadline", Float),
    Column("deadline_margin", Float),  # as it was set; None where it is learned
    # Since when its requests are packed no more, since the deadline is near; and the margin then.
    Column("past_margin", Float),
    Column("margin", Float),
    # Once it is known: "met", or why the deadline was missed; and when all had ended.
    Column("deadline_outcome", Text),
    Column("deadline_closed", Float),
    # Since when what is queued of it goes to the live API; None where it goes into batches.
    Column("live", Float),
    Index("ix_runs_live", "live", **_only("live IS NOT NULL")),
    Index(
        "ix_runs_deadline", "deadline", **_only("deadline IS NOT NULL AND deadline_closed IS NULL")
    ),
)

requests: Table = Table(
    "requests",
    metadata,
    Column("seq", _Serial, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("run_id", String, ForeignKey("runs.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("key", String),
    Column("lane_id", _Serial, ForeignKey("lanes.id"), nullable=False),
    Column("size", Integer, nullable=False),  # bytes of its params
    Column("state", String, nullable=False),
    Column("due", Float, nullable=False),  # when it asks to be packed at the latest
    Column("created", Float, nullable=False),
    Column("cancelled", Boolean, nullable=False, default=False),
    Column("attempts", Integer, nullable=False, default=0),  # outcomes so far
    # Outcomes that were there when it was last retried on order: they exhaust no attempts.
    Column("forgiven", Integer, nullable=False, default=0, server_default=text("0")),
    # POSTs that carried it in batches before the present one; those of the present one are
    # ``batches.posts``, so that a POST changes one row and not a hundred thousand.
    Column("sendings", Integer, nullable=False, default=0),
    Column("batch_id", _Serial, ForeignKey("batches.id")),
    Column("answered_by", Integer),  # the sending whose result is final
    # The W3C ``traceparent`` of a single call; what is asked together has it on its run.
    Column("trace", String),
    # The ledger-wide stamp of the transaction that made it final: the order of completion.
    Column("finished", Integer),
    # 1 where it goes to the live API while its run's others go into batches.
    Column("live", Integer),
    # With ``live`` in front, so that it is chosen before the index of all that is queued.
    Index("ix_requests_live", "live", "lane_id", **_only("live IS NOT NULL AND state = 'queued'")),
    # The same number for all that bear the same marks for the prompt cache; None for no marks.
    Column("prefix", BigInteger),
    # The most that one sending of it can cost, in nano-dollars; None as long as no budget has
    # asked for it, -1 where nothing tells.
    Column("reserve", BigInteger),
    UniqueConstraint("run_id", "position"),
    Index("ix_requests_batch", "batch_id", **_only("batch_id IS NOT NULL")),
    Index("ix_requests_queued", "lane_id", **_only("state = 'queued'")),
    Index("ix_requests_continuing", "run_id", **_only("state = 'continuing'")),
    Index("ix_requests_held", "lane_id", **_only("state = 'held'")),
    Index("ix_requests_finished", "run_id", "finished", **_only("finished IS NOT NULL")),
)

params: Table = Table(
    "params",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

conversations: Table = Table(
    "conversations",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("turns", Integer, nullable=False),  # answers that another turn has followed
    Column("rejected", Integer, nullable=False),  # answers that were not of the shape asked for
    Column("consumed", Integer, nullable=False),  # the last sending whose answer was gone on from
    Column("cost", BigInteger),  # of those answers, in nano-dollars; None where not known
    Column("first_params", LargeBinary),  # what the caller asked, once ``params`` say more
    Column("stopped", String),  # why it cannot go on: `claude_batch.ledger.conversations`
    Column("note", Text),  # the same in words
)
"""Requests that took more than one answer, or stopped between two."""

tool_calls: Table = Table(
    "tool_calls",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    # The sending whose answer makes the call, and the API's id of the call.
    Column("sending", Integer, primary_key=True, autoincrement=False),
    Column("tool_use_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("process", String, nullable=False),  # that runs it, or ran it
    Column("started", Float, nullable=False),
    Column("finished", Float),
    Column("output", LargeBinary),  # content of the tool's result, as JSON
    Column("is_error", Boolean),
)
"""Calls of Python functions: a row says that one has started, and then what came of it."""

call_keys: Table = Table(
    "call_keys",
    metadata,
    Column("actor", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("request_seq", _Serial, nullable=False),
)
"""The keys of single calls: a second call with the same actor and key joins the first."""

calls: Table = Table(
    "calls",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),  # of the params
    # The process whose caller waits; None where the caller has gone.
    Column("process", String),
    Column("taken", Float),  # when the answer reached its caller
    Index("ix_calls_digest", "digest", **_only("taken IS NULL")),
    Index("ix_calls_process", "process", **_only("taken IS NULL")),
)
"""Single calls without a key: who waits for them, and whether their answers were taken."""

batches: Table = Table(
    "batches",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("lane_id", _Serial, ForeignKey("lanes.id"), nullable=False),
    Column("state", String, nullable=False),
    # Unique in its workspace: two servers may use the same ids. `mark_submitted` sees to it.
    Column("remote_id", String),
    Column("request_count", Integer, nullable=False),
    Column("params_bytes", BigInteger, nullable=False),
    Column("poll_interval", Float, nullable=False),
    Column("max_poll_interval", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("posts", Integer, nullable=False, default=0),
    Column("broken_uploads", Integer, nullable=False, default=0),  # in a row, before ``armed``
    # The intent: what the API's list held before the POST, and when.
    Column("snapshot", Text),
    Column("intended", Float),
    Column("server_time", Float),
    Column("armed", Float),
    Column("submitted", Float),
    Column("ended", Float),
    Column("collected", Float),
    Column("next_check", Float),
    Column("not_found_since", Float),
    Column("cancel_requested", Float),
    Column("fetches", Integer, nullable=False, default=0),
    # Results that the last complete fetch lacked; the first and the last such fetch, and when the
    # gap is given up, by the server's clock. None if no fetch has lacked any.
    Column("missing", Integer),
    Column("missing_since", Float),
    Column("missing_seen", Float),
    Column("missing_until", Float),
    Column("counts", Text),  # the API's request_counts once ended, as JSON
    # While it is unknown whether a POST was accepted. Settling counts in server time, from the
    # first list after the POST ended; ``settled`` is the first complete walk of the list after it.
    Column("unknown_since", Float),
    Column("settling_from", Float),
    Column("settled", Float),
    # POSTs in a row without an answer that the list then proved not to have been accepted.
    Column("silent", Integer, nullable=False, default=0, server_default=text("0")),
    # How the API's id was found where no answer told it: ``proved`` by a custom_id of its results,
    # or ``assumed`` under ``exclusive_workspace``.
    Column("adopted", String),
    # A 400 that names no request: the batch that this one is a half of, and what was said of it.
    Column("half_of", _Serial),
    Column("refusal", Text),
    Column("note", Text),  # the last thing that went wrong, in words
    # The day (UTC, counted since the epoch) on which it was packed: whose budget pays for it.
    Column("day", Integer),
    Index("ix_batches_state", "state"),
    Index("ix_batches_remote", "remote_id", **_only("remote_id IS NOT NULL")),
    Index("ix_batches_day", "day"),
)

batch_runs: Table = Table(
    "batch_runs",
    metadata,
    Column("batch_id", _Serial, ForeignKey("batches.id"), primary_key=True),
    Column("run_id", String, ForeignKey("runs.id"), primary_key=True),
    # Nano-dollars, of this run's requests in this batch; see `claude_batch.ledger.budgets`.
    Column("reserved", BigInteger),
    Column("spent", BigInteger),
    # Of live calls: what may have been paid without being known.
    Column("kept", BigInteger),
    Index("ix_batch_runs_run", "run_id"),
)

budgets: Table = Table(
    "budgets",
    metadata,
    Column("scope", String, primary_key=True),  # "run", "actor" or "day"
    Column("name", String, primary_key=True),  # the run's id, the actor's name, or ""
    Column("amount", BigInteger, nullable=False),  # nano-dollars
    # What a flag, a keyword or an actor's YAML last asked for: who asks for the same again does
    # not take back what was set by hand since.
    Column("declared", BigInteger),
    Column("warned", Integer, nullable=False, default=0),  # the percentage last warned at
)
"""What may be spent. No row, no budget."""

removed_costs: Table = Table(
    "removed_costs",
    metadata,
    Column("actor", String, primary_key=True),
    Column("day", Integer, primary_key=True),  # as in ``batches``
    Column("spent", BigInteger, nullable=False),  # nano-dollars, doubtful ones included
)
"""What runs have cost that are no longer in the ledger: budgets remember it."""

candidates: Table = Table(
    "candidates",
    metadata,
    Column("batch_id", _Serial, ForeignKey("batches.id"), primary_key=True),
    Column("remote_id", String, primary_key=True),
    Column("state", String, nullable=False),  # `claude_batch.core.states.CandidateState`
    Column("seen", Float, nullable=False),
    Column("not_found_since", Float),
    Column("fetches", Integer, nullable=False, default=0),
    Column("note", Text),
)
"""Batches at the API that may be what became of an unknown sending."""

former_members: Table = Table(
    "former_members",
    metadata,
    Column("batch_id", _Serial, ForeignKey("batches.id"), primary_key=True),
    Column("request_seq", _Serial, primary_key=True),
    Column("sending", Integer, nullable=False),
)
"""Requests that left a batch although its POST may have been accepted: late lines are theirs."""

results: Table = Table(
    "results",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("sending", Integer, primary_key=True, autoincrement=False),
    Column("batch_id", _Serial, ForeignKey("batches.id"), nullable=False),
    Column("outcome", String, nullable=False),
    Column("disposition", String, nullable=False),
    Column("error_type", String),
    Column("raw", LargeBinary, nullable=False),
    Column("input_tokens", Integer, nullable=False, default=0),
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("cache_read_tokens", Integer, nullable=False, default=0),
    Column("cache_5m_tokens", Integer, nullable=False, default=0),
    Column("cache_1h_tokens", Integer, nullable=False, default=0),
    Column("web_searches", Integer, nullable=False, default=0),
    Column("model", String),  # the model that answered
    # Nano-dollars; None where the model's price is not known. What it cost, what the same would
    # have cost live, and what it would have cost without a prompt cache.
    Column("cost", BigInteger),
    Column("live_cost", BigInteger),
    Column("uncached_cost", BigInteger),
    # When a live call was answered. None for a line of a batch, which was answered when it ended.
    Column("answered", Float),
    Index("ix_results_batch", "batch_id"),
)

digests: Table = Table(
    "digests",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),  # of the params, without marks for the cache
    Index("ix_digests_digest", "digest"),
)
"""By which equal requests are found, where a run or a call asks for it."""

doubles: Table = Table(
    "doubles",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("of_seq", _Serial, nullable=False),
)
"""Requests that are not sent: each has the answer of another one."""

primers: Table = Table(
    "primers",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("run_id", String, ForeignKey("runs.id"), nullable=False),
    Column("prefix", BigInteger, nullable=False),
    Index("ix_primers_prefix", "run_id", "prefix"),
)
"""Requests that go ahead: others of their run and prefix are held until they have an outcome."""

token_counts: Table = Table(
    "token_counts",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model", String, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes of the params that were counted
    Column("tokens", BigInteger, nullable=False),
    Column("counted", Float, nullable=False),
    Index("ix_token_counts_model", "model"),
)
"""What the API counted when it looked at requests before their run was sent."""

strange_lines: Table = Table(
    "strange_lines",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("batch_id", _Serial, ForeignKey("batches.id"), nullable=False),
    Column("digest", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    UniqueConstraint("batch_id", "digest"),
)
"""Lines of a results stream that are unreadable, or speak of requests that the batch has not."""

files: Table = Table(
    "files",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("workspace_id", _Serial, ForeignKey("workspaces.id"), nullable=False),
    Column("digest", String, nullable=False),  # SHA-256 of the content, in hex
    Column("file_id", String, nullable=False),
    Column("media_type", String, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("checked", Float, nullable=False),  # when the API was last known to have it
    Column("tokens", BigInteger),  # the most that it can come to; NULL if that is not known
    UniqueConstraint("workspace_id", "digest"),
)
"""Documents that were uploaded once, for the requests of many runs."""

run_files: Table = Table(
    "run_files",
    metadata,
    Column("run_id", String, ForeignKey("runs.id"), primary_key=True),
    Column("file", _Serial, ForeignKey("files.id"), primary_key=True),
    Index("ix_run_files_file", "file"),
)

leaving_files: Table = Table(
    "leaving_files",
    metadata,
    Column("workspace_id", _Serial, ForeignKey("workspaces.id"), primary_key=True),
    Column("file_id", String, primary_key=True),
)
"""Uploaded files that no run uses any more, until the API has deleted them."""
