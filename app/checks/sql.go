package checks

const (
	viewColumns   = `external_id, repo_id, sha, name, status, conclusion, view`
	byExternalSQL = `SELECT ` + viewColumns + ` FROM check_runs WHERE external_id = $1`
	byRunSQL      = `SELECT ` + viewColumns + ` FROM check_runs WHERE check_run = $1 ORDER BY created_at DESC LIMIT 1`

	shownSQL  = `SELECT repo_id, sha, name, status, conclusion, view, parked FROM check_runs WHERE external_id = $1`
	insertSQL = `INSERT INTO check_runs (` + viewColumns + `, version, created_at, changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $8)`
	changeSQL = `UPDATE check_runs SET status = $2, conclusion = $3, view = $4, version = version + 1,
changed_at = CASE WHEN $6 = 1 THEN $5 ELSE changed_at END, next_try = CASE WHEN $6 = 1 THEN 0 ELSE next_try END,
parked = CASE WHEN $6 = 1 THEN '' ELSE parked END WHERE external_id = $1`

	wakeSQL = `UPDATE check_runs SET parked = '', attempts = 0, next_try = 0
WHERE shown < version AND parked <> '' AND (installation = $1 OR installation = 0)`
	wakeRepoSQL = `UPDATE check_runs SET parked = '', attempts = 0, next_try = 0, installation = 0 WHERE shown < version AND repo_id = $1`

	pendingSQL = `SELECT COUNT(*) FROM check_runs WHERE shown < version AND parked = ''`
	parkedSQL  = `SELECT COUNT(*) FROM check_runs WHERE shown < version AND parked <> ''`

	lanesSQL = `SELECT r.installation, MIN(r.next_try), COALESCE(MAX(l.next_at), 0), COALESCE(MAX(l.held_until), 0)
FROM check_runs r LEFT JOIN check_lanes l ON l.installation = r.installation WHERE r.shown < r.version GROUP BY r.installation`
	makeLaneSQL    = `INSERT INTO check_lanes (installation) VALUES ($1) ON CONFLICT (installation) DO NOTHING`
	laneSQL        = `SELECT holder, held_until, next_at, failures FROM check_lanes WHERE installation = $1`
	holdLaneSQL    = `UPDATE check_lanes SET holder = $2, held_until = $3 WHERE installation = $1`
	releaseLaneSQL = `UPDATE check_lanes SET holder = '', held_until = 0, next_at = $2, failures = $3 WHERE installation = $1`

	jobColumns = `SELECT ` + viewColumns + `, version, created_at, app_id, COALESCE(check_run, 0), creating_since, shown_status, noted, notes, noting, attempts, refused
FROM check_runs `
	// What completed goes first: people and merge queues wait for it. Then come other states, the oldest first, then texts, of
	// which the one that GitHub has for longest.
	nextSQL = jobColumns + `WHERE installation = $1 AND shown < version AND next_try <= $2
ORDER BY CASE WHEN shown_status = status THEN 2 WHEN status = 'completed' THEN 0 ELSE 1 END,
CASE WHEN shown_status = status THEN shown_at ELSE changed_at END, external_id LIMIT 1`
	// newerSQL and olderSQL look at the check runs that have the same name on the same commit, of which people see the newest.
	newerSQL = `SELECT COUNT(*) FROM check_runs WHERE repo_id = $1 AND sha = $2 AND name = $3 AND (created_at > $4 OR (created_at = $4 AND external_id > $5))
AND check_run IS NOT NULL AND app_id = $6`
	// olderSQL is the one that is to be made first: it is due, or may be there already. One that isn't taken is not waited for.
	olderSQL = `SELECT external_id, installation, next_try FROM check_runs WHERE repo_id = $1 AND sha = $2 AND name = $3
AND (created_at < $4 OR (created_at = $4 AND external_id < $5)) AND check_run IS NULL AND shown < version AND parked = ''
AND (next_try <= $6 OR creating_since <> 0) ORDER BY created_at, external_id LIMIT 1`
	jobSQL       = jobColumns + `WHERE external_id = $1`
	supersedeSQL = `UPDATE check_runs SET shown = version, shown_at = $2, attempts = 0, parked = '', last_error = '' WHERE external_id = $1`
	waitSQL      = `UPDATE check_runs SET next_try = $2 WHERE external_id = $1`

	markSQL = `UPDATE check_runs SET app_id = $2, check_run = $3, creating_since = $4, shown_status = $5, noted = $6, notes = $7, noting = $8 WHERE external_id = $1`

	keepSQL = `UPDATE check_runs SET check_run = $2, creating_since = $3, shown_status = $4, noted = $5, notes = $6, noting = $7 WHERE external_id = $1`
	// agreeSQL: GitHub shows version $2. What has changed its state meanwhile is due at once.
	agreeSQL = `UPDATE check_runs SET shown = $2, shown_at = $3, attempts = 0, parked = '', last_error = '',
next_try = CASE WHEN status = $4 THEN CAST($5 AS BIGINT) ELSE 0 END WHERE external_id = $1`
	laterSQL   = `UPDATE check_runs SET attempts = $3, next_try = $4, last_error = $5 WHERE external_id = $1 AND version = $2`
	dueSQL     = `UPDATE check_runs SET next_try = 0 WHERE external_id = $1`
	shorterSQL = `UPDATE check_runs SET refused = version, last_error = $3, next_try = 0 WHERE external_id = $1 AND version = $2`
	parkSQL    = `UPDATE check_runs SET parked = $3, last_error = $4, next_try = $5 WHERE external_id = $1 AND version = $2`
	parkRepo   = `UPDATE check_runs SET parked = $2, last_error = $3, next_try = $4, installation = 0 WHERE repo_id = $1 AND shown < version`
	parkLane   = `UPDATE check_runs SET parked = $2, last_error = $3, next_try = $4 WHERE installation = $1 AND shown < version`
	placeSQL   = `UPDATE check_runs SET installation = $2, parked = '', next_try = 0 WHERE repo_id = $1 AND shown < version AND installation <> $2`
	// againSQL: GitHub works again, so what waits only for that needn't wait longer.
	againSQL = `UPDATE check_runs SET next_try = 0 WHERE installation = $1 AND shown < version AND parked = '' AND attempts > 0`
	// doubtSQL: somebody else may have written something older since.
	doubtSQL = `UPDATE check_runs SET shown = 0, next_try = 0 WHERE external_id = $1`
)
