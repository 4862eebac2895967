-- Who pushed which commit, as GitHub's events said it: it can't be asked later. Kept for a month, for Test builds that the Hub starts by
-- itself.
CREATE TABLE proposal_pushes (
    repo_id BIGINT NOT NULL,
    sha     TEXT   NOT NULL,
    pusher  BIGINT NOT NULL, -- GitHub's id of a person
    at      BIGINT NOT NULL,
    PRIMARY KEY (repo_id, sha, pusher)
);
CREATE INDEX proposal_pushes_at ON proposal_pushes (at);
