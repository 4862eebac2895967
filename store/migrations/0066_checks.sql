-- What GitHub should show as check runs (app/checks, facts/github.md §3). One row is one check run: external_id is ours and finds
-- it again. version rises with each change of what should be shown; shown is the one that is done: GitHub is known to show it, or
-- needn't, since a newer check run of that name is there. Times are Unix ms; 0 is none.
CREATE TABLE check_runs (
    external_id    TEXT   PRIMARY KEY CHECK (external_id <> ''),
    repo_id        BIGINT NOT NULL CHECK (repo_id > 0),
    sha            TEXT   NOT NULL CHECK (sha <> ''),
    name           TEXT   NOT NULL CHECK (name <> ''),
    status         TEXT   NOT NULL CHECK (status IN ('queued', 'in_progress', 'completed')),
    conclusion     TEXT   NOT NULL,
    view           TEXT   NOT NULL, -- JSON: everything else that is shown
    version        BIGINT NOT NULL CHECK (version > 0),
    created_at     BIGINT NOT NULL,
    changed_at     BIGINT NOT NULL, -- its state

    -- What GitHub has.
    app_id         BIGINT NOT NULL DEFAULT 0, -- the App that made, or is making, the check run
    check_run      BIGINT,                    -- GitHub's id of it
    creating_since BIGINT NOT NULL DEFAULT 0, -- a POST may have been sent then: look before another one
    shown          BIGINT NOT NULL DEFAULT 0,
    shown_status   TEXT   NOT NULL DEFAULT '',
    shown_at       BIGINT NOT NULL DEFAULT 0,
    noted          BIGINT NOT NULL DEFAULT 0, -- annotations that GitHub has
    notes          TEXT   NOT NULL DEFAULT '[]', -- JSON: digests of those
    noting         TEXT   NOT NULL DEFAULT '[]', -- JSON: digests of those on their way, which may have arrived

    -- How it goes.
    installation   BIGINT NOT NULL DEFAULT 0, -- 0: to be asked for
    attempts       BIGINT NOT NULL DEFAULT 0,
    next_try       BIGINT NOT NULL DEFAULT 0,
    parked         TEXT   NOT NULL DEFAULT '', -- why GitHub doesn't take it until something changes there
    refused        BIGINT NOT NULL DEFAULT 0,  -- the version that GitHub refused whole: it is tried shorter
    last_error     TEXT   NOT NULL DEFAULT '',
    CHECK ((status = 'completed') = (conclusion <> '')),
    CHECK (shown <= version)
);
CREATE INDEX check_runs_pending ON check_runs (installation, next_try) WHERE shown < version;
CREATE INDEX check_runs_run ON check_runs (check_run);
CREATE INDEX check_runs_commit ON check_runs (repo_id, sha);

-- Writes to GitHub go one after another in each installation, whichever Hub makes them. 0 is finding out the installation.
CREATE TABLE check_lanes (
    installation BIGINT PRIMARY KEY,
    holder       TEXT   NOT NULL DEFAULT '', -- who writes at present
    held_until   BIGINT NOT NULL DEFAULT 0,
    next_at      BIGINT NOT NULL DEFAULT 0,  -- no write before
    failures     BIGINT NOT NULL DEFAULT 0   -- in a row, of GitHub as a whole
);
