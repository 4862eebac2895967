package session

const (
	insertSQL = `INSERT INTO sessions (id, repo_id, environment_id, runner_id, assignment_id, state, version_id, branch, work_branch, disk_size, detail, created_at, created_by, changed_at)
VALUES ($1, $2, $3, $4, $5, 'starting', $6, $7, $8, $9, '{}', $10, $11, $10)`
	columns = `SELECT s.id, s.repo_id, s.environment_id, s.runner_id, s.assignment_id, s.state, s.unreachable, s.version_id, v.number, v.build_key, s.branch, s.work_branch,
s.disk_size, s.idle_ms, s.resume, s.restart, s.archive, s.detail, s.created_at, COALESCE((SELECT login FROM people p WHERE p.id = s.created_by), s.created_by), s.changed_at,
s.created_by, COALESCE((SELECT github_id FROM people p WHERE p.id = s.created_by), 0)
FROM sessions s JOIN versions v ON v.id = s.version_id `
	oneSQL        = columns + `WHERE s.repo_id = $1 AND s.id = $2 AND s.state <> 'deleted'`
	byIDSQL       = columns + `WHERE s.id = $1`
	listSQL       = columns + `WHERE s.repo_id = $1 AND s.state <> 'deleted' ORDER BY s.created_at DESC, s.id DESC`
	awakeSQL      = columns + `WHERE s.runner_id = $1 AND (s.state IN ('starting', 'running', 'waking') OR s.state = 'stopping' AND s.restart = 1) ORDER BY s.id`
	resumeSQL     = columns + `WHERE s.runner_id = $1 AND s.resume = 1 AND s.archive = '' AND s.state IN ('asleep', 'stopping') ORDER BY s.id`
	onVersionsSQL = `SELECT v.number, SUM(CASE WHEN s.state IN ('starting', 'running', 'waking') THEN 1 ELSE 0 END),
SUM(CASE WHEN s.state IN ('starting', 'running', 'waking') THEN 0 ELSE 1 END)
FROM sessions s JOIN versions v ON v.id = s.version_id WHERE s.repo_id = $1 AND s.state NOT IN ('deleted', 'deleting') GROUP BY v.number ORDER BY v.number DESC`
	// givenSQL records a version that a Session is to stand on, ranSQL finds one of them by its number.
	givenSQL   = `INSERT INTO session_versions (session_id, version_id) VALUES ($1, $2) ON CONFLICT (session_id, version_id) DO NOTHING`
	ranSQL     = `SELECT v.id FROM session_versions g JOIN versions v ON v.id = g.version_id WHERE g.session_id = $1 AND v.number = $2`
	wantSQL    = `UPDATE sessions SET state = $2, version_id = $3, idle_ms = $4, resume = $5, changed_at = $6, restart = $7, archive = $8 WHERE id = $1`
	observeSQL = `UPDATE sessions SET state = $2, detail = $3, changed_at = $4 WHERE id = $1`
	detailSQL  = `UPDATE sessions SET detail = $2 WHERE id = $1`
	loginSQL   = `SELECT login FROM people WHERE id = $1`
	deletedSQL = `UPDATE sessions SET state = 'deleted', deleted_at = $2, changed_at = $2 WHERE id = $1`
	restartSQL = `UPDATE sessions SET restart = $2 WHERE id = $1`
	archiveSQL = `UPDATE sessions SET archive = $2 WHERE id = $1`
	growSQL    = `UPDATE sessions SET disk_size = $2 WHERE id = $1`
	reachSQL   = `UPDATE sessions SET unreachable = $2 WHERE id = $1`
)
