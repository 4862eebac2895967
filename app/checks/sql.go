package checks

const (
	viewColumns   = `SELECT external_id, repo_id, sha, name, status, conclusion, view FROM check_runs `
	byExternalSQL = viewColumns + `WHERE external_id = $1`
	byRunSQL      = viewColumns + `WHERE check_run = $1`

	shownSQL  = `SELECT repo_id, sha, name, status, conclusion, view, parked FROM check_runs WHERE external_id = $1`
	insertSQL = `INSERT INTO check_runs (external_id, repo_id, sha, name, status, conclusion, view, version, created_at, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $8)`
	changeSQL = `UPDATE check_runs SET status = $2, conclusion = $3, view = $4, version = version + 1, changed_at = $5, attempts = 0,
next_try = CASE WHEN $6 = 1 THEN 0 ELSE next_try END, parked = CASE WHEN $6 = 1 THEN '' ELSE parked END WHERE external_id = $1`
)
