package access

const (
	upsertPersonSQL = `INSERT INTO people (id, source, login, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (source, login) DO NOTHING`
	personByLoginSQL = `SELECT id, source, login FROM people WHERE source = $1 AND login = $2`

	insertCredentialSQL = `INSERT INTO credentials (hash, person_id, kind, name, created_at, seen_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $5, $6)`
	credentialSQL = `SELECT p.id, p.source, p.login, c.kind, c.seen_at, c.expires_at
FROM credentials c JOIN people p ON p.id = c.person_id WHERE c.hash = $1`
	seenSQL             = `UPDATE credentials SET seen_at = $2 WHERE hash = $1`
	deleteCredentialSQL = `DELETE FROM credentials WHERE hash = $1`
	deleteExpiredSQL    = `DELETE FROM credentials WHERE expires_at <= $1 OR (kind = 'browser' AND seen_at <= $2)`

	upsertRepoSQL = `INSERT INTO repos (id, source, name, clone_url, seen_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET source = excluded.source, name = excluded.name, clone_url = excluded.clone_url, seen_at = excluded.seen_at`
	repoSQL      = `SELECT id, source, name, clone_url FROM repos WHERE id = $1`
	repoNamedSQL = `SELECT id, source, name, clone_url FROM repos WHERE name = $1`
	reposSQL     = `SELECT id, source, name, clone_url FROM repos ORDER BY name, id`
)
