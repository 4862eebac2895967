package setup

const (
	appSQL = `SELECT revision, web, app_id, slug, name, owner_id, owner, client_id, set_at FROM github_app WHERE one = 1`
	setSQL = `INSERT INTO github_app (one, revision, web, app_id, slug, name, owner_id, owner, client_id, set_at)
VALUES (1, $1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (one) DO UPDATE SET revision = excluded.revision, web = excluded.web, app_id = excluded.app_id, slug = excluded.slug,
  name = excluded.name, owner_id = excluded.owner_id, owner = excluded.owner, client_id = excluded.client_id, set_at = excluded.set_at`
	touchSQL = `UPDATE github_app SET revision = $1 WHERE one = 1`

	appIDSQL   = `SELECT app_id FROM github_app WHERE one = 1`
	appNameSQL = `SELECT name FROM github_app WHERE one = 1`
	dropAppSQL = `DELETE FROM github_app`

	secretsSQL       = `SELECT id, kind, sealed, until FROM github_secrets ORDER BY made_at DESC, id DESC`
	dropSecretsSQL   = `DELETE FROM github_secrets`
	addSecretSQL     = `INSERT INTO github_secrets (id, kind, sealed, sealed_key_id, made_at) VALUES ($1, $2, $3, $4, $5)`
	dropSecretSQL    = `DELETE FROM github_secrets WHERE id = $1`
	endOldSecretsSQL = `UPDATE github_secrets SET until = $1 WHERE kind = 'webhook-secret' AND id <> $2 AND until IS NULL`
	pruneSecretsSQL  = `DELETE FROM github_secrets WHERE until <= $1`

	addTokenSQL    = `INSERT INTO setup_tokens (hash, changes, made_at, expires_at) VALUES ($1, $2, $3, $4)`
	tokenSQL       = `SELECT changes FROM setup_tokens WHERE hash = $1 AND expires_at > $2`
	dropTokenSQL   = `DELETE FROM setup_tokens WHERE hash = $1`
	pruneTokensSQL = `DELETE FROM setup_tokens WHERE expires_at <= $1`

	addVisitSQL    = `INSERT INTO setup_visits (hash, changes, made_at, expires_at) VALUES ($1, $2, $3, $4)`
	visitSQL       = `SELECT changes, expires_at FROM setup_visits WHERE hash = $1 AND expires_at > $2`
	endChangesSQL  = `UPDATE setup_visits SET changes = 0 WHERE hash = $1`
	pruneVisitsSQL = `DELETE FROM setup_visits WHERE expires_at <= $1`

	addStateSQL    = `INSERT INTO setup_states (hash, browser, kind, detail, expires_at) VALUES ($1, $2, $3, $4, $5)`
	stateSQL       = `SELECT detail FROM setup_states WHERE hash = $1 AND browser = $2 AND kind = $3 AND expires_at > $4`
	dropStateSQL   = `DELETE FROM setup_states WHERE hash = $1`
	pruneStatesSQL = `DELETE FROM setup_states WHERE expires_at <= $1`

	installationColumns = `id, app_id, account_id, account, account_type, all_repos, suspended, permissions, url, asked_at, removed_at`
	installationSQL     = `SELECT ` + installationColumns + ` FROM github_installations WHERE id = $1`
	installationsSQL    = `SELECT ` + installationColumns + ` FROM github_installations WHERE app_id = $1 AND removed_at IS NULL ORDER BY account, id`
	saveInstallationSQL = `INSERT INTO github_installations (id, app_id, account_id, account, account_type, all_repos, suspended, permissions, url, asked_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE SET app_id = excluded.app_id, account_id = excluded.account_id, account = excluded.account,
  account_type = excluded.account_type, all_repos = excluded.all_repos, suspended = excluded.suspended, permissions = excluded.permissions,
  url = excluded.url, asked_at = excluded.asked_at, removed_at = NULL`
	removeInstallationSQL = `UPDATE github_installations SET removed_at = $2, asked_at = $3 WHERE id = $1`
	dropInstallationsSQL  = `DELETE FROM github_installations WHERE app_id = $1`
	dropHeardSQL          = `DELETE FROM github_heard WHERE app_id = $1`

	heardSQL = `SELECT event, at FROM github_heard WHERE app_id = $1`
	hearSQL  = `INSERT INTO github_heard (app_id, event, at) VALUES ($1, $2, $3) ON CONFLICT (app_id) DO UPDATE SET event = excluded.event, at = excluded.at`
)
