package cmd

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// ADR 0009, "A lost key", from the commands to the Session that doesn't start.
func TestSecretsResetKeepsEverythingOfAVariableButItsValue(t *testing.T) {
	t.Parallel()
	storetest.EachURL(t, func(t *testing.T, url string) {
		run := func(keys []byte, args ...string) string {
			t.Helper()
			texts := make([]string, len(keys))
			for i, n := range keys {
				texts[i] = apptest.Key(n)
			}
			file := filepath.Join(t.TempDir(), "config.yml")
			if err := os.WriteFile(file, []byte("hub:\n  database: "+url+"\n  encryption_keys: ["+strings.Join(texts, ", ")+"]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			root := rootCommand()
			root.SetArgs(append(args, "--config", file, "--data", t.TempDir()))
			root.SetOut(&out)
			root.SetErr(&out)
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatalf("%s: %v\n%s", args, err, out.String())
			}
			return out.String()
		}
		// with runs f beside a Hub with keys, which ends before it returns.
		with := func(key byte, f func(h *apptest.Hub, ana access.Grant)) {
			t.Helper()
			db, err := store.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			h := apptest.New(t, db, apptest.Options{Keys: apptest.Keys(t, key)})
			f(h, h.Grant("ana"))
			over, end := context.WithCancel(t.Context())
			end()
			h.Seal.Keep(over) // takes back that it runs
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		read := func(q string) (all []string) {
			t.Helper()
			db := storetest.Open(t, url)
			err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
				all, err = store.All(tx, store.Scan1[string], q)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			return all
		}
		const resets = `SELECT detail FROM audit_log WHERE action = 'secrets.reset'`

		var running, asleep string
		var runner *apptest.Runner
		var applied []envspec.Variable
		with(1, func(h *apptest.Hub, ana access.Grant) {
			runner = h.Runner("r1")
			if _, err := h.Vault.CreateShared(t.Context(), ana.Who(), variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte("shared-value-1")}); err != nil {
				t.Fatal(err)
			}
			s := envspec.Default()
			s.Variables = []envspec.Variable{
				{Name: "NPM", Sensitive: true, Build: true, Note: "a note"}, {Name: "REGION", Value: "eu-1"},
				{Name: "SENTRY", Sensitive: true}, {Name: "WIDE", Link: "HUB_WIDE", Build: true},
			}
			applied = h.AppliedWith(ana, runner, s, map[string][]byte{"NPM": []byte("npm-value-1"), "SENTRY": []byte("sentry-value-1")}).Spec.Variables
			for _, id := range []*string{&running, &asleep} {
				sn, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
				if err != nil {
					t.Fatal(err)
				}
				*id = sn.ID
			}
			for _, item := range runner.Items() {
				runner.MustReport(item, wire.StateRunning, wire.SessionDetail{})
			}
			if err := h.Sessions.Sleep(t.Context(), ana, asleep); err != nil {
				t.Fatal(err)
			}
		})
		specs := read(`SELECT spec FROM versions`)

		// First it is rotated, which changes nothing for anybody.
		if out := run([]byte{2, 1}, "secrets-rotate"); !strings.Contains(out, "encrypted anew: variable_values.sealed: 2\n") || !strings.Contains(out, "encrypted anew: shared_variables.sealed: 1\n") ||
			!strings.Contains(out, "retired: key "+apptest.Keys(t, 1).Primary()) {
			t.Fatalf("rotate:\n%s", out)
		}
		with(2, func(h *apptest.Hub, ana access.Grant) {
			states, err := h.Environments.Variables(t.Context(), ana, 1)
			if err != nil || len(states) != 4 || slices.ContainsFunc(states, func(s variable.State) bool { return s.Status != variable.Set }) {
				t.Fatalf("after rotating: %+v, %v", states, err)
			}
		})

		// Then the key is lost.
		for range 2 {
			out := run([]byte{3}, "secrets-reset", "--dry-run")
			if !strings.Contains(out, "to clear: variable_values.sealed: 2 whose key is missing, 0 damaged\n") || !strings.Contains(out, "to clear: shared_variables.sealed: 1 whose key is missing, 0 damaged\n") {
				t.Fatalf("dry run:\n%s", out)
			}
		}
		if n := len(read(resets)); n != 0 {
			t.Fatalf("the dry run left %d audit rows", n)
		}
		if out := run([]byte{3}, "secrets-reset", "--yes"); !strings.Contains(out, "cleared 3 values") {
			t.Fatalf("reset:\n%s", out)
		}
		if out := run([]byte{3}, "secrets-reset", "--yes"); !strings.Contains(out, "can be opened") {
			t.Fatalf("reset again:\n%s", out)
		}
		if a := read(resets); len(a) != 1 || !strings.Contains(a[0], `"table":"variable_values"`) || !strings.Contains(a[0], `"lost":2`) {
			t.Errorf("audit: %q", a)
		}
		if !slices.Equal(read(`SELECT spec FROM versions`), specs) {
			t.Error("a version changed")
		}

		with(3, func(h *apptest.Hub, ana access.Grant) {
			env, err := h.Environments.Get(t.Context(), ana)
			if err != nil || !slices.Equal(env.Current.Spec.Variables, applied) || !slices.Equal(env.Draft.Spec.Variables, applied) {
				t.Fatalf("%+v, %v", env.Current, err)
			}
			if got, err := h.Sessions.Get(t.Context(), ana, running); err != nil || got.State != session.Running {
				t.Errorf("the running Session is %s, %v", got.State, err)
			}
			const lacks = "the Variables NPM, SENTRY and WIDE (linked from the Shared variable HUB_WIDE) have no value."
			runner.Of(h)
			_, errStart := h.Sessions.Start(t.Context(), ana, session.StartInput{})
			_, errTest := h.Environments.Test(t.Context(), ana, env.Draft.Revision, "r1")
			for what, err := range map[string]error{"start": errStart, "wake": h.Sessions.Wake(t.Context(), ana, asleep), "test": errTest} {
				if !fault.Is(err, fault.Refused) || !strings.Contains(err.Error(), lacks) {
					t.Errorf("%s: %v", what, err)
				}
			}
			for _, name := range []string{"NPM", "SENTRY"} {
				if err := h.Environments.Enter(t.Context(), ana, name, []byte("entered-anew")); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := h.Vault.SetShared(t.Context(), ana.Who(), "HUB_WIDE", 1, true, []byte("entered-anew")); err != nil {
				t.Fatal(err)
			}
			if err := h.Sessions.Wake(t.Context(), ana, asleep); err != nil {
				t.Errorf("wake: %v", err)
			}
		})
		if !slices.Equal(read(`SELECT spec FROM versions`), specs) {
			t.Error("entering values changed a version")
		}
	})
}
