package setup_test

import (
	"bytes"
	"fmt"
	"net/url"
	"testing"

	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store"
)

// everything is all that the database has in a table.
func (r *rig) everything(table string) []byte {
	r.t.Helper()
	var b bytes.Buffer
	err := r.db.Read(r.ctx(), func(tx *store.Tx) error {
		rows, err := tx.Rows(`SELECT * FROM ` + table)
		if err != nil {
			return err
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			return err
		}
		for rows.Next() {
			values, into := make([]any, len(names)), make([]any, len(names))
			for i := range values {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				return err
			}
			for _, v := range values {
				if raw, ok := v.([]byte); ok {
					b.Write(raw)
				} else {
					fmt.Fprint(&b, v)
				}
				b.WriteByte('\n')
			}
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return b.Bytes()
}

// P15 of facts/reliability.md, for what the set-up keeps.
func TestNeitherDatabaseNorLogHasASecretOfTheSetUp(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		token, _, err := r.NewToken(r.ctx(), "test", false)
		if err != nil {
			t.Fatal(err)
		}
		unused, _, err := r.NewToken(r.ctx(), "test", true)
		if err != nil {
			t.Fatal(err)
		}
		visit, _, err := r.Enter(r.ctx(), token)
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.Begin(r.ctx(), visit, setup.Plan{Org: "octo", Name: "Our Hub"})
		if err != nil {
			t.Fatal(err)
		}
		waiting, err := r.Begin(r.ctx(), visit, setup.Plan{Org: "octo", Name: "Never"})
		if err != nil {
			t.Fatal(err)
		}
		state, code := r.created(f, r.org)
		if err := r.Finish(r.ctx(), visit, state, code); err != nil {
			t.Fatal(err)
		}
		if err := r.RotateHook(r.ctx(), r.enter(true)); err != nil {
			t.Fatal(err)
		}
		to, browser, err := r.BeginInstall(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		secrets := map[string]string{"token": token, "another token": unused, "visit": visit, "code": code, "state": state, "browser": browser}
		for name, address := range map[string]string{"a state that waits": waiting.Action, "the installation's state": to} {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			secrets[name] = u.Query().Get("state")
		}
		hooks, err := r.WebhookSecrets(r.ctx())
		if err != nil || len(hooks) != 2 {
			t.Fatalf("%d %v", len(hooks), err)
		}
		for i, h := range hooks {
			secrets[fmt.Sprint("webhook secret ", i)] = h.Reveal()
		}
		secrets["private key"] = "PRIVATE KEY"
		secrets["client secret"] = r.clientSecret()
		tables := []string{"github_app", "github_secrets", "setup_tokens", "setup_visits", "setup_states", "audit_log"}
		for _, table := range tables {
			all := r.everything(table)
			if len(all) == 0 {
				t.Errorf("%s is empty, so this test sees nothing", table)
			}
			for name, s := range secrets {
				if s == "" || bytes.Contains(all, []byte(s)) {
					t.Errorf("%s has the %s (%d characters)", table, name, len(s))
				}
			}
		}
		for name, s := range secrets {
			if bytes.Contains([]byte(r.log.String()), []byte(s)) {
				t.Errorf("the log has the %s", name)
			}
		}
	})
}

// clientSecret is the one that GitHub last saw from the Hub, when somebody signed in.
func (r *rig) clientSecret() string {
	r.t.Helper()
	_, _ = r.app().Exchange(r.ctx(), hidden("x"), hidden("yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"))
	all := r.gh.Requests()
	for i := len(all) - 1; i >= 0; i-- {
		if q, err := url.ParseQuery(string(all[i].Body)); err == nil && q.Get("client_secret") != "" {
			return q.Get("client_secret")
		}
	}
	r.t.Fatal("GitHub saw no client secret")
	return ""
}
