package environment

const (
	anyAppliedSQL = `SELECT COUNT(*) FROM (SELECT 1 FROM versions LIMIT 1) AS one`

	insertEnvironmentSQL = `INSERT INTO environments (id, repo_id, current, created_at, created_by) VALUES ($1, $2, 0, $3, $4)
ON CONFLICT (repo_id) DO NOTHING`
	environmentSQL = `SELECT id, current, discarded FROM environments WHERE repo_id = $1`
	discardedSQL   = `UPDATE environments SET discarded = $2 WHERE id = $1`
	setCurrentSQL  = `UPDATE environments SET current = $3 WHERE id = $1 AND current = $2`
	repoOfSQL      = `SELECT repo_id FROM environments WHERE id = $1`
	havingSQL      = `SELECT repo_id FROM environments e WHERE current > 0 OR EXISTS (SELECT 1 FROM drafts d WHERE d.environment_id = e.id)`

	draftSQL = `SELECT id, revision, spec, test_key, updated_at, commit_sha, fork,
COALESCE((SELECT login FROM people p WHERE p.id = updated_by), updated_by) FROM drafts WHERE environment_id = $1 AND source = $2 AND ref = $3`
	insertDraftSQL = `INSERT INTO drafts (id, environment_id, source, ref, revision, spec, test_key, updated_at, updated_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	updateDraftSQL = `UPDATE drafts SET revision = revision + 1, spec = $3, test_key = $4, updated_at = $5, updated_by = $6
WHERE id = $1 AND revision = $2`
	readAtSQL = `UPDATE drafts SET commit_sha = $2, fork = $3 WHERE id = $1`
	newestSQL = `SELECT spec FROM drafts WHERE environment_id = $1 UNION ALL
SELECT v.spec FROM versions v JOIN environments e ON e.id = v.environment_id AND e.current = v.number WHERE e.id = $1`
	// namedSQL counts the Specs that still need what $2, a pattern, finds in them.
	namedSQL = `SELECT (SELECT COUNT(*) FROM drafts WHERE environment_id = $1 AND spec LIKE $2) + (SELECT COUNT(*) FROM versions WHERE environment_id = $1 AND spec LIKE $2) +
(SELECT COUNT(*) FROM test_builds WHERE environment_id = $1 AND state IN ('queued', 'running') AND spec LIKE $2)`
	// appliedSQL counts the versions in which $2, a pattern, is found.
	appliedSQL     = `SELECT COUNT(*) FROM versions WHERE environment_id = $1 AND spec LIKE $2`
	deleteDraftSQL = `DELETE FROM drafts WHERE id = $1 AND revision = $2`

	insertTestSQL = `INSERT INTO test_builds (id, environment_id, revision, spec, test_key, runner_id, assignment_id, state, created_at, created_by, detail,
pull_request, commit_sha, branch_sha, withheld) VALUES ($1, $2, $3, $4, $5, $6, $7, 'queued', $8, $9, '{}', $10, $11, $12, $13)`
	testColumns = `SELECT t.id, t.environment_id, t.revision, t.spec, t.test_key, t.runner_id, t.assignment_id, t.state, t.cancelled_by,
t.created_at, COALESCE((SELECT login FROM people p WHERE p.id = t.created_by), t.created_by), COALESCE(t.finished_at, 0), t.detail, t.image_digest, t.build_key,
t.pull_request, t.commit_sha, t.branch_sha, t.withheld FROM test_builds t `
	testSQL        = testColumns + `WHERE t.environment_id = $1 AND t.id = $2`
	testByIDSQL    = testColumns + `WHERE t.id = $1`
	testsSQL       = testColumns + `WHERE t.environment_id = $1 ORDER BY t.created_at DESC, t.id DESC LIMIT $2`
	passedSQL      = testColumns + `WHERE t.environment_id = $1 AND t.test_key = $2 AND t.state = 'passed' AND t.withheld = 0 ORDER BY t.finished_at DESC, t.id DESC LIMIT 1`
	runningTestSQL = testColumns + `WHERE t.environment_id = $1 AND t.test_key = $2 AND t.runner_id = $3 AND t.withheld = $4 AND t.state IN ('queued', 'running') LIMIT 1`
	newestTestSQL  = testColumns + `WHERE t.environment_id = $1 AND t.test_key = $2 AND t.withheld = 0 ORDER BY t.created_at DESC, t.id DESC LIMIT 1`
	// outdatedSQL are those that run for a pull request, of another draft than what it says now.
	outdatedSQL  = testColumns + `WHERE t.environment_id = $1 AND t.pull_request = $2 AND t.test_key <> $3 AND t.cancelled_by = '' AND t.state IN ('queued', 'running')`
	testsOfSQL   = testColumns + `WHERE t.environment_id = $1 AND t.pull_request = $2 ORDER BY t.created_at DESC, t.id DESC LIMIT $3`
	openTestsSQL = testColumns + `JOIN environments e ON e.id = t.environment_id WHERE e.repo_id = $1 AND t.state IN ('queued', 'running') ORDER BY t.id`
	testedOnSQL  = `SELECT runner_id FROM test_builds WHERE id = $1`
	testedAtSQL  = `SELECT created_at FROM test_builds WHERE id = $1`
	progressSQL  = `UPDATE test_builds SET state = $2, detail = $3 WHERE id = $1 AND state IN ('queued', 'running')`
	finishSQL    = `UPDATE test_builds SET state = $2, detail = $3, image_digest = $4, build_key = $5, finished_at = $6
WHERE id = $1 AND state IN ('queued', 'running')`
	cancelSQL = `UPDATE test_builds SET cancelled_by = $2 WHERE id = $1 AND cancelled_by = '' AND state IN ('queued', 'running')`

	insertVersionSQL = `INSERT INTO versions (id, environment_id, number, spec, test_key, build_key, image_digest, test_build_id, message, source, applied_at, applied_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	versionColumns = `SELECT v.id, v.environment_id, v.number, v.spec, v.test_key, v.build_key, v.image_digest, v.test_build_id, v.message, v.source,
v.applied_at, COALESCE((SELECT login FROM people p WHERE p.id = v.applied_by), v.applied_by) FROM versions v `
	versionSQL     = versionColumns + `WHERE v.environment_id = $1 AND v.number = $2`
	versionByIDSQL = versionColumns + `WHERE v.id = $1`
	versionsSQL    = versionColumns + `WHERE v.environment_id = $1 ORDER BY v.number DESC LIMIT $2`
)
