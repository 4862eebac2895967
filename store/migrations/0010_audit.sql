-- Who did what, written in the transaction that did it; append-only. repo_id 0: of no Repo. No values of Variables.
CREATE TABLE audit_log (
    id      TEXT   PRIMARY KEY,
    at      BIGINT NOT NULL,
    who     TEXT   NOT NULL CHECK (who <> ''),
    repo_id BIGINT NOT NULL,
    action  TEXT   NOT NULL CHECK (action <> ''),
    subject TEXT   NOT NULL,
    detail  TEXT   NOT NULL
);
CREATE INDEX audit_log_repo ON audit_log (repo_id, at);
