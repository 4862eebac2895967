package access_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestADatabaseKeepsTheIDsOfOneGitHub(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		site := func(web, formerly string) error {
			return db.Write(t.Context(), func(tx *store.Tx) error { return access.Site(tx, web, formerly) })
		}
		allowed := func(web, formerly string) {
			t.Helper()
			if err := site(web, formerly); err != nil {
				t.Errorf("%s, formerly %q: %v", web, formerly, err)
			}
		}
		allowed("https://github.com", "")
		allowed("https://ghe.example.com", "") // nothing is known of anybody yet
		err := db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO repos (id, source, name, clone_url, seen_at) VALUES (7, 'github', 'acme/rocket', 'https://ghe.example.com/acme/rocket.git', 1)`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		allowed("https://GHE.example.com", "")
		for _, formerly := range []string{"", "https://elsewhere.example.com"} {
			if err := site("https://github.com", formerly); !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), "belongs to the GitHub at https://ghe.example.com") {
				t.Errorf("formerly %q: want a refusal that names whose ids these are, got %v", formerly, err)
			}
		}
		allowed("https://git.example.com", "https://ghe.example.com/") // it moved
		allowed("https://git.example.com", "")
		if err := site("https://ghe.example.com", ""); !fault.Is(err, fault.Refused) {
			t.Errorf("want the old address refused, got %v", err)
		}
	})
}
