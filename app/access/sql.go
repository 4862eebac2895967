package access

const (
	upsertPersonSQL = `INSERT INTO people (id, source, login, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (source, login) DO NOTHING`
	personByLoginSQL = `SELECT id, source, login FROM people WHERE source = $1 AND login = $2`

	// Whoever else had the login has another one now, whatever it is.
	displaceSQL = `UPDATE people SET login = login || ' (id ' || CAST(github_id AS TEXT) || ')'
WHERE source = 'github' AND lower(login) = lower($1) AND github_id <> $2`
	upsertGitHubPersonSQL = `INSERT INTO people (id, source, login, created_at, github_id) VALUES ($1, 'github', $2, $3, $4)
ON CONFLICT (github_id) DO UPDATE SET login = excluded.login`
	personByGitHubIDSQL = `SELECT id, source, login, github_id FROM people WHERE github_id = $1`

	insertCredentialSQL = `INSERT INTO credentials (hash, person_id, kind, name, created_at, seen_at, expires_at, scopes, repos)
VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8)`
	credentialSQL = `SELECT p.id, p.source, p.login, COALESCE(p.github_id, 0), c.kind, c.seen_at, c.expires_at, c.scopes, c.repos, ` + standingColumns + `
FROM credentials c JOIN people p ON p.id = c.person_id LEFT JOIN github_people g ON g.person_id = p.id WHERE c.hash = $1`
	credentialOfSQL     = `SELECT person_id, kind FROM credentials WHERE hash = $1`
	credentialEndsSQL   = `SELECT expires_at FROM credentials WHERE hash = $1`
	seenSQL             = `UPDATE credentials SET seen_at = $2 WHERE hash = $1`
	deleteCredentialSQL = `DELETE FROM credentials WHERE hash = $1`
	deleteExpiredSQL    = `DELETE FROM credentials WHERE expires_at <= $1 OR (kind = 'browser' AND seen_at <= $2)`
	deleteBrowsersSQL   = `DELETE FROM credentials WHERE person_id = $1 AND kind = 'browser'`
	countBrowsersSQL    = `SELECT count(*) FROM credentials WHERE person_id = $1 AND kind = 'browser' AND expires_at > $2 AND seen_at > $3`
	tokensSQL           = `SELECT hash, name, scopes, repos, created_at, seen_at, expires_at FROM credentials
WHERE person_id = $1 AND kind = 'token' AND expires_at > $2 ORDER BY created_at DESC, name`

	tokenHashesSQL = `SELECT hash FROM credentials WHERE person_id = $1 AND kind = 'token'`

	finishSignInSQL = `INSERT INTO sign_ins_finished (id, expires_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`
	oldSignInsSQL   = `DELETE FROM sign_ins_finished WHERE expires_at <= $1`
	// The oldest first, and so many at once that a flood doesn't grow.
	spareSignInsSQL = `DELETE FROM sign_ins_finished WHERE id IN (SELECT id FROM sign_ins_finished ORDER BY expires_at DESC, id LIMIT 100 OFFSET $1)`

	insertVisitSQL = `INSERT INTO visits (hash, browser, place, asked, expires_at) VALUES ($1, $2, $3, $4, $5)`
	visitSQL       = `SELECT browser, place, asked, expires_at FROM visits WHERE hash = $1`
	deleteVisitSQL = `DELETE FROM visits WHERE hash = $1`
	visitedSQL     = `SELECT DISTINCT place FROM visits WHERE asked IS NULL AND expires_at > $1 AND substr(place, 1, $2) = $3 ORDER BY place`
	oldVisitsSQL   = `DELETE FROM visits WHERE expires_at <= $1`

	siteSQL     = `SELECT web FROM github_site WHERE one = 1`
	setSiteSQL  = `INSERT INTO github_site (one, web) VALUES (1, $1) ON CONFLICT (one) DO UPDATE SET web = excluded.web`
	siteUsedSQL = `SELECT (SELECT count(*) FROM people WHERE source = 'github') + (SELECT count(*) FROM repos WHERE source = 'github')`

	upsertRepoSQL = `INSERT INTO repos (id, source, name, clone_url, seen_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET source = excluded.source, name = excluded.name, clone_url = excluded.clone_url, seen_at = excluded.seen_at`
	// The config's dev.repos keep their ids, also from GitHub.
	upsertGitHubRepoSQL = `INSERT INTO repos (id, source, name, clone_url, seen_at, private, archived, default_branch, installation_id, account_id)
VALUES ($1, 'github', $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, clone_url = excluded.clone_url, seen_at = excluded.seen_at, private = excluded.private,
archived = excluded.archived, default_branch = excluded.default_branch, installation_id = excluded.installation_id, account_id = excluded.account_id
WHERE repos.source = 'github' AND repos.seen_at <= excluded.seen_at`
	repoColumns = `COALESCE(r.id, 0), COALESCE(r.source, ''), COALESCE(r.name, ''), COALESCE(r.clone_url, ''), COALESCE(r.private, 0),
COALESCE(r.archived, 0), COALESCE(r.default_branch, ''), COALESCE(r.installation_id, 0), COALESCE(r.account_id, 0)`
	readRepoSQL = `SELECT ` + repoColumns + ` FROM repos r WHERE r.id = $1`
	reposSQL    = `SELECT ` + repoColumns + ` FROM repos r ORDER BY r.name, r.id`
	listedSQL   = `SELECT ` + repoColumns + `, a.level FROM repo_access a JOIN repos r ON r.id = a.repo_id AND r.source = 'github'
WHERE a.person_id = $1 ORDER BY r.name, r.id`

	// What decides on a person, beside the Repo: see standing.
	standingColumns = `COALESCE(g.app_id, 0), CASE WHEN g.tokens IS NULL THEN 0 ELSE 1 END, COALESCE(g.listed_at, 0), COALESCE(g.forgets, 0),
COALESCE(g.heard, 0), CASE WHEN EXISTS (SELECT 1 FROM repo_access l WHERE l.person_id = p.id) THEN 1 ELSE 0 END`
	// One statement, whatever the answer: a Repo that is absent, one the person has no access to and one that is in no
	// installation differ in nothing but what it finds.
	grantColumns = `SELECT ` + repoColumns + `, COALESCE(a.level, ''), ` + standingColumns + `
FROM people p LEFT JOIN github_people g ON g.person_id = p.id `
	grantEnd    = ` LEFT JOIN repo_access a ON a.person_id = p.id AND a.repo_id = r.id AND r.source = 'github' WHERE p.id = $1`
	grantSQL    = grantColumns + `LEFT JOIN repos r ON r.id = $2` + grantEnd
	grantNamed  = `LEFT JOIN repos r ON r.id = (SELECT n.id FROM repos n WHERE lower(n.name) = lower($2) ORDER BY n.seen_at DESC, n.id DESC LIMIT 1)`
	namedSQL    = grantColumns + grantNamed + grantEnd
	standingSQL = `SELECT ` + standingColumns + ` FROM people p LEFT JOIN github_people g ON g.person_id = p.id WHERE p.id = $1`

	signInPersonSQL = `INSERT INTO github_people (person_id, app_id, tokens, tokens_key_id, pair, access_expires, named_at, listed_at, forgets, heard)
VALUES ($1, $2, $3, $4, 1, $5, $6, $6, $8, $7)
ON CONFLICT (person_id) DO UPDATE SET app_id = excluded.app_id, tokens = excluded.tokens, tokens_key_id = excluded.tokens_key_id,
pair = github_people.pair + 1, access_expires = excluded.access_expires, named_at = excluded.named_at, listed_at = excluded.listed_at,
heard = $7, claim = NULL, claim_until = NULL, retry_at = NULL, trouble = ''`
	tokensOfAppSQL  = `SELECT tokens FROM github_people WHERE person_id = $1 AND app_id = $2`
	sealedTokensSQL = `SELECT tokens FROM github_people WHERE person_id = $1`
	forgetsSQL      = `SELECT COALESCE((SELECT g.forgets FROM github_people g JOIN people p ON p.id = g.person_id WHERE p.github_id = $1), 0), n FROM access_forgotten WHERE one = 1`
	askSQL          = `SELECT g.app_id, g.tokens, g.pair, g.access_expires, g.named_at, g.listed_at, g.forgets, g.heard, g.claim, COALESCE(g.claim_until, 0),
COALESCE(g.retry_at, 0), g.trouble, p.github_id FROM github_people g JOIN people p ON p.id = g.person_id WHERE g.person_id = $1`
	claimSQL   = `UPDATE github_people SET claim = $2, claim_until = $3 WHERE person_id = $1`
	extendSQL  = `UPDATE github_people SET claim_until = $3 WHERE person_id = $1 AND claim = $2`
	newPairSQL = `UPDATE github_people SET tokens = $3, tokens_key_id = $4, access_expires = $5, pair = pair + 1 WHERE person_id = $1 AND pair = $2 AND tokens IS NOT NULL`
	keptSQL    = `UPDATE github_people SET listed_at = $3, heard = $4, named_at = $5, claim = NULL, claim_until = NULL, retry_at = NULL, trouble = '' WHERE person_id = $1 AND claim = $2`
	troubleSQL = `UPDATE github_people SET claim = NULL, claim_until = NULL, retry_at = $3, trouble = $4 WHERE person_id = $1 AND claim = $2`
	endPairSQL = `UPDATE github_people SET tokens = NULL, tokens_key_id = NULL, access_expires = NULL, pair = pair + 1, claim = NULL, claim_until = NULL WHERE person_id = $1 AND pair = $2`
	allowSQL   = `INSERT INTO repo_access (person_id, repo_id, level) SELECT CAST($1 AS TEXT), id, CAST($3 AS TEXT) FROM repos WHERE id = $2 AND source = 'github'
ON CONFLICT (person_id, repo_id) DO UPDATE SET level = excluded.level`
	// That a Repo is still as it was is written down only where another one was seen with its name since.
	reseenSQL = `UPDATE repos SET seen_at = $2 WHERE source = 'github' AND seen_at < $2 AND id IN (SELECT repo_id FROM repo_access WHERE person_id = $1)
AND EXISTS (SELECT 1 FROM repos n WHERE lower(n.name) = lower(repos.name) AND n.id <> repos.id AND n.seen_at >= repos.seen_at)`
	disallowSQL = `DELETE FROM repo_access WHERE person_id = $1 AND repo_id = $2`
	nothingSQL  = `DELETE FROM repo_access WHERE person_id = $1`

	bumpSQL = `UPDATE github_people SET forgets = forgets + 1 WHERE person_id = $1`
	// What was forgotten since a question was begun voids the answer, also for who had no list then.
	forgottenSQL    = `SELECT n FROM access_forgotten WHERE one = 1`
	countForgetSQL  = `UPDATE access_forgotten SET n = n + 1 WHERE one = 1`
	insertForgetSQL = `INSERT INTO access_forgets (n, kind, ref, at) SELECT n, CAST($1 AS TEXT), CAST($2 AS BIGINT), CAST($3 AS BIGINT) FROM access_forgotten WHERE one = 1`
	oldForgetsSQL   = `DELETE FROM access_forgets WHERE at <= $1`
	forgetsAfterSQL = `SELECT DISTINCT kind, ref FROM access_forgets WHERE n > $1`
	// Whose list may have changed, and what of it is no longer good: the same rows, found in three ways.
	ofRepoSQL         = `repo_id = $1`
	installedSQL      = `source = 'github' AND installation_id = $1`
	ofInstallationSQL = `repo_id IN (SELECT id FROM repos WHERE ` + installedSQL + `)`
	ofAccountSQL      = `repo_id IN (SELECT id FROM repos WHERE account_id = $1)`
)
