package audit

const insertSQL = `INSERT INTO audit_log (id, at, who, repo_id, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6, $7)`
