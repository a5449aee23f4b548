"""The ledger's tables. Times are seconds since the epoch (UTC); sizes are bytes.

A request's row is narrow and changes a few times. Its params and its raw result line are written
once, in separate tables, so that a state change never rewrites them.
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
    and_,
    false,
    text,
)

SCHEMA_VERSION = 9
"""Schema version, raised with every table change. Ledgers of other versions are not written to."""

metadata: MetaData = MetaData()


def _only(condition: str) -> dict[str, Any]:
    """Return the options that make an index partial."""
    # Naming a dialect imports it. An unused dialect would cost every command a third of the import
    # time of the whole of SQLAlchemy.
    return {"sqlite_where": text(condition)}


# SQLite's row number needs the type INTEGER exactly; other databases need 64 bits.
_Serial = BigInteger().with_variant(Integer, "sqlite")
_Long = _Serial
"""Sums of money and of bytes, which pass 32 bits. SQLite's INTEGER has 64."""

meta: Table = Table(
    "meta",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)
"""Names: ``schema_version``; ``incarnation``, which distinguishes this ledger from its copies, and
``former_incarnations``; ``salt``; ``stamp``; ``posts``, which the high-water mark counts too; and
the user's own limits, by the names of their settings.
"""

workspaces: Table = Table(
    "workspaces",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("base_url", String, nullable=False),
    # ``anthropic-workspace-id``; None until the API has sent it.
    Column("name", String),
    # Incremented whenever the leader lock changes hands.
    Column("epoch", _Long, nullable=False, default=0),
    # Reason and start of a halt of sending; None while there is no halt.
    Column("halt_reason", String),
    Column("halt_type", String),
    Column("halt_message", Text),
    Column("halted", Float),
    # Refused probes since then, and the time of the next probe.
    Column("probes", Integer, nullable=False, default=0, server_default=text("0")),
    Column("next_probe", Float),
    # Under ``exclusive_workspace``: batches created before this server time existed already.
    Column("explained_until", Float),
    # Time since which the ledger is known to be behind its high-water mark; it sends nothing.
    Column("behind", Float),
    # Nothing is uploaded before this time, and why: ``batches_per_hour``, or the words of a 429 or
    # 529 response that asked to wait.
    Column("wait_until", Float),
    Column("wait_reason", Text),
    # The live calls of the last minute that a limit has counted, as JSON.
    Column("recent_calls", Text),
)

credentials: Table = Table(
    "credentials",
    metadata,
    Column("base_url", String, primary_key=True),
    # A salted hash; the key itself is never stored.
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
    Column("output", String),  # output path of the command line
    Column("output_format", String),  # None: the output's name decides
    Column("results_dir", String),  # folder for one file per result, if set
    # The process that stores the run. If it dies, an incomplete run is removed.
    Column("process", String),
    Column("created", Float, nullable=False),
    Column("stored", Float),  # when fully stored; nothing is packed before
    Column("cancelled", Float),
    Column("delivered", Float),
    # When its output was last written, by its file system's clock; it stays when requests are sent
    # again.
    Column("written", Float),
    # The caller's W3C ``traceparent``; None without an observer.
    Column("trace", String),
    Column("request_count", Integer, nullable=False, default=0),
    # The run's batch_processing settings, as in `BatchProcessingMode`.
    Column("linger", Float, nullable=False),
    Column("max_linger", Float, nullable=False, default=30.0, server_default=text("30")),
    Column("max_requests", Integer, nullable=False),
    Column("parallel_batches", Integer),  # None: no limit
    Column("poll_interval", Float, nullable=False),
    Column("max_poll_interval", Float, nullable=False),
    Column("max_wait", Float, nullable=False),
    Column("on_timeout", String, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("retry_on", Text),  # further error types to retry, separated by commas
    Column("max_turns", Integer, nullable=False, default=10, server_default=text("10")),
    Column("turn_linger", Float, nullable=False, default=30.0, server_default=text("30")),
    Column("validation_attempts", Integer, nullable=False, default=1, server_default=text("1")),
    # Whether its conversations continue automatically, and its tools' Python functions as JSON.
    Column("converses", Boolean, nullable=False, default=False, server_default=false()),
    Column("tools", Text),
    # Whether some of its requests have a prefix.
    Column("prefixed", Boolean, nullable=False, default=False, server_default=false()),
    # The settings that mattered only while it was stored, as JSON. None: stored by version 7.
    Column("preparation", Text),
    Index("ix_runs_digest", "digest"),
    Index("ix_runs_created", "created"),  # the newest are shown
    # How its requests are answered, and the deadline.
    Column("mode", String, nullable=False, server_default=text("'batch'")),
    Column("auto_threshold", Integer, nullable=False, server_default=text("0")),
    Column("live_concurrency", Integer, nullable=False, server_default=text("8")),
    Column("live_retry", String, nullable=False, server_default=text("'safe'")),
    Column("fallback", String, nullable=False, server_default=text("'live'")),
    Column("deadline", Float),
    Column("deadline_margin", Float),  # as configured; None: learned
    # Time since which its requests are no longer packed because the deadline is near, and the
    # margin at that time.
    Column("past_margin", Float),
    Column("margin", Float),
    # Outcome of the deadline once known ("met", or why it was missed), and when all requests had
    # ended.
    Column("deadline_outcome", Text),
    Column("deadline_closed", Float),
    # Time since which its queued requests go to the live API; None while they go into batches.
    Column("live", Float),
    Index("ix_runs_live", "live", **_only("live IS NOT NULL")),
    # Every pass that finds queued requests leaves these runs out.
    Index(
        "ix_runs_unpackable",
        "id",
        **_only("stored IS NULL OR live IS NOT NULL OR past_margin IS NOT NULL"),
    ),
    Index("ix_runs_limited", "id", "parallel_batches", **_only("parallel_batches IS NOT NULL")),
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
    # When it is packed at the latest, unless it is a single call and others arrive meanwhile.
    Column("due", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("cancelled", Boolean, nullable=False, default=False),
    Column("attempts", Integer, nullable=False, default=0),  # outcomes so far
    # Outcomes before the last manual retry; they do not count as attempts.
    Column("forgiven", Integer, nullable=False, default=0, server_default=text("0")),
    # POSTs that carried it in batches before the present one. The present batch counts its own in
    # ``batches.posts``, so that a POST changes one row and not a hundred thousand.
    Column("sendings", Integer, nullable=False, default=0),
    Column("batch_id", _Serial, ForeignKey("batches.id")),
    Column("answered_by", Integer),  # the sending whose result is final
    # The W3C ``traceparent`` of a single call; requests of a run have it on the run.
    Column("trace", String),
    # Ledger-wide stamp of the transaction that made the request final: the order of completion.
    Column("finished", _Long),
    # 1 if it goes to the live API while the other requests of its run go into batches.
    Column("live", Integer),
    # ``live`` comes first, so that SQLite prefers this index to the one of all queued requests.
    Index("ix_requests_live", "live", "lane_id", **_only("live IS NOT NULL AND state = 'queued'")),
    # Equal for all requests with the same prompt cache marks; None for no marks.
    Column("prefix", BigInteger),
    # The most that one sending of it can cost, in nano-dollars. None until a budget asks for it, -1
    # if no bound is known.
    Column("reserve", BigInteger),
    UniqueConstraint("run_id", "position"),
    Index("ix_requests_batch", "batch_id", **_only("batch_id IS NOT NULL")),
    Index("ix_requests_queued", "lane_id", **_only("state = 'queued'")),
    Index("ix_requests_continuing", "run_id", **_only("state = 'continuing'")),
    Index("ix_requests_held", "lane_id", **_only("state = 'held'")),
    Index("ix_requests_lost", "run_id", **_only("state = 'lost'")),
    Index("ix_requests_finished", "run_id", "finished", **_only("finished IS NOT NULL")),
)

params: Table = Table(
    "params",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

contexts: Table = Table(
    "contexts",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("value", LargeBinary, nullable=False),  # as JSON
)
"""The contexts of requests, which callers get back with the results. Never sent."""

conversations: Table = Table(
    "conversations",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("turns", Integer, nullable=False),  # answers followed by another turn
    Column("rejected", Integer, nullable=False),  # answers that did not match the response format
    Column("consumed", Integer, nullable=False),  # last sending of the turn that was continued
    # What those answers cost when they came, in nano-dollars; None if it was unknown. A request's
    # cost is the sum of its results.
    Column("cost", BigInteger),
    Column("first_params", LargeBinary),  # the caller's params, once ``params`` holds more
    Column("stopped", String),  # why it stopped: `claude_batch.core.states.Stop`
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
    Column("process", String, nullable=False),  # the process that runs it, or ran it
    Column("started", Float, nullable=False),
    Column("finished", Float),
    Column("output", LargeBinary),  # content of the tool's result, as JSON
    Column("is_error", Boolean),
)
"""Calls of Python functions. A row records the start of a call, then its result."""

judges: Table = Table(
    "judges",
    metadata,
    Column("run_id", String, ForeignKey("runs.id"), primary_key=True),
    Column("process", String, primary_key=True),
    Column("seen", Float, nullable=False),  # when it was last known to judge
)
"""The processes whose callers have a function of their own that judges a run's answers."""

verdicts: Table = Table(
    "verdicts",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("sending", Integer, primary_key=True, autoincrement=False),
    Column("problem", Text),  # None: the answer is accepted
)
"""How the caller's own function has judged answers, where another process drives."""

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
    # The process whose caller waits; None if no caller waits any more, and of a taken answer, if a
    # client's retry has received it.
    Column("process", String),
    Column("taken", Float),  # when the answer reached its caller
    Index("ix_calls_digest", "digest", "taken"),
    Index("ix_calls_process", "process", **_only("taken IS NULL")),
)
"""Single calls without a key: the waiting process, and whether the answer was taken."""

batches: Table = Table(
    "batches",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("lane_id", _Serial, ForeignKey("lanes.id"), nullable=False),
    Column("state", String, nullable=False),
    # Unique in its workspace, which `mark_submitted` enforces: two servers may use the same ids.
    Column("remote_id", String),
    Column("request_count", Integer, nullable=False),
    Column("params_bytes", BigInteger, nullable=False),
    Column("poll_interval", Float, nullable=False),
    Column("max_poll_interval", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("posts", Integer, nullable=False, default=0),
    Column("broken_uploads", Integer, nullable=False, default=0),  # in a row, before ``armed``
    # The intent: the ids in the API's list before the POST, and the time.
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
    # gap is given up, in server time. None if no fetch has lacked any.
    Column("missing", Integer),
    Column("missing_since", Float),
    Column("missing_seen", Float),
    Column("missing_until", Float),
    Column("counts", Text),  # the API's request_counts once ended, as JSON
    # Set while it is unknown whether a POST was accepted. The settling window is in server time and
    # starts at the first list after the POST ended; ``settled`` is the first complete walk of the
    # list after it.
    Column("unknown_since", Float),
    Column("settling_from", Float),
    Column("settled", Float),
    # POSTs in a row without a response that the list later proved not accepted.
    Column("silent", Integer, nullable=False, default=0, server_default=text("0")),
    # How the API's id was found without a response: ``proved`` by a custom_id in its results, or
    # ``assumed`` under ``exclusive_workspace``.
    Column("adopted", String),
    # After a 400 that names no request: the batch that this one is a half of, and the API's
    # message.
    Column("half_of", _Serial),
    Column("refusal", Text),
    Column("note", Text),  # the last problem, in words
    # The day (UTC, counted since the epoch) on which it was packed; that day's budget pays for it.
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
    Index("ix_batch_runs_run", "run_id"),
)
"""Which runs have requests in which batch."""

charges: Table = Table(
    "charges",
    metadata,
    # No foreign keys: the charges of a run that is removed stay, for the other budgets.
    Column("batch_id", _Serial, primary_key=True, autoincrement=False),
    Column("run_id", String, primary_key=True),
    Column("actor", String, nullable=False),
    Column("day", Integer, nullable=False),  # as in ``batches``
    # Nano-dollars; see `claude_batch.ledger.charges`.
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("doubt", BigInteger, nullable=False),
    Index("ix_charges_run", "run_id"),
    Index("ix_charges_actor", "actor"),
    Index("ix_charges_day", "day"),
)
"""What a run costs in a batch, as far as a budget has asked."""

budgets: Table = Table(
    "budgets",
    metadata,
    Column("scope", String, primary_key=True),  # "run", "actor" or "day"
    Column("name", String, primary_key=True),  # the run's id, the actor's name, or ""
    Column("amount", BigInteger, nullable=False),  # nano-dollars
    # The amount last declared by a flag, a keyword or an actor's YAML. Declaring it again does not
    # undo a manual change made since.
    Column("declared", BigInteger),
    Column("warned", Integer, nullable=False, default=0),  # the percentage last warned at
)
"""Spending limits. Without a row there is no limit."""

candidates: Table = Table(
    "candidates",
    metadata,
    Column("batch_id", _Serial, ForeignKey("batches.id"), primary_key=True),
    Column("remote_id", String, primary_key=True),
    Column("state", String, nullable=False),  # `claude_batch.core.states.CandidateState`
    Column("seen", Float, nullable=False),
    Column("not_found_since", Float),
    # Complete fetches of its results in which none of our ids was readable, and when the first and
    # the last of them were, by the server's clock.
    Column("fetches", Integer, nullable=False, default=0),
    Column("missing_since", Float),
    Column("missing_seen", Float),
    Column("note", Text),
)
"""Batches at the API that may be the result of a POST with an unknown outcome."""

former_members: Table = Table(
    "former_members",
    metadata,
    Column("batch_id", _Serial, ForeignKey("batches.id"), primary_key=True),
    Column("request_seq", _Serial, primary_key=True),
    Column("sending", Integer, nullable=False),
)
"""Requests that left a batch whose POST may have been accepted, to whom its late lines belong; and
live calls that may have been billed, of requests that were tried again or have failed since.
"""

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
    Column("input_tokens", _Long, nullable=False, default=0),
    Column("output_tokens", _Long, nullable=False, default=0),
    Column("cache_read_tokens", _Long, nullable=False, default=0),
    Column("cache_5m_tokens", _Long, nullable=False, default=0),
    Column("cache_1h_tokens", _Long, nullable=False, default=0),
    Column("web_searches", _Long, nullable=False, default=0),
    Column("model", String),  # the model that answered
    # Nano-dollars; None if the model's price is unknown. The actual cost, the cost of the same
    # answer live, and its cost without a prompt cache.
    Column("cost", BigInteger),
    Column("live_cost", BigInteger),
    Column("uncached_cost", BigInteger),
    # When a live call was answered. None for a batch's line, which was answered when the batch
    # ended.
    Column("answered", Float),
    # Covering: judging a batch reads no row of this wide table.
    Index("ix_results_batch", "batch_id", "request_seq", "sending", "outcome", "disposition"),
)

OF_ANSWER = and_(
    results.c.request_seq == requests.c.seq, results.c.sending == requests.c.answered_by
)
"""Joins a request with the result line that is its answer."""

digests: Table = Table(
    "digests",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),  # of the params, without cache marks
    Index("ix_digests_digest", "digest"),
)
"""Digests that find equal requests, for runs and calls that ask for it."""

doubles: Table = Table(
    "doubles",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("of_seq", _Serial, nullable=False),
)
"""Duplicate requests that are not sent: each receives the answer of another request."""

primers: Table = Table(
    "primers",
    metadata,
    Column("request_seq", _Serial, primary_key=True, autoincrement=False),
    Column("run_id", String, ForeignKey("runs.id"), nullable=False),
    Column("prefix", BigInteger, nullable=False),
    Index("ix_primers_prefix", "run_id", "prefix"),
)
"""Requests sent ahead. Others of their run and prefix are held until these have an outcome."""

token_counts: Table = Table(
    "token_counts",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model", String, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes of the counted params
    Column("tokens", BigInteger, nullable=False),
    Column("counted", Float, nullable=False),
    # Shared by requests that the API accepts if it accepts this one, and where.
    Column("shape", LargeBinary),
    Column("workspace_id", _Serial, ForeignKey("workspaces.id")),
    Index("ix_token_counts_model", "model"),
    Index("ix_token_counts_shape", "shape", "workspace_id"),
)
"""Token counts that the API returned for requests before their run was sent."""

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
"""Result lines that are unreadable, or that name requests outside the batch."""

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
    Column("tokens", BigInteger),  # upper bound of its tokens; NULL if unknown
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

OF_REQUESTS: tuple[Table, ...] = (
    params,
    contexts,
    conversations,
    tool_calls,
    verdicts,
    former_members,
    results,
    digests,
    doubles,
    primers,
)
"""The tables whose rows go with their request. Row numbers are used again, so none may remain."""

for _table in metadata.tables.values():
    for _constraint in _table.foreign_key_constraints:
        # They show a reader which columns refer to which. SQLite does not enforce them, and in
        # PostgreSQL they would cost a third of the server's time: each row asks whether its run
        # exists.
        _constraint.ddl_if(dialect="sqlite")
