-- People of GitHub by GitHub's numeric id: logins are given to others after a rename. One login is one person's at any one
-- time; who lost theirs to another is "login (id 7)" until GitHub says what they are called now.
ALTER TABLE people ADD COLUMN github_id BIGINT CHECK ((source = 'github') = (github_id IS NOT NULL));
CREATE UNIQUE INDEX people_github ON people (github_id);
CREATE UNIQUE INDEX people_login ON people (source, lower(login));

-- What a token may do: words with spaces between, and a JSON list of Repos (NULL: all that the person may use).
ALTER TABLE credentials ADD COLUMN scopes TEXT NOT NULL DEFAULT 'read environments sessions shared runners';
ALTER TABLE credentials ADD COLUMN repos TEXT;

-- Of GitHub's Repos: which installation and whose account they were in when last seen. Of dev.repos these stay 0. seen_at
-- is when GitHub was asked; what was asked earlier never replaces what was asked later.
ALTER TABLE repos ADD COLUMN private BIGINT NOT NULL DEFAULT 0 CHECK (private IN (0, 1));
ALTER TABLE repos ADD COLUMN archived BIGINT NOT NULL DEFAULT 0 CHECK (archived IN (0, 1));
ALTER TABLE repos ADD COLUMN default_branch TEXT NOT NULL DEFAULT '';
ALTER TABLE repos ADD COLUMN installation_id BIGINT NOT NULL DEFAULT 0;
ALTER TABLE repos ADD COLUMN account_id BIGINT NOT NULL DEFAULT 0;
CREATE INDEX repos_installation ON repos (installation_id);
CREATE INDEX repos_account ON repos (account_id);
DROP INDEX repos_name;
CREATE INDEX repos_name ON repos (lower(name), seen_at);

-- What the Hub has of a person at GitHub: the tokens they signed in with, sealed (NULL: signed out at GitHub), and how old
-- the list in repo_access is. Times are Unix ms by the Hub's clock.
CREATE TABLE github_people (
    person_id      TEXT   PRIMARY KEY REFERENCES people (id),
    app_id         BIGINT NOT NULL, -- whose tokens they are
    tokens         BYTEA,
    tokens_key_id  TEXT   REFERENCES encryption_keys (key_id),
    pair           BIGINT NOT NULL, -- another number for each new pair of tokens
    access_expires BIGINT,          -- NULL: never
    named_at       BIGINT NOT NULL, -- when GitHub last said the login
    listed_at      BIGINT NOT NULL, -- when GitHub was last asked for the list
    forgets        BIGINT NOT NULL, -- how often something said that the list may have changed
    heard          BIGINT NOT NULL, -- forgets, as it was when that list was asked for: less than forgets is no longer good
    claim          TEXT,            -- one Hub at a time asks GitHub about a person
    claim_until    BIGINT,
    retry_at       BIGINT,          -- GitHub didn't answer: it is asked again from then on
    trouble        TEXT   NOT NULL DEFAULT '', -- what it was, in words
    CHECK ((tokens IS NULL) = (tokens_key_id IS NULL)),
    CHECK ((claim IS NULL) = (claim_until IS NULL)),
    CHECK (heard <= forgets)
);
CREATE INDEX github_people_key ON github_people (tokens_key_id, person_id);

-- Which Repos GitHub lists for a person, through the installations of this Hub's App.
CREATE TABLE repo_access (
    person_id TEXT   NOT NULL REFERENCES people (id),
    repo_id   BIGINT NOT NULL REFERENCES repos (id),
    level     TEXT   NOT NULL CHECK (level IN ('read', 'triage', 'write', 'maintain', 'admin')),
    PRIMARY KEY (person_id, repo_id)
);
CREATE INDEX repo_access_repo ON repo_access (repo_id);

-- Sign-ins that were begun. id is the SHA-256 of the state, in hex; browser that of the secret which the browser keeps.
CREATE TABLE sign_ins (
    id              TEXT   PRIMARY KEY,
    browser         BYTEA  NOT NULL,
    return_to       TEXT   NOT NULL,
    verifier        BYTEA,
    verifier_key_id TEXT   REFERENCES encryption_keys (key_id),
    expires_at      BIGINT NOT NULL,
    CHECK ((verifier IS NULL) = (verifier_key_id IS NULL))
);
CREATE INDEX sign_ins_key ON sign_ins (verifier_key_id, id);
CREATE INDEX sign_ins_expires ON sign_ins (expires_at);
