-- One Environment a Repo (ADR 0009), by the UNIQUE here. current: the number of the applied version, 0 before the first.
CREATE TABLE environments (
    id         TEXT   PRIMARY KEY,
    repo_id    BIGINT NOT NULL UNIQUE REFERENCES repos (id),
    current    BIGINT NOT NULL DEFAULT 0 CHECK (current >= 0),
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL
);

-- A draft is a Spec with a revision. ref: '' for the one web draft, the number of a pull request otherwise.
CREATE TABLE drafts (
    id             TEXT   PRIMARY KEY,
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    source         TEXT   NOT NULL CHECK (source IN ('web', 'pull-request')),
    ref            TEXT   NOT NULL,
    revision       BIGINT NOT NULL CHECK (revision > 0),
    spec           TEXT   NOT NULL,
    test_key       TEXT   NOT NULL CHECK (test_key <> ''),
    updated_at     BIGINT NOT NULL,
    updated_by     TEXT   NOT NULL,
    UNIQUE (environment_id, source, ref)
);

-- A Test build of exactly one revision of one draft. A final state is reached once, and then has its time.
CREATE TABLE test_builds (
    id             TEXT   PRIMARY KEY,
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    revision       BIGINT NOT NULL,
    spec           TEXT   NOT NULL,
    test_key       TEXT   NOT NULL CHECK (test_key <> ''),
    runner_id      TEXT   NOT NULL,
    assignment_id  TEXT   NOT NULL UNIQUE,
    state          TEXT   NOT NULL CHECK (state IN ('queued', 'running', 'passed', 'failed', 'cancelled', 'lost')),
    cancelled_by   TEXT   NOT NULL DEFAULT '',
    created_at     BIGINT NOT NULL,
    created_by     TEXT   NOT NULL,
    finished_at    BIGINT,
    detail         TEXT   NOT NULL,
    image_digest   TEXT   NOT NULL DEFAULT '',
    build_key      TEXT   NOT NULL DEFAULT '',
    CHECK ((state IN ('queued', 'running')) = (finished_at IS NULL)),
    CHECK (state <> 'passed' OR (image_digest <> '' AND build_key <> ''))
);
CREATE INDEX test_builds_environment ON test_builds (environment_id, created_at);
CREATE INDEX test_builds_key ON test_builds (environment_id, test_key, state);

-- An immutable version: what was tested is what is applied, its image pinned by digest.
CREATE TABLE versions (
    id             TEXT   PRIMARY KEY,
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    number         BIGINT NOT NULL CHECK (number > 0),
    spec           TEXT   NOT NULL,
    test_key       TEXT   NOT NULL CHECK (test_key <> ''),
    build_key      TEXT   NOT NULL CHECK (build_key <> ''),
    image_digest   TEXT   NOT NULL CHECK (image_digest <> ''),
    test_build_id  TEXT   NOT NULL REFERENCES test_builds (id),
    message        TEXT   NOT NULL,
    source         TEXT   NOT NULL CHECK (source <> ''),
    applied_at     BIGINT NOT NULL,
    applied_by     TEXT   NOT NULL,
    UNIQUE (environment_id, number)
);
