-- The GitHub App that was set up on the Hub's own page: one at most. What the config names wins over it. Times are Unix ms.
CREATE TABLE github_app (
    one        BIGINT PRIMARY KEY CHECK (one = 1),
    revision   TEXT   NOT NULL, -- another one with each change, of the secrets too
    web        TEXT   NOT NULL, -- the address of its GitHub; '' is github.com
    app_id     BIGINT NOT NULL CHECK (app_id > 0),
    slug       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    owner_id   BIGINT NOT NULL,
    owner      TEXT   NOT NULL, -- login as it was then
    client_id  TEXT   NOT NULL,
    set_at     BIGINT NOT NULL
);

-- What of it nobody may read. The webhook's secret may be there several times while it is changed.
CREATE TABLE github_secrets (
    id            TEXT   PRIMARY KEY,
    kind          TEXT   NOT NULL CHECK (kind IN ('client-secret', 'private-key', 'webhook-secret')),
    sealed        BYTEA,
    sealed_key_id TEXT   REFERENCES encryption_keys (key_id),
    lost_at       BIGINT, -- secrets-reset cleared it
    made_at       BIGINT NOT NULL,
    until         BIGINT, -- an old webhook secret's end
    CHECK ((sealed IS NULL) = (sealed_key_id IS NULL)),
    CHECK ((sealed IS NULL) = (lost_at IS NOT NULL)),
    CHECK (until IS NULL OR kind = 'webhook-secret')
);
CREATE INDEX github_secrets_key ON github_secrets (sealed_key_id, id);
CREATE UNIQUE INDEX github_secrets_one ON github_secrets (kind) WHERE kind <> 'webhook-secret';

-- One-time tokens printed on the console, by their SHA-256. changes: it may replace an App that is set up.
CREATE TABLE setup_tokens (
    hash       BYTEA  PRIMARY KEY,
    changes    BIGINT NOT NULL CHECK (changes IN (0, 1)),
    made_at    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- The browsers that brought one, by the SHA-256 of their cookie.
CREATE TABLE setup_visits (
    hash       BYTEA  PRIMARY KEY,
    changes    BIGINT NOT NULL CHECK (changes IN (0, 1)),
    made_at    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- What a browser was sent to GitHub with: good once, in that browser (browser is the SHA-256 of its cookie).
CREATE TABLE setup_states (
    hash       BYTEA  PRIMARY KEY,
    browser    BYTEA  NOT NULL,
    kind       TEXT   NOT NULL CHECK (kind IN ('manifest', 'install')),
    detail     TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

-- Where the App is installed, as GitHub said when it was asked at asked_at: what was asked later wins.
CREATE TABLE github_installations (
    id           BIGINT PRIMARY KEY CHECK (id > 0),
    app_id       BIGINT NOT NULL,
    account_id   BIGINT NOT NULL,
    account      TEXT   NOT NULL, -- login
    account_type TEXT   NOT NULL,
    all_repos    BIGINT NOT NULL CHECK (all_repos IN (0, 1)),
    suspended    BIGINT NOT NULL CHECK (suspended IN (0, 1)),
    permissions  TEXT   NOT NULL, -- JSON
    url          TEXT   NOT NULL,
    asked_at     BIGINT NOT NULL,
    removed_at   BIGINT
);
CREATE INDEX github_installations_app ON github_installations (app_id, id);

-- The last webhook that arrived whole and signed for an App, to the minute.
CREATE TABLE github_heard (
    app_id BIGINT PRIMARY KEY,
    event  TEXT   NOT NULL,
    at     BIGINT NOT NULL
);
