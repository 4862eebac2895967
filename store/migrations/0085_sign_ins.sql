-- A sign-in that was begun is in a cookie of its browser. What is kept is that it came back, by the SHA-256 of its state in hex, until it
-- would be too old: it is good once.
DROP TABLE sign_ins;
CREATE TABLE sign_ins_finished (
    id         TEXT   PRIMARY KEY,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sign_ins_finished_expires ON sign_ins_finished (expires_at);
