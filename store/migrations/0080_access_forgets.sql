-- What was forgotten lately, in order: an answer of GitHub that was asked for before may be from before what happened there. A
-- row stands for longer than any question takes; n goes on in access_forgotten.
CREATE TABLE access_forgotten (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    n   BIGINT NOT NULL
);
INSERT INTO access_forgotten (one, n) VALUES (1, 0);
CREATE TABLE access_forgets (
    n    BIGINT PRIMARY KEY,
    kind TEXT   NOT NULL CHECK (kind IN ('person', 'repo', 'installation', 'account')),
    ref  BIGINT NOT NULL, -- GitHub's id
    at   BIGINT NOT NULL
);
CREATE INDEX access_forgets_at ON access_forgets (at);
