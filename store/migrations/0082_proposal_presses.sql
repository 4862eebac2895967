-- What presses at GitHub led to, by the SHA-256 of their signed bodies: the same body leads to each once, under whatever delivery id
-- it comes again.
CREATE TABLE proposal_presses (
    repo_id BIGINT NOT NULL REFERENCES repos (id),
    body    TEXT   NOT NULL CHECK (body <> ''),
    led_to  TEXT   NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (repo_id, body, led_to)
);
