package webhook

const (
	// insertSQL leaves alone what waits or is done. What was set aside begins anew: GitHub was asked to send it again.
	insertSQL = `INSERT INTO deliveries (guid, event, action, subject, body, state, received_at, due_at) VALUES ($1, $2, $3, $4, $5, 'waiting', $6, $6)
ON CONFLICT (guid) DO UPDATE SET state = 'waiting', body = excluded.body, received_at = excluded.received_at, due_at = excluded.due_at,
tries = 0, faults = 0, ended_at = 0, why = '' WHERE deliveries.state = 'aside'`

	nextDueSQL = `SELECT due_at FROM deliveries WHERE state = 'waiting' ORDER BY due_at LIMIT 1`
	// dueSQL passes over what is about something that is being worked on just now.
	dueSQL = `SELECT guid, subject FROM deliveries d WHERE state = 'waiting' AND due_at <= $1 AND NOT EXISTS (SELECT 1 FROM deliveries o
WHERE o.subject = d.subject AND o.subject <> '' AND o.state = 'waiting' AND o.claimed_by <> '' AND o.due_at > $1) ORDER BY due_at, guid LIMIT $2`
	takeSQL = `UPDATE deliveries SET claimed_by = $2, due_at = $3, tries = tries + 1, faults = faults + 1 WHERE state = 'waiting' AND `
	// A claim takes along what rests after a failure and is about the same.
	takeOneSQL     = takeSQL + `guid = $1`
	takeSubjectSQL = takeSQL + `subject = $1 AND subject <> ''`
	claimedSQL     = `SELECT guid, event, action, body, received_at, tries FROM deliveries WHERE claimed_by = $1 ORDER BY received_at DESC, guid DESC LIMIT 1`
	aboutSQL       = `SELECT COUNT(*) FROM deliveries WHERE subject = $1 AND subject <> '' AND state = 'waiting'`
	renewSQL       = `UPDATE deliveries SET due_at = $2 WHERE claimed_by = $1`

	doneSQL    = `UPDATE deliveries SET state = 'done', ended_at = $2, claimed_by = '', body = NULL WHERE claimed_by = $1`
	asideSQL   = `UPDATE deliveries SET state = 'aside', ended_at = $2, claimed_by = '', why = $3 WHERE claimed_by = $1`
	tooManySQL = asideSQL + ` AND faults >= $4`
	tooOldSQL  = asideSQL + ` AND received_at <= $4`
	restSQL    = `UPDATE deliveries SET claimed_by = '', due_at = $2, faults = faults - $3 WHERE claimed_by = $1`
	releaseSQL = `UPDATE deliveries SET claimed_by = '', due_at = $2, tries = tries - 1, faults = faults - 1 WHERE claimed_by = $1`
	// deadlySQL sets aside what Hubs ended on: nobody was left to say why.
	deadlySQL = `UPDATE deliveries SET state = 'aside', ended_at = $1, claimed_by = '', why = $2 WHERE state = 'waiting' AND due_at <= $1 AND faults >= $3`

	pruneSQL      = `DELETE FROM deliveries WHERE guid IN (SELECT guid FROM deliveries WHERE ((state = 'done' AND ended_at < $1) OR (state = 'aside' AND ended_at < $2)) AND ended_at > 0 LIMIT $3)`
	asidesSQL     = `SELECT guid, event, action, received_at, ended_at, tries, why FROM deliveries WHERE state = 'aside' AND ended_at > 0 ORDER BY ended_at DESC, guid LIMIT $1`
	againSQL      = `UPDATE deliveries SET state = 'waiting', due_at = $2, tries = 0, faults = 0, ended_at = 0, why = '', received_at = $2 WHERE guid = $1 AND state = 'aside'`
	waitingSQL    = `SELECT COUNT(*), COALESCE(MIN(received_at), 0) FROM deliveries WHERE state = 'waiting'`
	asideCountSQL = `SELECT COUNT(*) FROM deliveries WHERE state = 'aside' AND ended_at > 0`
	knownSQL      = `SELECT COUNT(*) FROM deliveries WHERE guid = $1 AND state <> 'aside'`

	insertSweepSQL = `INSERT INTO delivery_sweeps (app, seen_to, next_at) VALUES ($1, $2, 0) ON CONFLICT (app) DO NOTHING`
	sweepSQL       = `SELECT seen_to, held_by, next_at FROM delivery_sweeps WHERE app = $1`
	holdSweepSQL   = `UPDATE delivery_sweeps SET held_by = $2, next_at = $3 WHERE app = $1`
	endSweepSQL    = `UPDATE delivery_sweeps SET held_by = '', seen_to = $3, next_at = $4 WHERE app = $1 AND held_by = $2`
)
