-- People and how they are known to the Hub. source: dev (dev login) or github.
CREATE TABLE people (
    id         TEXT   PRIMARY KEY,
    source     TEXT   NOT NULL CHECK (source IN ('dev', 'github')),
    login      TEXT   NOT NULL CHECK (login <> ''),
    created_at BIGINT NOT NULL,
    UNIQUE (source, login)
);

-- Browser sessions and people's tokens, as SHA-256 of the secret only.
CREATE TABLE credentials (
    hash       BYTEA  PRIMARY KEY,
    person_id  TEXT   NOT NULL REFERENCES people (id),
    kind       TEXT   NOT NULL CHECK (kind IN ('browser', 'token')),
    name       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL CHECK (expires_at > created_at)
);
CREATE INDEX credentials_person ON credentials (person_id, kind);

-- Repos by GitHub's numeric id. Names change; two Repos may have had one name at different times.
CREATE TABLE repos (
    id        BIGINT PRIMARY KEY CHECK (id > 0),
    source    TEXT   NOT NULL CHECK (source IN ('dev', 'github')),
    name      TEXT   NOT NULL CHECK (name <> ''),
    clone_url TEXT   NOT NULL CHECK (clone_url <> ''),
    seen_at   BIGINT NOT NULL
);
CREATE INDEX repos_name ON repos (name);
