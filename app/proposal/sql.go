package proposal

const (
	columns = `number, version, title, url, author_id, author, head_sha, base_ref, to_default, fork, state, file, problems, merged_sha, merged_by, done, done_detail, updated_at`

	selectSQL  = `SELECT ` + columns + ` FROM proposals WHERE repo_id = $1 `
	oneSQL     = selectSQL + `AND number = $2`
	atSQL      = selectSQL + `AND ((state = 'open' AND head_sha = $2) OR (state = 'merged' AND merged_sha = $2)) ORDER BY number`
	headsSQL   = `SELECT COUNT(*) FROM proposals WHERE repo_id = $1 AND head_sha = $2`
	openSQL    = selectSQL + `AND state = 'open' ORDER BY number`
	draftsSQL  = selectSQL + `AND ((state = 'open' AND file IN ('valid', 'invalid', 'deleted')) OR (state = 'merged' AND done = 'needs')) ORDER BY number DESC LIMIT $2`
	changedSQL = selectSQL + `AND (state = 'open' OR (state = 'merged' AND done = 'needs')) AND file IN ('valid', 'invalid') ORDER BY number`

	insertSQL = `INSERT INTO proposals (repo_id, ` + columns + `)
VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT (repo_id, number) DO NOTHING`
	updateSQL = `UPDATE proposals SET version = version + 1, title = $4, url = $5, author_id = $6, author = $7, head_sha = $8, base_ref = $9, to_default = $10,
fork = $11, state = $12, file = $13, problems = $14, merged_sha = $15, merged_by = $16, done = $17, done_detail = $18, updated_at = $19
WHERE repo_id = $1 AND number = $2 AND version = $3`

	dueSQL = `INSERT INTO proposal_dues (repo_id, number, due_at, afresh) VALUES ($1, $2, $3, $4)
ON CONFLICT (repo_id, number) DO UPDATE SET due_at = CASE WHEN proposal_dues.due_at < excluded.due_at THEN proposal_dues.due_at ELSE excluded.due_at END,
afresh = CASE WHEN excluded.afresh = 1 THEN 1 ELSE proposal_dues.afresh END`
	duesSQL   = `SELECT repo_id, number, due_at, afresh, tries FROM proposal_dues WHERE due_at <= $1 ORDER BY due_at LIMIT $2`
	nextSQL   = `SELECT COALESCE(MIN(due_at), 0) FROM proposal_dues`
	claimSQL  = `UPDATE proposal_dues SET due_at = $4, tries = tries + 1 WHERE repo_id = $1 AND number = $2 AND due_at = $3`
	laterSQL  = `UPDATE proposal_dues SET due_at = $4 WHERE repo_id = $1 AND number = $2 AND due_at = $3`
	lookedSQL = `DELETE FROM proposal_dues WHERE repo_id = $1 AND number = $2 AND due_at = $3`

	pushSQL      = `INSERT INTO proposal_pushes (repo_id, sha, pusher, at) VALUES ($1, $2, $3, $4) ON CONFLICT (repo_id, sha, pusher) DO UPDATE SET at = excluded.at`
	pushersSQL   = `SELECT pusher FROM proposal_pushes WHERE repo_id = $1 AND sha = $2 ORDER BY at DESC, pusher`
	oldPushesSQL = `DELETE FROM proposal_pushes WHERE at < $1`

	pressSQL   = `INSERT INTO proposal_presses (repo_id, body, led_to, at) VALUES ($1, $2, $3, $4) ON CONFLICT (repo_id, body, led_to) DO NOTHING`
	pressedSQL = `SELECT COUNT(*) FROM proposal_presses WHERE repo_id = $1 AND body = $2 AND led_to = $3`

	commitSQL = `SELECT attempt, conclusion, note FROM proposal_commits WHERE repo_id = $1 AND sha = $2`
	keepSQL   = `INSERT INTO proposal_commits (repo_id, sha, attempt, conclusion, note) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (repo_id, sha) DO UPDATE SET attempt = excluded.attempt, conclusion = excluded.conclusion, note = excluded.note`

	insertRunSQL = `INSERT INTO proposal_runs (external_id, test_build_id, repo_id, number, sha) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (test_build_id, sha) DO NOTHING`
	runsSQL      = `SELECT external_id, sha FROM proposal_runs WHERE test_build_id = $1 ORDER BY external_id`
	runSQL       = `SELECT test_build_id, number, sha FROM proposal_runs WHERE external_id = $1 AND repo_id = $2`

	branchSQL     = `SELECT branch, sha, file, blobs, digest FROM proposal_branches WHERE repo_id = $1`
	keepBranchSQL = `INSERT INTO proposal_branches (repo_id, branch, sha, file, blobs, digest) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (repo_id) DO UPDATE SET branch = excluded.branch, sha = excluded.sha, file = excluded.file, blobs = excluded.blobs, digest = excluded.digest`
	// sweepsSQL: Repos of the App that have an Environment, a known file or a pull request, and, once, those that were never looked at
	// since the App is installed on them;
	// those that were compared longest ago first.
	sweepsSQL = `SELECT r.id, COALESCE(b.swept_at, 0) FROM repos r LEFT JOIN proposal_branches b ON b.repo_id = r.id
WHERE r.source = 'github' AND COALESCE(b.swept_at, 0) < $1 AND (b.repo_id IS NULL OR b.file <> 'none'
OR b.swept_at = 0 OR EXISTS (SELECT 1 FROM environments e WHERE e.repo_id = r.id) OR EXISTS (SELECT 1 FROM proposals p WHERE p.repo_id = r.id))
ORDER BY 2, 1 LIMIT $2`
	newRepoSQL = `INSERT INTO proposal_branches (repo_id, branch, sha, file, blobs, digest, swept_at) SELECT id, '', '', 'none', '', '', 0 FROM repos WHERE id = $1
ON CONFLICT (repo_id) DO UPDATE SET swept_at = 0`
	sweepSQL = `INSERT INTO proposal_branches (repo_id, branch, sha, file, blobs, digest, swept_at) VALUES ($1, '', '', 'none', '', '', $3)
ON CONFLICT (repo_id) DO UPDATE SET swept_at = excluded.swept_at WHERE proposal_branches.swept_at = $2`
)
