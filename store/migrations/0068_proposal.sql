-- A draft of source 'pull-request' was read at a commit, maybe of a fork. Its Test builds say which. withheld: without
-- Sensitive values and Links, so that passing says nothing of the draft with them.
ALTER TABLE drafts ADD COLUMN commit_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE drafts ADD COLUMN fork BIGINT NOT NULL DEFAULT 0 CHECK (fork IN (0, 1));
ALTER TABLE test_builds ADD COLUMN pull_request BIGINT NOT NULL DEFAULT 0 CHECK (pull_request >= 0);
ALTER TABLE test_builds ADD COLUMN commit_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE test_builds ADD COLUMN branch_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE test_builds ADD COLUMN withheld BIGINT NOT NULL DEFAULT 0 CHECK (withheld IN (0, 1));
CREATE INDEX test_builds_pull_request ON test_builds (environment_id, pull_request, created_at);
