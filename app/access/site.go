package access

import (
	"errors"
	"fmt"
	"strings"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
)

// Site has the database belong to the GitHub at web, an address as in github.Endpoints. People and Repos are known by that
// GitHub's ids, which are other people's and Repos' elsewhere: once there are any, another GitHub is Refused, unless it is
// the same one under a new address and formerly is its old one.
func Site(tx *store.Tx, web, formerly string) error {
	var was string
	err := tx.Row(siteSQL).Scan(&was)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read which GitHub the database belongs to: %w", err)
	}
	if strings.EqualFold(was, web) {
		return nil
	}
	if was != "" && !strings.EqualFold(was, strings.TrimRight(formerly, "/")) {
		var used int64
		if err := tx.Row(siteUsedSQL).Scan(&used); err != nil {
			return fmt.Errorf("read whether people or Repos of GitHub are known: %w", err)
		}
		if used > 0 {
			return fault.New(fault.Refused, "This Hub's database belongs to the GitHub at %s, and %s is another one, whose ids are other people's and Repos'. "+
				"Give the Hub another database for it. If it is the same GitHub under a new address, set github.formerly to the old one in the config.", was, web)
		}
	}
	_, err = tx.Exec(setSiteSQL, store.Text(web))
	return err
}
