-- A headless run: a command in a Session that runs without anybody connected. What it prints is the log of its assignment.
-- Times are Unix ms, 0: not yet.
CREATE TABLE runs (
    id            TEXT   PRIMARY KEY,
    session_id    TEXT   NOT NULL REFERENCES sessions (id),
    assignment_id TEXT   NOT NULL UNIQUE,
    command       TEXT   NOT NULL CHECK (command <> ''), -- for people, Sensitive values masked
    spec          TEXT   NOT NULL,                       -- wire.Run, until it has ended: what somebody typed may hold a value
    created_at    BIGINT NOT NULL,
    created_by    TEXT   NOT NULL CHECK (created_by <> ''),
    stopped_by    TEXT   NOT NULL DEFAULT '',
    started_at    BIGINT NOT NULL DEFAULT 0, -- on the Runner's clock
    ended_at      BIGINT NOT NULL DEFAULT 0,
    ended_how     TEXT   NOT NULL DEFAULT '', -- wire.ChannelExit
    CHECK ((ended_at = 0) = (ended_how = '')),
    CHECK ((ended_at = 0) = (spec <> ''))
);
CREATE INDEX runs_session ON runs (session_id, created_at);
