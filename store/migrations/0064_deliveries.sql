-- GitHub's webhooks, from when they were answered until a week after they were worked off. Of those that wait with the same
-- subject the newest is worked for all. A delivery may be taken from due_at on: later than now, it is claimed or rests
-- after a failure. claimed_by is the id of one claim, '' when nobody works on it. Times are Unix ms, 0: never.
CREATE TABLE deliveries (
    guid        TEXT   PRIMARY KEY,
    event       TEXT   NOT NULL CHECK (event <> ''),
    action      TEXT   NOT NULL,
    subject     TEXT   NOT NULL, -- '': its own
    body        BYTEA,           -- zstd; dropped when done
    state       TEXT   NOT NULL CHECK (state IN ('waiting', 'done', 'aside')),
    received_at BIGINT NOT NULL,
    due_at      BIGINT NOT NULL,
    claimed_by  TEXT   NOT NULL DEFAULT '',
    tries       BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
    faults      BIGINT NOT NULL DEFAULT 0 CHECK (faults >= 0), -- tries that count: GitHub being away is none
    ended_at    BIGINT NOT NULL DEFAULT 0,
    why         TEXT   NOT NULL DEFAULT '', -- of what is set aside, for everyone who is signed in
    CHECK ((state = 'waiting') = (ended_at = 0)),
    CHECK ((state = 'done') = (body IS NULL)),
    CHECK (state = 'waiting' OR claimed_by = ''),
    CHECK ((state = 'aside') = (why <> ''))
);
CREATE INDEX deliveries_due ON deliveries (due_at, guid) WHERE state = 'waiting';
CREATE INDEX deliveries_subject ON deliveries (subject) WHERE state = 'waiting' AND subject <> '';
CREATE INDEX deliveries_claim ON deliveries (claimed_by) WHERE claimed_by <> '';
CREATE INDEX deliveries_ended ON deliveries (state, ended_at) WHERE ended_at > 0;

-- Up to when GitHub's log of each App's deliveries was searched for missed ones, and when it is searched next. Whoever
-- searches holds it until then.
CREATE TABLE delivery_sweeps (
    app     BIGINT PRIMARY KEY,
    seen_to BIGINT NOT NULL,
    held_by TEXT   NOT NULL DEFAULT '',
    next_at BIGINT NOT NULL
);
