-- The tables of schema version 1, as the first release wrote them. Never changed.
CREATE TABLE call_keys (
    actor VARCHAR NOT NULL,
    "key" VARCHAR NOT NULL,
    request_seq INTEGER NOT NULL,
    PRIMARY KEY (actor, "key")
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
CREATE TABLE workspaces (
    id INTEGER NOT NULL,
    base_url VARCHAR NOT NULL,
    name VARCHAR,
    epoch INTEGER NOT NULL,
    halt_reason VARCHAR,
    halt_type VARCHAR,
    halt_message TEXT,
    halted FLOAT,
    wait_until FLOAT,
    wait_reason TEXT,
    PRIMARY KEY (id)
);
CREATE TABLE credentials (
    base_url VARCHAR NOT NULL,
    fingerprint VARCHAR NOT NULL,
    workspace_id INTEGER NOT NULL,
    PRIMARY KEY (base_url, fingerprint),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
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
CREATE TABLE runs (
    id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    digest VARCHAR,
    label VARCHAR,
    actor VARCHAR NOT NULL,
    workspace_id INTEGER NOT NULL,
    output VARCHAR,
    created FLOAT NOT NULL,
    stored FLOAT,
    cancelled FLOAT,
    delivered FLOAT,
    request_count INTEGER NOT NULL,
    linger FLOAT NOT NULL,
    max_requests INTEGER NOT NULL,
    poll_interval FLOAT NOT NULL,
    max_poll_interval FLOAT NOT NULL,
    max_wait FLOAT NOT NULL,
    on_timeout VARCHAR NOT NULL,
    max_attempts INTEGER NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(workspace_id) REFERENCES workspaces (id)
);
CREATE INDEX ix_runs_digest ON runs (digest);
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
    counts TEXT,
    note TEXT,
    PRIMARY KEY (id),
    FOREIGN KEY(lane_id) REFERENCES lanes (id),
    UNIQUE (remote_id)
);
CREATE INDEX ix_batches_state ON batches (state);
CREATE TABLE batch_runs (
    batch_id INTEGER NOT NULL,
    run_id VARCHAR NOT NULL,
    PRIMARY KEY (batch_id, run_id),
    FOREIGN KEY(batch_id) REFERENCES batches (id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_batch_runs_run ON batch_runs (run_id);
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
    sendings INTEGER NOT NULL,
    batch_id INTEGER,
    answered_by INTEGER,
    finished INTEGER,
    PRIMARY KEY (seq),
    UNIQUE (run_id, position),
    UNIQUE (id),
    FOREIGN KEY(run_id) REFERENCES runs (id),
    FOREIGN KEY(lane_id) REFERENCES lanes (id),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE INDEX ix_requests_batch ON requests (batch_id);
CREATE INDEX ix_requests_finished ON requests (run_id, finished) WHERE finished IS NOT NULL;
CREATE INDEX ix_requests_queued ON requests (lane_id) WHERE state = 'queued';
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
    cost BIGINT,
    PRIMARY KEY (request_seq, sending),
    FOREIGN KEY(batch_id) REFERENCES batches (id)
);
CREATE INDEX ix_results_batch ON results (batch_id);
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
