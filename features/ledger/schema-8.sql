-- The tables of schema version 8, as the eighth release first wrote them. Never changed.
CREATE TABLE batch_runs (
    batch_id INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    PRIMARY KEY (batch_id, run_id),
    FOREIGN KEY(batch_id) REFERENCES batches (id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE batches (
    id INTEGER NOT NULL,
    lane_id INTEGER NOT NULL,
    state VARCHAR NOT NULL,
    remote_id VARCHAR,
    request_count INTEGER NOT NULL,
    params_bytes BIGINT NOT NULL,
    poll_interval FLOAT NOT NULL,
    max_poll_interval FLOAT NOT NULL,
    created FLOAT NOT NULL,
    posts INTEGER NOT NULL,
    broken_uploads INTEGER NOT NULL,
    snapshot TEXT,
    intended FLOAT,
    server_time FLOAT,
    armed FLOAT,
    submitted FLOAT,
    ended FLOAT,
    collected FLOAT,
    next_check FLOAT,
    not_found_since FLOAT,
    cancel_requested FLOAT,
    fetches INTEGER NOT NULL,
    missing INTEGER,
    missing_since FLOAT,
    missing_seen FLOAT,
    missing_until FLOAT,
    counts TEXT,
    unknown_since FLOAT,
    settling_from FLOAT,
    settled FLOAT,
    silent INTEGER DEFAULT 0 NOT NULL,
    adopted VARCHAR,
    half_of INTEGER,
    refusal TEXT,
    note TEXT,
    day INTEGER,
    PRIMARY KEY (id),
    FOREIGN KEY(lane_id) REFERENCES lanes (id)
);
CREATE TABLE budgets (
    scope VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    declared BIGINT,
    warned INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE TABLE call_keys (
    actor VARCHAR NOT NULL,
    "key" VARCHAR NOT NULL,
    request_seq INTEGER NOT NULL,
    PRIMARY KEY (actor, "key")
);
CREATE TABLE calls (
    request_seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    process VARCHAR,
    taken FLOAT,
    PRIMARY KEY (request_seq)
);
CREATE TABLE candidates (
    batch_id INTEGER NOT NULL,
    remote_id VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    seen FLOAT NOT NULL,
    not_found_since FLOAT,
    fetches INTEGER NOT NULL,
    missing_since FLOAT,
    missing_seen FLOAT,
    note TEXT,
    PRIMARY KEY (batch_id, remote_id),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE charges (
    batch_id INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,
    day INTEGER NOT NULL,
    reserved BIGINT NOT NULL,
    spent BIGINT NOT NULL,
    doubt BIGINT NOT NULL,
    PRIMARY KEY (batch_id, run_id)
);
CREATE TABLE contexts (
    request_seq INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (request_seq)
);
CREATE TABLE conversations (
    request_seq INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    consumed INTEGER NOT NULL,
    cost BIGINT,
    first_params BLOB,
    stopped VARCHAR,
    note TEXT,
    PRIMARY KEY (request_seq)
);
CREATE TABLE credentials (
    base_url VARCHAR NOT NULL,
    fingerprint VARCHAR NOT NULL,
    workspace_id INTEGER NOT NULL,
    PRIMARY KEY (base_url, fingerprint),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE digests (
    request_seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (request_seq)
);
CREATE TABLE doubles (
    request_seq INTEGER NOT NULL,
    of_seq INTEGER NOT NULL,
    PRIMARY KEY (request_seq)
);
CREATE TABLE files (
    id INTEGER NOT NULL,
    workspace_id INTEGER NOT NULL,
    digest VARCHAR NOT NULL,
    file_id VARCHAR NOT NULL,
    media_type VARCHAR NOT NULL,
    size BIGINT NOT NULL,
    created FLOAT NOT NULL,
    checked FLOAT NOT NULL,
    tokens BIGINT,
    PRIMARY KEY (id),
    UNIQUE (workspace_id, digest),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE former_members (
    batch_id INTEGER NOT NULL,
    request_seq INTEGER NOT NULL,
    sending INTEGER NOT NULL,
    PRIMARY KEY (batch_id, request_seq),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE judges (
    run_id VARCHAR NOT NULL,
    process VARCHAR NOT NULL,
    seen FLOAT NOT NULL,
    PRIMARY KEY (run_id, process),
    FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE lanes (
    id INTEGER NOT NULL,
    workspace_id INTEGER NOT NULL,
    api_version VARCHAR NOT NULL,
    betas VARCHAR NOT NULL,
    user_profile VARCHAR NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (workspace_id, api_version, betas, user_profile),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE leaving_files (
    workspace_id INTEGER NOT NULL,
    file_id VARCHAR NOT NULL,
    PRIMARY KEY (workspace_id, file_id),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE meta (
    name VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE params (
    request_seq INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (request_seq)
);
CREATE TABLE primers (
    request_seq INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    prefix BIGINT NOT NULL,
    PRIMARY KEY (request_seq),
    FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE requests (
    seq INTEGER NOT NULL,
    id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    position INTEGER NOT NULL,
    "key" VARCHAR,
    lane_id INTEGER NOT NULL,
    size INTEGER NOT NULL,
    state VARCHAR NOT NULL,
    due FLOAT NOT NULL,
    created FLOAT NOT NULL,
    cancelled BOOLEAN NOT NULL,
    attempts INTEGER NOT NULL,
    forgiven INTEGER DEFAULT 0 NOT NULL,
    sendings INTEGER NOT NULL,
    batch_id INTEGER,
    answered_by INTEGER,
    trace VARCHAR,
    finished INTEGER,
    live INTEGER,
    prefix BIGINT,
    reserve BIGINT,
    PRIMARY KEY (seq),
    UNIQUE (run_id, position),
    UNIQUE (id),
    FOREIGN KEY(run_id) REFERENCES runs (id),
    FOREIGN KEY(lane_id) REFERENCES lanes (id),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE results (
    request_seq INTEGER NOT NULL,
    sending INTEGER NOT NULL,
    batch_id INTEGER NOT NULL,
    outcome VARCHAR NOT NULL,
    disposition VARCHAR NOT NULL,
    error_type VARCHAR,
    raw BLOB NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cache_5m_tokens INTEGER NOT NULL,
    cache_1h_tokens INTEGER NOT NULL,
    web_searches INTEGER NOT NULL,
    model VARCHAR,
    cost BIGINT,
    live_cost BIGINT,
    uncached_cost BIGINT,
    answered FLOAT,
    PRIMARY KEY (request_seq, sending),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE run_files (
    run_id VARCHAR NOT NULL,
    file INTEGER NOT NULL,
    PRIMARY KEY (run_id, file),
    FOREIGN KEY(run_id) REFERENCES runs (id),
    FOREIGN KEY(file) REFERENCES files (id)
);
CREATE TABLE runs (
    id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    digest VARCHAR,
    label VARCHAR,
    actor VARCHAR NOT NULL,
    workspace_id INTEGER NOT NULL,
    output VARCHAR,
    output_format VARCHAR,
    results_dir VARCHAR,
    process VARCHAR,
    created FLOAT NOT NULL,
    stored FLOAT,
    cancelled FLOAT,
    delivered FLOAT,
    trace VARCHAR,
    request_count INTEGER NOT NULL,
    linger FLOAT NOT NULL,
    max_linger FLOAT DEFAULT 30 NOT NULL,
    max_requests INTEGER NOT NULL,
    parallel_batches INTEGER,
    poll_interval FLOAT NOT NULL,
    max_poll_interval FLOAT NOT NULL,
    max_wait FLOAT NOT NULL,
    on_timeout VARCHAR NOT NULL,
    max_attempts INTEGER NOT NULL,
    retry_on TEXT,
    max_turns INTEGER DEFAULT 10 NOT NULL,
    turn_linger FLOAT DEFAULT 30 NOT NULL,
    validation_attempts INTEGER DEFAULT 1 NOT NULL,
    converses BOOLEAN DEFAULT 0 NOT NULL,
    tools TEXT,
    prefixed BOOLEAN DEFAULT 0 NOT NULL,
    mode VARCHAR DEFAULT 'batch' NOT NULL,
    auto_threshold INTEGER DEFAULT 0 NOT NULL,
    live_concurrency INTEGER DEFAULT 8 NOT NULL,
    live_retry VARCHAR DEFAULT 'safe' NOT NULL,
    fallback VARCHAR DEFAULT 'live' NOT NULL,
    deadline FLOAT,
    deadline_margin FLOAT,
    past_margin FLOAT,
    margin FLOAT,
    deadline_outcome TEXT,
    deadline_closed FLOAT,
    live FLOAT,
    PRIMARY KEY (id),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE strange_lines (
    id INTEGER NOT NULL,
    batch_id INTEGER NOT NULL,
    digest VARCHAR NOT NULL,
    reason TEXT NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (batch_id, digest),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE TABLE token_counts (
    id INTEGER NOT NULL,
    model VARCHAR NOT NULL,
    size BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    counted FLOAT NOT NULL,
    shape BLOB,
    workspace_id INTEGER,
    PRIMARY KEY (id),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE TABLE tool_calls (
    request_seq INTEGER NOT NULL,
    sending INTEGER NOT NULL,
    tool_use_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    process VARCHAR NOT NULL,
    started FLOAT NOT NULL,
    finished FLOAT,
    output BLOB,
    is_error BOOLEAN,
    PRIMARY KEY (request_seq, sending, tool_use_id)
);
CREATE TABLE verdicts (
    request_seq INTEGER NOT NULL,
    sending INTEGER NOT NULL,
    problem TEXT,
    PRIMARY KEY (request_seq, sending)
);
CREATE TABLE workspaces (
    id INTEGER NOT NULL,
    base_url VARCHAR NOT NULL,
    name VARCHAR,
    epoch INTEGER NOT NULL,
    halt_reason VARCHAR,
    halt_type VARCHAR,
    halt_message TEXT,
    halted FLOAT,
    probes INTEGER DEFAULT 0 NOT NULL,
    next_probe FLOAT,
    explained_until FLOAT,
    behind FLOAT,
    wait_until FLOAT,
    wait_reason TEXT,
    recent_calls TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX ix_batch_runs_run ON batch_runs (run_id);
CREATE INDEX ix_batches_day ON batches (day);
CREATE INDEX ix_batches_remote ON batches (remote_id) WHERE remote_id IS NOT NULL;
CREATE INDEX ix_batches_state ON batches (state);
CREATE INDEX ix_calls_digest ON calls (digest, taken);
CREATE INDEX ix_calls_process ON calls (process) WHERE taken IS NULL;
CREATE INDEX ix_charges_actor ON charges (actor);
CREATE INDEX ix_charges_day ON charges (day);
CREATE INDEX ix_charges_run ON charges (run_id);
CREATE INDEX ix_digests_digest ON digests (digest);
CREATE INDEX ix_primers_prefix ON primers (run_id, prefix);
CREATE INDEX ix_requests_batch ON requests (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX ix_requests_continuing ON requests (run_id) WHERE state = 'continuing';
CREATE INDEX ix_requests_finished ON requests (run_id, finished) WHERE finished IS NOT NULL;
CREATE INDEX ix_requests_held ON requests (lane_id) WHERE state = 'held';
CREATE INDEX ix_requests_live ON requests (live, lane_id) WHERE live IS NOT NULL AND state = 'queued';
CREATE INDEX ix_requests_lost ON requests (run_id) WHERE state = 'lost';
CREATE INDEX ix_requests_queued ON requests (lane_id) WHERE state = 'queued';
CREATE INDEX ix_results_batch ON results (batch_id, request_seq, sending, outcome, disposition);
CREATE INDEX ix_run_files_file ON run_files (file);
CREATE INDEX ix_runs_created ON runs (created);
CREATE INDEX ix_runs_deadline ON runs (deadline) WHERE deadline IS NOT NULL AND deadline_closed IS NULL;
CREATE INDEX ix_runs_digest ON runs (digest);
CREATE INDEX ix_runs_limited ON runs (id, parallel_batches) WHERE parallel_batches IS NOT NULL;
CREATE INDEX ix_runs_live ON runs (live) WHERE live IS NOT NULL;
CREATE INDEX ix_runs_unpackable ON runs (id) WHERE stored IS NULL OR live IS NOT NULL OR past_margin IS NOT NULL;
CREATE INDEX ix_token_counts_model ON token_counts (model);
CREATE INDEX ix_token_counts_shape ON token_counts (shape, workspace_id);
