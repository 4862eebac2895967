package session

const (
	insertRunSQL = `INSERT INTO runs (id, session_id, assignment_id, command, spec, created_at, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	runColumns   = `SELECT r.id, r.session_id, r.assignment_id, r.command, r.spec, r.created_at,
COALESCE((SELECT login FROM people p WHERE p.id = r.created_by), r.created_by), r.stopped_by, r.started_at, r.ended_at, r.ended_how FROM runs r `
	runSQL        = runColumns + `WHERE r.session_id = $1 AND r.id = $2`
	runByIDSQL    = runColumns + `WHERE r.id = $1`
	runsSQL       = runColumns + `WHERE r.session_id = $1 ORDER BY r.created_at DESC, r.id DESC`
	runsOpenSQL   = `SELECT COUNT(*) FROM runs WHERE session_id = $1 AND ended_at = 0`
	runsEndedSQL  = runColumns + `WHERE r.session_id = $1 AND r.ended_at <> 0 ORDER BY r.created_at DESC, r.id DESC`
	startedRunSQL = `UPDATE runs SET started_at = $2 WHERE id = $1 AND started_at = 0 AND ended_at = 0`
	stopRunSQL    = `UPDATE runs SET stopped_by = $2 WHERE id = $1 AND stopped_by = '' AND ended_at = 0`
	endRunSQL     = `UPDATE runs SET started_at = $2, ended_at = $3, ended_how = $4, spec = '' WHERE id = $1 AND ended_at = 0`
	forgetRunSQL  = `DELETE FROM runs WHERE id = $1`
)
