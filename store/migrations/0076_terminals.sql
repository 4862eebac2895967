-- A terminal that somebody opened in an assignment. It outlives who looks at it, and restarts of Hub and Runner: what it printed is
-- with its agent, and in memory of the Hub while it runs. Times are Unix ms, 0: not yet.
CREATE TABLE terminals (
    id         TEXT   PRIMARY KEY,
    assignment TEXT   NOT NULL REFERENCES assignments (id) ON DELETE CASCADE,
    runner     TEXT   NOT NULL REFERENCES runners (id),
    fence      BIGINT NOT NULL CHECK (fence >= 1),
    spec       TEXT   NOT NULL CHECK (spec <> ''),
    opened_by  TEXT   NOT NULL CHECK (opened_by <> ''),
    opened_at  BIGINT NOT NULL,
    -- The Runner has begun: from then on it takes the terminal up again, and never starts it a second time.
    began_at   BIGINT NOT NULL DEFAULT 0,
    ended_at   BIGINT NOT NULL DEFAULT 0,
    ended_how  TEXT   NOT NULL DEFAULT '', -- wire.ChannelExit
    CHECK ((ended_at = 0) = (ended_how = ''))
);
CREATE INDEX terminals_open ON terminals (runner) WHERE ended_at = 0;
CREATE INDEX terminals_assignment ON terminals (assignment, opened_at);
