package fleet

import (
	"strconv"
	"strings"
)

const assignmentColumns = `a.id, a.runner, a.kind, a.subject, a.want, a.generation, a.fence, a.deadline,
	a.state, a.detail, a.report_at, a.report_generation, a.report_fence, a.report_seq,
	a.idle_since, a.lost_at, a.removed_at, a.created_at`

const (
	insertRegistrationSQL = `INSERT INTO runner_registrations (id, token_hash, created_by, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)`
	purgeRegistrationsSQL = `DELETE FROM runner_registrations WHERE used_at = 0 AND expires_at < $1`
	registrationSQL       = `SELECT id, created_by, expires_at, used_at FROM runner_registrations WHERE token_hash = $1`
	useRegistrationSQL    = `UPDATE runner_registrations SET used_at = $2, runner = $3 WHERE id = $1 AND used_at = 0`
	insertRunnerSQL       = `INSERT INTO runners (id, name, token_hash, registered_by, created_at) VALUES ($1, $2, $3, $4, $5)`
	nameTakenSQL          = `SELECT id, hello_at FROM runners WHERE name = $1 AND revoked_at = 0`
	revokeSQL             = `UPDATE runners SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0`

	runnerColumns = `id, name, platform, version, protocol, engine, capabilities, missing, cpu_limit, memory_limit, hello_at, last_contact_at, created_at, revoked_at`
	runnerByHash  = `SELECT ` + runnerColumns + ` FROM runners WHERE token_hash = $1`
	runnerByID    = `SELECT ` + runnerColumns + ` FROM runners WHERE id = $1`
	runnersSQL    = `SELECT ` + runnerColumns + ` FROM runners WHERE revoked_at = 0 ORDER BY name`
	loadSQL       = `SELECT runner, kind, COUNT(*) FROM assignments WHERE removed_at = 0 AND want = 'run' GROUP BY runner, kind`
	helloSQL      = `UPDATE runners SET protocol = $2, version = $3, platform = $4, engine = $5, capabilities = $6, missing = $7,
		cpu_limit = $8, memory_limit = $9, instance = $10, hello_at = $11, last_contact_at = $11 WHERE id = $1 AND revoked_at = 0`
	contactSQL = `UPDATE runners SET last_contact_at = $2 WHERE id = $1 AND last_contact_at < $2`

	homeSQL            = `SELECT r.hub, COALESCE(h.peer_url, ''), COALESCE(h.seen_at, 0) FROM runners r LEFT JOIN hubs h ON h.id = r.hub WHERE r.id = $1`
	settleSQL          = `UPDATE runners SET hub = $2 WHERE id = $1`
	servedElsewhereSQL = `SELECT id FROM runners WHERE hub <> '' AND hub <> $1`
	beatSQL            = `INSERT INTO hubs (id, peer_url, seen_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at`
	withdrawHubSQL     = `DELETE FROM hubs WHERE id = $1`
	forgetHubsSQL      = `DELETE FROM hubs WHERE seen_at < $1`

	insertAssignmentSQL = `INSERT INTO assignments (id, runner, kind, subject, want, generation, fence, deadline, created_at) VALUES ($1, $2, $3, $4, $5, 1, 1, $6, $7)`
	assignmentByID      = `SELECT ` + assignmentColumns + ` FROM assignments a WHERE a.id = $1`
	assignmentOf        = `SELECT ` + assignmentColumns + ` FROM assignments a WHERE a.kind = $1 AND a.subject = $2 ORDER BY a.created_at DESC, a.id DESC LIMIT 1`
	assignmentsOfRunner = `SELECT ` + assignmentColumns + ` FROM assignments a WHERE a.runner = $1 AND a.removed_at = 0 ORDER BY a.id`
	changeSQL           = `UPDATE assignments SET want = $2, deadline = $3, generation = generation + 1, idle_since = 0 WHERE id = $1 AND removed_at = 0`
	deadlineSQL         = `UPDATE assignments SET deadline = $2 WHERE id = $1 AND removed_at = 0`
	refenceSQL          = `UPDATE assignments SET fence = fence + 1, idle_since = 0 WHERE id = $1 AND removed_at = 0`
	endLogSQL           = `UPDATE logs SET ended = 1 WHERE assignment = $1`
	forgetSQL           = `DELETE FROM assignments WHERE id = $1`
	reportSQL           = `UPDATE assignments SET report_fence = $2, report_seq = $3, report_generation = $4, report_at = $5, report_refused = $6, state = $7, detail = $8 WHERE id = $1`
	removedSQL          = `UPDATE assignments SET removed_at = $2, idle_since = 0, lost_at = 0 WHERE id = $1 AND want = 'remove'`
	idleSQL             = `UPDATE assignments SET idle_since = $2 WHERE id = $1 AND generation = $3 AND fence = $4 AND removed_at = 0`
	foundSQL            = `UPDATE assignments SET lost_at = 0 WHERE id = $1 AND lost_at <> 0`

	deadlineDueSQL = `SELECT a.deadline, a.id FROM assignments a
		WHERE a.removed_at = 0 AND a.deadline > 0 AND a.deadline <= $1 AND a.deadline <> a.deadline_lost AND (a.deadline > $2 OR (a.deadline = $2 AND a.id > $3))
		ORDER BY a.deadline, a.id LIMIT $4`
	stillDeadline   = ` AND a.removed_at = 0 AND a.deadline > 0 AND a.deadline <= $1 AND a.deadline <> a.deadline_lost`
	markDeadlineSQL = `UPDATE assignments SET deadline_lost = deadline WHERE deadline <= $1`
	silentDueSQL    = `SELECT 0, a.id FROM assignments a JOIN runners r ON r.id = a.runner
		WHERE a.removed_at = 0 AND a.lost_at = 0 AND a.created_at < $1 AND r.last_contact_at < $1 AND a.deadline >= $2 AND a.id > $3
		ORDER BY a.id LIMIT $4`
	stillSilent   = ` AND a.removed_at = 0 AND a.lost_at = 0 AND a.created_at < $1 AND (SELECT r.last_contact_at FROM runners r WHERE r.id = a.runner) < $1`
	markSilentSQL = `UPDATE assignments SET lost_at = $1 WHERE lost_at = 0`
	idleDueSQL    = `SELECT ` + assignmentColumns + ` FROM assignments a
		WHERE a.removed_at = 0 AND a.idle_since > 0 AND a.idle_since < $1 AND a.want = 'run' AND a.lost_at = 0 ORDER BY a.idle_since, a.id`

	logForAppendSQL = `SELECT a.fence, l.fence, l.base, l.next, l.kept, l.ended
		FROM assignments a LEFT JOIN logs l ON l.assignment = a.id WHERE a.id = $1 AND a.runner = $2`
	saveLogSQL = `INSERT INTO logs (assignment, fence, base, next, kept, ended) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (assignment) DO UPDATE SET fence = excluded.fence, base = excluded.base, next = excluded.next, kept = excluded.kept, ended = excluded.ended`
	insertChunkSQL = `INSERT INTO log_chunks (assignment, start, size, data) VALUES ($1, $2, $3, $4)`
	lastChunkSQL   = `SELECT start, size, data FROM log_chunks WHERE assignment = $1 ORDER BY start DESC LIMIT 1`
	growChunkSQL   = `UPDATE log_chunks SET size = $3, data = $4 WHERE assignment = $1 AND start = $2`
	middleSQL      = `SELECT start, size FROM log_chunks WHERE assignment = $1 AND start >= $2 ORDER BY start LIMIT $3`
	dropMiddleSQL  = `DELETE FROM log_chunks WHERE assignment = $1 AND start >= $2 AND start < $3`
	logSQL         = `SELECT a.id, l.next, l.kept, l.ended FROM assignments a LEFT JOIN logs l ON l.assignment = a.id WHERE a.id = $1`
	chunkBeforeSQL = `SELECT start, size, data FROM log_chunks WHERE assignment = $1 AND start < $2 ORDER BY start DESC LIMIT 1`
	chunksFromSQL  = `SELECT start, size, data FROM log_chunks WHERE assignment = $1 AND start >= $2 ORDER BY start LIMIT $3`

	openTerminalSQL     = `INSERT INTO terminals (id, assignment, runner, fence, spec, opened_by, opened_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	terminalsRunningSQL = `SELECT COUNT(*) FROM terminals WHERE assignment = $1 AND ended_at = 0`
	terminalColumns     = `id, opened_by, opened_at, ended_at, ended_how`
	terminalsSQL        = `SELECT ` + terminalColumns + ` FROM (SELECT ` + terminalColumns + ` FROM terminals WHERE assignment = $1
		ORDER BY CASE WHEN ended_at = 0 THEN 0 ELSE 1 END, opened_at DESC LIMIT 24) t ORDER BY opened_at, id`
	terminalSQL          = `SELECT assignment, ` + terminalColumns + ` FROM terminals WHERE id = $1`
	terminalRowColumns   = `id, assignment, runner, fence, spec, began_at`
	terminalRowSQL       = `SELECT ` + terminalRowColumns + ` FROM terminals WHERE id = $1`
	terminalsOfRunnerSQL = `SELECT ` + terminalRowColumns + ` FROM terminals WHERE runner = $1 AND ended_at = 0 ORDER BY id`
	beganTerminalSQL     = `UPDATE terminals SET began_at = $2 WHERE id = $1 AND began_at = 0`
	endTerminalSQL       = `UPDATE terminals SET ended_at = $2, ended_how = $3 WHERE id = $1 AND ended_at = 0`
	endTerminalsSQL      = `UPDATE terminals SET ended_at = $3, ended_how = $4 WHERE assignment = $1 AND fence < $2 AND ended_at = 0`
)

// in is " AND column IN ($from, …)" for n values.
func in(column string, from, n int) string {
	var b strings.Builder
	b.WriteString(" AND " + column + " IN (")
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(from+i))
	}
	b.WriteString(")")
	return b.String()
}
