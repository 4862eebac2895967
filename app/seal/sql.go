package seal

import "strings"

const (
	keysSQL      = `SELECT key_id, check_blob, retired_at FROM encryption_keys ORDER BY created_at, key_id`
	addKeySQL    = `INSERT INTO encryption_keys (key_id, check_blob, created_at) VALUES ($1, $2, $3) ON CONFLICT (key_id) DO NOTHING`
	unretireSQL  = `UPDATE encryption_keys SET retired_at = NULL WHERE key_id = $1 AND retired_at IS NOT NULL`
	retireSQL    = `UPDATE encryption_keys SET retired_at = $1 WHERE key_id = $2 AND retired_at IS NULL`
	mendSQL      = `UPDATE encryption_keys SET check_blob = $1 WHERE key_id = $2`
	retiredSQL   = `SELECT retired_at FROM encryption_keys WHERE key_id = $1`
	announceSQL  = `INSERT INTO encryption_hubs (hub, name, key_ids, seen_at) VALUES ($1, $2, $3, $4) ON CONFLICT (hub) DO UPDATE SET seen_at = excluded.seen_at`
	withdrawSQL  = `DELETE FROM encryption_hubs WHERE hub = $1`
	forgetSQL    = `DELETE FROM encryption_hubs WHERE seen_at < $1`
	forgetAllSQL = `DELETE FROM encryption_hubs`
	hubsSQL      = `SELECT name, key_ids, seen_at FROM encryption_hubs WHERE hub <> $1 AND seen_at >= $2 ORDER BY name, hub`
)

// sql puts the column's names into one of the texts below.
func (c Column) sql(text string) string {
	return strings.NewReplacer("{table}", c.Table, "{sealed}", c.Column, "{key}", c.KeyColumn, "{id}", c.ID, "{lost}", c.LostAt).Replace(text)
}

const (
	countSQL   = `SELECT count(*) FROM {table} WHERE {key} = $1`
	batchSQL   = `SELECT {id}, {sealed} FROM {table} WHERE {key} = $1 AND {id} > $2 ORDER BY {id} LIMIT $3`
	rewriteSQL = `UPDATE {table} SET {sealed} = $1, {key} = $2 WHERE {id} = $3 AND {key} = $4`

	clearKeySQL     = `UPDATE {table} SET {sealed} = NULL, {key} = NULL WHERE {key} = $1`
	clearKeyLostSQL = `UPDATE {table} SET {sealed} = NULL, {key} = NULL, {lost} = $2 WHERE {key} = $1`
	clearRowSQL     = `UPDATE {table} SET {sealed} = NULL, {key} = NULL WHERE {id} = $1`
	clearRowLostSQL = `UPDATE {table} SET {sealed} = NULL, {key} = NULL, {lost} = $2 WHERE {id} = $1`
)
