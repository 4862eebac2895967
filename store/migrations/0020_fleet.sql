-- Runners, what they should hold, and the log of each assignment. Times are Unix ms, 0: never.

CREATE TABLE runners (
    id              TEXT PRIMARY KEY,
    name            TEXT   NOT NULL CHECK (name <> ''),
    token_hash      TEXT   NOT NULL UNIQUE CHECK (length(token_hash) = 64),
    registered_by   TEXT   NOT NULL,
    created_at      BIGINT NOT NULL,
    revoked_at      BIGINT NOT NULL DEFAULT 0,
    revoked_by      TEXT   NOT NULL DEFAULT '',
    protocol        BIGINT NOT NULL DEFAULT 0,
    version         TEXT   NOT NULL DEFAULT '',
    platform        TEXT   NOT NULL DEFAULT '',
    engine          TEXT   NOT NULL DEFAULT '',
    capabilities    TEXT   NOT NULL DEFAULT '[]',
    missing         TEXT   NOT NULL DEFAULT '[]',
    cpu_limit       DOUBLE PRECISION NOT NULL DEFAULT 0,
    memory_limit    BIGINT NOT NULL DEFAULT 0,
    instance        TEXT   NOT NULL DEFAULT '',
    hello_at        BIGINT NOT NULL DEFAULT 0,
    last_contact_at BIGINT NOT NULL DEFAULT 0,
    CHECK ((revoked_at = 0) = (revoked_by = ''))
);
CREATE UNIQUE INDEX runners_name ON runners (name) WHERE revoked_at = 0;

CREATE TABLE runner_registrations (
    id         TEXT PRIMARY KEY,
    token_hash TEXT   NOT NULL UNIQUE CHECK (length(token_hash) = 64),
    created_by TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL CHECK (expires_at > created_at),
    used_at    BIGINT NOT NULL DEFAULT 0,
    runner     TEXT   UNIQUE REFERENCES runners (id),
    CHECK ((used_at = 0) = (runner IS NULL))
);

CREATE TABLE assignments (
    id            TEXT PRIMARY KEY,
    runner        TEXT   NOT NULL REFERENCES runners (id),
    kind          TEXT   NOT NULL CHECK (kind <> ''),
    subject       TEXT   NOT NULL CHECK (subject <> ''),
    want          TEXT   NOT NULL CHECK (want IN ('run', 'stop', 'remove')),
    generation    BIGINT NOT NULL CHECK (generation >= 1),
    fence         BIGINT NOT NULL CHECK (fence >= 1),
    deadline      BIGINT NOT NULL DEFAULT 0 CHECK (deadline >= 0),
    deadline_lost BIGINT NOT NULL DEFAULT 0, -- the deadline its Owner was told of
    lost_at       BIGINT NOT NULL DEFAULT 0, -- the Owner was told that the Runner is silent; 0 again when it is back
    removed_at    BIGINT NOT NULL DEFAULT 0, -- the Runner holds nothing of it any more
    created_at    BIGINT NOT NULL,
    idle_since    BIGINT NOT NULL DEFAULT 0,
    -- The newest report.
    report_fence      BIGINT NOT NULL DEFAULT 0,
    report_seq        BIGINT NOT NULL DEFAULT 0,
    report_generation BIGINT NOT NULL DEFAULT 0,
    report_at         BIGINT NOT NULL DEFAULT 0,
    report_refused    TEXT   NOT NULL DEFAULT '', -- why the Owner will never take it
    state             TEXT   NOT NULL DEFAULT '',
    detail            TEXT   NOT NULL DEFAULT '',
    CHECK (removed_at = 0 OR want = 'remove'),
    CHECK (report_fence <= fence)
);
CREATE UNIQUE INDEX assignments_subject ON assignments (kind, subject) WHERE removed_at = 0;
CREATE INDEX assignments_every_subject ON assignments (kind, subject, created_at);
CREATE INDEX assignments_runner ON assignments (runner, id) WHERE removed_at = 0;
CREATE INDEX assignments_deadline ON assignments (deadline, id) WHERE removed_at = 0 AND deadline > 0;
CREATE INDEX assignments_idle ON assignments (idle_since, id) WHERE removed_at = 0 AND idle_since > 0;

-- The log of an assignment is one row of bytes: the streams of its fences, one after the other.
CREATE TABLE logs (
    assignment TEXT PRIMARY KEY REFERENCES assignments (id) ON DELETE CASCADE,
    fence      BIGINT NOT NULL CHECK (fence >= 1), -- of the newest stream
    base       BIGINT NOT NULL CHECK (base >= 0),  -- where that stream begins
    next       BIGINT NOT NULL CHECK (next >= base),
    kept       BIGINT NOT NULL CHECK (kept >= 0 AND kept <= next), -- bytes in log_chunks, before compression
    ended      BIGINT NOT NULL DEFAULT 0 CHECK (ended IN (0, 1))
);

CREATE TABLE log_chunks (
    assignment TEXT   NOT NULL REFERENCES assignments (id) ON DELETE CASCADE,
    start      BIGINT NOT NULL CHECK (start >= 0),
    size       BIGINT NOT NULL CHECK (size > 0), -- before compression
    data       BYTEA  NOT NULL,                  -- zstd
    PRIMARY KEY (assignment, start)
);
