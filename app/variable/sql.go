package variable

const (
	valueColumns = `SELECT id, sensitive, plain, sealed, lost_at, set_at,
COALESCE((SELECT login FROM people p WHERE p.id = set_by), set_by) FROM variable_values `
	valuesSQL      = valueColumns + `WHERE environment_id = $1 AND id IN (`
	plainSQL       = `SELECT id, plain FROM variable_values WHERE environment_id = $1 AND plain_digest = $2`
	insertPlainSQL = `INSERT INTO variable_values (id, environment_id, sensitive, plain, plain_digest, set_at, set_by)
VALUES ($1, $2, 0, $3, $4, $5, $6) ON CONFLICT (environment_id, plain_digest) DO NOTHING`
	insertSealedSQL = `INSERT INTO variable_values (id, environment_id, sensitive, sealed, sealed_key_id, set_at, set_by)
VALUES ($1, $2, 1, $3, $4, $5, $6)`
	enterSQL = `UPDATE variable_values SET sealed = $2, sealed_key_id = $3, lost_at = NULL, set_at = $4, set_by = $5
WHERE id = $1 AND lost_at IS NOT NULL`
	forgetSQL = `DELETE FROM variable_values WHERE environment_id = $1 AND id = $2 AND sensitive = 1`

	sharedColumns = `SELECT s.id, s.name, s.note, s.sensitive, s.revision, s.value_id, s.value_at, s.plain, s.sealed, s.lost_at, s.set_at,
COALESCE((SELECT login FROM people p WHERE p.id = s.set_by), s.set_by), s.created_at,
COALESCE((SELECT login FROM people p WHERE p.id = s.created_by), s.created_by) FROM shared_variables s `
	sharedSQL       = sharedColumns + `ORDER BY s.name`
	sharedNamedSQL  = sharedColumns + `WHERE s.name = $1`
	sharedByIDSQL   = sharedColumns + `WHERE s.id = $1`
	sharedNamesSQL  = `SELECT name FROM shared_variables ORDER BY name`
	insertSharedSQL = `INSERT INTO shared_variables (id, name, note, sensitive, revision, value_id, value_at, plain, sealed, sealed_key_id, set_at, set_by, created_at, created_by)
VALUES ($1, $2, $3, $4, 1, $5, $6, $7, $8, $9, $6, $10, $6, $10) ON CONFLICT (name) DO NOTHING`
	setSharedSQL = `UPDATE shared_variables SET sensitive = $3, value_id = $4, value_at = $5, plain = $6, sealed = $7, sealed_key_id = $8, lost_at = NULL,
set_at = $9, set_by = $10, revision = revision + 1 WHERE id = $1 AND revision = $2`
	noteSharedSQL   = `UPDATE shared_variables SET note = $3, revision = revision + 1 WHERE id = $1 AND revision = $2`
	renameSharedSQL = `UPDATE shared_variables SET name = $3, revision = revision + 1 WHERE id = $1 AND revision = $2`
	deleteSharedSQL = `DELETE FROM shared_variables WHERE id = $1 AND revision = $2`

	unlinkSQL = `DELETE FROM variable_links WHERE holder = $1`
	linkSQL   = `INSERT INTO variable_links (holder, shared_id, environment_id, build) VALUES ($1, $2, $3, $4)
ON CONFLICT (holder, shared_id) DO UPDATE SET build = CASE WHEN excluded.build = 1 THEN 1 ELSE variable_links.build END`
	linksSQL    = `SELECT l.shared_id, e.repo_id, MAX(l.build) FROM variable_links l JOIN environments e ON e.id = l.environment_id `
	linkedSQL   = linksSQL + `WHERE l.shared_id = $1 GROUP BY l.shared_id, e.repo_id`
	allLinksSQL = linksSQL + `GROUP BY l.shared_id, e.repo_id`
)
