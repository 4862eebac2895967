-- A draft of source 'pull-request' was read at a commit, maybe of a fork. Its Test builds say which. withheld: without
-- Sensitive values and Links, so that passing says nothing of the draft with them.
ALTER TABLE drafts ADD COLUMN commit_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE drafts ADD COLUMN fork BIGINT NOT NULL DEFAULT 0 CHECK (fork IN (0, 1));
ALTER TABLE test_builds ADD COLUMN pull_request BIGINT NOT NULL DEFAULT 0 CHECK (pull_request >= 0);
ALTER TABLE test_builds ADD COLUMN commit_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE test_builds ADD COLUMN branch_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE test_builds ADD COLUMN withheld BIGINT NOT NULL DEFAULT 0 CHECK (withheld IN (0, 1));
CREATE INDEX test_builds_pull_request ON test_builds (environment_id, pull_request, created_at);

-- A pull request that the Hub looked at, as it was then. version rises with each write: who read GitHub before it writes nothing
-- over what was read after. file: what its head has of an Environment. done: after the merge, what became of it.
CREATE TABLE proposals (
    repo_id     BIGINT NOT NULL REFERENCES repos (id),
    number      BIGINT NOT NULL CHECK (number > 0),
    version     BIGINT NOT NULL,
    title       TEXT   NOT NULL,
    url         TEXT   NOT NULL,
    author_id   BIGINT NOT NULL,
    author      TEXT   NOT NULL,
    head_sha    TEXT   NOT NULL CHECK (head_sha <> ''),
    base_ref    TEXT   NOT NULL,
    to_default  BIGINT NOT NULL CHECK (to_default IN (0, 1)),
    fork        BIGINT NOT NULL CHECK (fork IN (0, 1)),
    state       TEXT   NOT NULL CHECK (state IN ('open', 'merged', 'closed')),
    file        TEXT   NOT NULL CHECK (file IN ('none', 'deleted', 'unchanged', 'invalid', 'valid')),
    problems    TEXT   NOT NULL,
    merged_sha  TEXT   NOT NULL DEFAULT '',
    merged_by   TEXT   NOT NULL DEFAULT '',
    done        TEXT   NOT NULL DEFAULT '',
    done_detail TEXT   NOT NULL DEFAULT '',
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (repo_id, number),
    CHECK ((state = 'merged') = (merged_sha <> ''))
);
CREATE INDEX proposals_head ON proposals (repo_id, head_sha);
CREATE INDEX proposals_merged ON proposals (repo_id, merged_sha);

-- Pull requests to look at again: what was seen missing, or what GitHub was away for. Looking is repeatable, so a row is a hint.
CREATE TABLE proposal_dues (
    repo_id BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    due_at  BIGINT NOT NULL,
    afresh  BIGINT NOT NULL CHECK (afresh IN (0, 1)), -- read files again that were read before
    tries   BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (repo_id, number)
);
CREATE INDEX proposal_dues_due ON proposal_dues (due_at);

-- The check run "Environment" of a commit: another conclusion is another attempt. note is said beside it, to whom something was
-- refused. A commit of no pull request (of a merge queue, pushed) has what it says in document.
CREATE TABLE proposal_commits (
    repo_id    BIGINT NOT NULL REFERENCES repos (id),
    sha        TEXT   NOT NULL CHECK (sha <> ''),
    attempt    BIGINT NOT NULL,
    conclusion TEXT   NOT NULL,
    note       TEXT   NOT NULL DEFAULT '',
    PRIMARY KEY (repo_id, sha)
);

-- The check runs "Environment / Test build": of a Test build on the commit it was asked for, and on later ones that it counts for.
CREATE TABLE proposal_runs (
    external_id   TEXT   PRIMARY KEY,
    test_build_id TEXT   NOT NULL REFERENCES test_builds (id),
    repo_id       BIGINT NOT NULL,
    number        BIGINT NOT NULL,
    sha           TEXT   NOT NULL,
    UNIQUE (test_build_id, sha)
);
CREATE INDEX proposal_runs_sha ON proposal_runs (repo_id, sha);

-- What the default branch of a Repo was last seen to have, and when its pull requests were last compared with GitHub's.
CREATE TABLE proposal_branches (
    repo_id   BIGINT PRIMARY KEY REFERENCES repos (id),
    branch    TEXT   NOT NULL,
    sha       TEXT   NOT NULL,
    file      TEXT   NOT NULL,
    blobs     TEXT   NOT NULL,
    digest    TEXT   NOT NULL,
    swept_at  BIGINT NOT NULL DEFAULT 0
);
