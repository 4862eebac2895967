package cmd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// TestEachRefusalHasItsSentenceInAPIAndCommandLine is ADR 0009's refusals, word for word, by both ways in.
func TestEachRefusalHasItsSentenceInAPIAndCommandLine(t *testing.T) {
	const repo = int64(apptest.RepoID)
	sensitive := envspec.Spec{Image: "debian:12", Variables: []envspec.Variable{{Name: "NPM", Sensitive: true, Build: true}, {Name: "SENTRY", Sensitive: true}}}
	given := variable.Given{"NPM": []byte("npm-token-1"), "SENTRY": []byte("sentry-token-1")}
	save := func(h *town, spec envspec.Spec, given variable.Given) {
		t.Helper()
		if _, err := h.Environments.Save(t.Context(), h.Grant("ana"), 0, spec, given); err != nil {
			t.Fatal(err)
		}
	}
	start := func(ctx context.Context, c *client.Client) error {
		_, err := c.StartSession(ctx, repo, schema.StartSession{})
		return err
	}
	test := func(ctx context.Context, c *client.Client) error {
		_, err := c.StartTest(ctx, repo, 1, "r1")
		return err
	}
	apply := func(ctx context.Context, c *client.Client) error {
		_, err := c.Apply(ctx, repo, 1, "")
		return err
	}
	startArgs, testArgs, applyArgs := []string{"session", "start", "--detach"}, []string{"env", "test", "--runner", "r1", "--detach"}, []string{"env", "apply"}
	for _, c := range []struct {
		what     string
		in       func(h *town) *town
		call     func(context.Context, *client.Client) error
		args     []string
		code     fault.Code
		sentence string
	}{
		{"no Environment before the first Session", func(h *town) *town { h.Runner("r1"); return h }, start, startArgs, fault.Refused,
			"acme/rocket has no applied Environment yet. A Repo needs one before its first Session: test-build its draft and apply it."},
		{"a draft, which is no Environment yet", func(h *town) *town { save(h, envspec.Default(), nil); return h }, start, startArgs, fault.Refused,
			"acme/rocket has no applied Environment yet. A Repo needs one before its first Session: test-build its draft and apply it."},
		{"an untested draft", func(h *town) *town { save(h, envspec.Default(), nil); return h }, apply, applyArgs, fault.Refused,
			"This draft needs a passing Test build of exactly what it says now. Start one first."},
		{"a failed Test build", func(h *town) *town {
			r := h.Runner("r1")
			save(h, envspec.Default(), nil)
			if _, err := h.Environments.Test(t.Context(), h.Grant("ana"), 1, "r1"); err != nil {
				t.Fatal(err)
			}
			r.MustReport(r.Item(), wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: "The bootstrap script ended with exit code 3."}})
			return h
		}, apply, applyArgs, fault.Refused, "This draft needs a passing Test build of exactly what it says now, and the newest one failed in the phase bootstrap (TEST). " +
			"Look at its log, then change the draft or start another."},
		{"a Test build that has not ended", func(h *town) *town {
			h.Runner("r1")
			save(h, envspec.Default(), nil)
			if _, err := h.Environments.Test(t.Context(), h.Grant("ana"), 1, "r1"); err != nil {
				t.Fatal(err)
			}
			return h
		}, apply, applyArgs, fault.Refused, "This draft needs a passing Test build of exactly what it says now, and one is queued (TEST). Wait until it has passed."},
		{"a missing value", func(h *town) *town {
			h.Runner("r1")
			save(h, sensitive, variable.Given{"NPM": []byte("npm-token-1")})
			return h
		}, test, testArgs, fault.Refused,
			"This draft can't be tested: the Variable SENTRY has no value. Enter one for it first."},
		{"missing values", func(h *town) *town { save(h, sensitive, nil); return h }, apply, applyArgs, fault.Refused,
			"This draft can't be applied: the Variables NPM and SENTRY have no value. Enter one for each first."},
		{"a name that clashes", func(h *town) *town {
			save(h, sensitive, given)
			if _, err := h.Vault.CreateShared(t.Context(), h.Grant("ana").Who(), variable.NewShared{Name: "HUB_WIDE", Value: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			return h
		}, func(ctx context.Context, c *client.Client) error {
			spec := sensitive
			spec.Variables = append(spec.Variables[:2:2], envspec.Variable{Name: "NPM", Link: "HUB_WIDE"})
			_, err := c.SaveDraft(ctx, repo, 1, spec)
			return err
		}, []string{"env", "variable", "link", "NPM", "HUB_WIDE"}, fault.Invalid, "NPM stands there twice: each Variable and each Link has a name of its own"},
		{"a Runner too old for a Test build", func(h *town) *town { h.OldRunner("r1", 1); save(h, sensitive, given); return h }, test, testArgs, fault.Unavailable,
			"No Runner can take this now: r1 runs claude-hub test, which is too old for an Environment with Variables: install claude-hub 1.2.3 on its host and start it again."},
		{"Runners too old for a Session", func(h *town) *town {
			h.AppliedWith(h.Grant("ana"), h.Runner("r1"), sensitive, given)
			if err := h.Fleet.Revoke(t.Context(), h.runnerID("r1"), "test"); err != nil {
				t.Fatal(err)
			}
			h.OldRunner("r2", 1)
			return h
		}, start, startArgs, fault.Unavailable,
			"No Runner can take this now: r2 runs claude-hub test, which is too old for an Environment with Variables: install claude-hub 1.2.3 on its host and start it again."},
		{"lost values, for a Session", func(h *town) *town {
			h.AppliedWith(h.Grant("ana"), h.Runner("r1"), sensitive, given)
			return serveTown(t, h.db, h.LoseKey(2))
		}, start, startArgs, fault.Refused, "This Session can't start: the Variables NPM and SENTRY have no value. Enter one for each first."},
		{"lost values, for a Test build", func(h *town) *town {
			h.Runner("r1")
			save(h, sensitive, given)
			return serveTown(t, h.db, h.LoseKey(2))
		}, test, testArgs, fault.Refused, "This draft can't be tested: the Variables NPM and SENTRY have no value. Enter one for each first."},
		{"a Hub without a key", func(h *town) *town {
			n := newTown(t, apptest.Options{NoKeys: true})
			save(n, envspec.Default(), nil)
			return n
		}, func(ctx context.Context, c *client.Client) error {
			spec := envspec.Default()
			spec.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true}}
			_, err := c.Save(ctx, repo, schema.SaveDraft{Base: 1, Spec: &spec, Values: map[string]schema.Value{"NPM": schema.ValueOf([]byte("npm-token-1"))}})
			return err
		}, []string{"env", "variable", "set", "NPM", "--sensitive", "--value-file", "-"}, fault.Refused, "No encryption key is configured"},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newTown(t, apptest.Options{Fleet: fleet.Options{Version: "1.2.3"}})
			h = c.in(h)
			h.t = t
			if strings.Contains(c.sentence, "TEST") {
				tests, err := h.Environments.TestBuilds(t.Context(), h.Grant("ana"), 1)
				if err != nil || len(tests) != 1 {
					t.Fatal(tests, err)
				}
				c.sentence = strings.Replace(c.sentence, "TEST", tests[0].ID, 1)
			}
			hub, err := connect()
			if err != nil {
				t.Fatal(err)
			}
			var e *client.Error
			if err := c.call(t.Context(), hub); !errors.As(err, &e) || e.Code != c.code || !says(e.Message, c.sentence) {
				t.Errorf("the API says %v, want %s %q", err, c.code, c.sentence)
			}
			got := say(t, "a-sensitive-value", c.args...)
			if got.code != exitFailed || got.out != "" || !strings.Contains(got.err, c.sentence) {
				t.Errorf("the command line says %+v, want %q", got, c.sentence)
			}
		})
	}
}

// says that a message is a sentence, or begins with it when that has no full stop.
func says(message, sentence string) bool {
	if strings.HasSuffix(sentence, ".") {
		return message == sentence
	}
	return strings.HasPrefix(message, sentence)
}
