-- The values of an Environment's Variables (ADR 0009, "Variables"). Specs name them by id and hold none. A row never
-- gets another value, with one exception: a Sensitive one that secrets-reset cleared gets a new one in its place and
-- keeps its id, so that nothing that names it moves. Times are Unix ms.
CREATE TABLE variable_values (
    id             TEXT   PRIMARY KEY,
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    sensitive      BIGINT NOT NULL CHECK (sensitive IN (0, 1)),
    plain          TEXT,
    plain_digest   TEXT,   -- SHA-256 of plain: the same text again is the same row
    sealed         BYTEA,
    sealed_key_id  TEXT    REFERENCES encryption_keys (key_id),
    lost_at        BIGINT, -- secrets-reset cleared it
    set_at         BIGINT NOT NULL,
    set_by         TEXT   NOT NULL,
    UNIQUE (environment_id, plain_digest),
    CHECK ((sensitive = 0) = (plain IS NOT NULL)),
    CHECK ((plain IS NULL) = (plain_digest IS NULL)),
    CHECK ((sealed IS NULL) = (sealed_key_id IS NULL)),
    CHECK (sensitive = 1 OR (sealed IS NULL AND lost_at IS NULL)),
    CHECK (sensitive = 0 OR (sealed IS NULL) = (lost_at IS NOT NULL))
);
CREATE INDEX variable_values_key ON variable_values (sealed_key_id, id);

-- Shared variables belong to the Hub. value_id names the value as it is now, for build keys: a new one with each new
-- value, kept by one that is entered in place of a lost one.
CREATE TABLE shared_variables (
    id            TEXT   PRIMARY KEY,
    name          TEXT   NOT NULL UNIQUE CHECK (name <> ''),
    note          TEXT   NOT NULL,
    sensitive     BIGINT NOT NULL CHECK (sensitive IN (0, 1)),
    revision      BIGINT NOT NULL CHECK (revision > 0),
    value_id      TEXT   NOT NULL UNIQUE,
    value_at      BIGINT NOT NULL, -- when value_id became what it is
    plain         TEXT,
    sealed        BYTEA,
    sealed_key_id TEXT    REFERENCES encryption_keys (key_id),
    lost_at       BIGINT,
    set_at        BIGINT NOT NULL, -- when somebody last entered a value, also in place of a lost one
    set_by        TEXT   NOT NULL,
    created_at    BIGINT NOT NULL,
    created_by    TEXT   NOT NULL,
    CHECK ((sensitive = 0) = (plain IS NOT NULL)),
    CHECK ((sealed IS NULL) = (sealed_key_id IS NULL)),
    CHECK (sensitive = 1 OR (sealed IS NULL AND lost_at IS NULL)),
    CHECK (sensitive = 0 OR (sealed IS NULL) = (lost_at IS NOT NULL))
);
CREATE INDEX shared_variables_key ON shared_variables (sealed_key_id, id);

-- Which drafts and current versions link a Shared variable: none that one of them links can be deleted. holder is the
-- draft's or the version's id.
CREATE TABLE variable_links (
    holder         TEXT   NOT NULL,
    shared_id      TEXT   NOT NULL REFERENCES shared_variables (id),
    environment_id TEXT   NOT NULL REFERENCES environments (id),
    build          BIGINT NOT NULL CHECK (build IN (0, 1)), -- available at build under one of its names
    PRIMARY KEY (holder, shared_id)
);
CREATE INDEX variable_links_shared ON variable_links (shared_id, environment_id);

-- The revision of the last draft that was discarded: the next one goes on from there, so that somebody who still has the
-- discarded one open can't save it over the new one.
ALTER TABLE environments ADD COLUMN discarded BIGINT NOT NULL DEFAULT 0;
