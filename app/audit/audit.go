// Package audit keeps who did what, written in the transaction that does it. Entries hold no values of Variables.
package audit

import (
	"encoding/json"
	"fmt"

	"github.com/claude-hub/claude-hub/store"
)

// Entry is one thing done. Detail is encoded as JSON and holds names and numbers, never a value.
type Entry struct {
	Who     string // a Person's id, or "system: <reason>"
	Repo    int64  // 0: of no Repo
	Action  string // "version.apply"
	Subject string // the id of what it was done to
	Detail  map[string]any
}

// Record writes e.
func Record(tx *store.Tx, e Entry) error {
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return fmt.Errorf("encode audit detail of %s: %w", e.Action, err)
	}
	if _, err := tx.Exec(insertSQL, store.NewID(), tx.Now().UnixMilli(), e.Who, e.Repo, e.Action, e.Subject, string(detail)); err != nil {
		return fmt.Errorf("record %s: %w", e.Action, err)
	}
	return nil
}
