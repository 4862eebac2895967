-- A Session: a person or Claude Code at work on a branch, on one Runner for its whole life.
CREATE TABLE sessions (
    id             TEXT   PRIMARY KEY,
    repo_id        BIGINT NOT NULL REFERENCES repos (id),
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    runner_id      TEXT   NOT NULL,
    assignment_id  TEXT   NOT NULL UNIQUE,
    state          TEXT   NOT NULL CHECK (state IN ('starting', 'running', 'stopping', 'asleep', 'waking', 'failed', 'deleting', 'deleted')),
    unreachable    BIGINT NOT NULL DEFAULT 0 CHECK (unreachable IN (0, 1)),
    version_id     TEXT   NOT NULL REFERENCES versions (id),
    branch         TEXT   NOT NULL,
    work_branch    TEXT   NOT NULL CHECK (work_branch <> ''),
    disk_size      BIGINT NOT NULL CHECK (disk_size > 0),
    -- A request to sleep that came from idleness is refused by the Runner when idle for less; 0: asked for by hand.
    idle_ms        BIGINT NOT NULL DEFAULT 0 CHECK (idle_ms >= 0),
    -- In dev, Ctrl-C puts awake Sessions to sleep; the next start wakes them.
    resume         BIGINT NOT NULL DEFAULT 0 CHECK (resume IN (0, 1)),
    detail         TEXT   NOT NULL,
    created_at     BIGINT NOT NULL,
    created_by     TEXT   NOT NULL,
    changed_at     BIGINT NOT NULL,
    deleted_at     BIGINT,
    CHECK ((state = 'deleted') = (deleted_at IS NOT NULL))
);
CREATE INDEX sessions_repo ON sessions (repo_id, created_at);
