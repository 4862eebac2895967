package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
)

const secret = "It's a Secret to Everybody"

// told notes what events led to, in words. fail, if set, is asked before each; it may panic.
type told struct {
	mu   sync.Mutex
	all  []string
	fail func(what string) error

	heard   []string
	secrets func() ([]github.Secret, error) // nil: secret
}

func (d *told) say(format string, a ...any) error {
	what := fmt.Sprintf(format, a...)
	d.mu.Lock()
	fail := d.fail
	d.mu.Unlock()
	if fail != nil {
		if err := fail(what); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, what)
	return nil
}

func (d *told) failing(f func(what string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

func (d *told) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

func (d *told) ForgetPerson(_ context.Context, id int64) error {
	return d.say("forget person %d", id)
}
func (d *told) ForgetRepo(_ context.Context, id github.RepoID) error {
	return d.say("forget repo %d", id)
}
func (d *told) ForgetInstallation(_ context.Context, id int64) error {
	return d.say("forget installation %d", id)
}
func (d *told) ForgetAccount(_ context.Context, id int64) error {
	return d.say("forget account %d", id)
}
func (d *told) InstallationHas(_ context.Context, id int64, repos []github.Repository, _ time.Time) error {
	for _, r := range repos {
		if err := d.say("installation %d has %d", id, r.ID); err != nil {
			return err
		}
	}
	return nil
}
func (d *told) Installed(context.Context, int64) ([]github.RepoID, error) { return nil, nil }
func (d *told) Revoked(_ context.Context, id int64) error                 { return d.say("revoked %d", id) }
func (d *told) RepoIs(_ context.Context, r github.Repository) error {
	return d.say("repo %d is %s", r.ID, r.FullName)
}
func (d *told) WebhookSecrets(context.Context) ([]github.Secret, error) {
	if d.secrets != nil {
		return d.secrets()
	}
	return []github.Secret{github.NewSecret(secret)}, nil
}
func (d *told) Heard(_ context.Context, event string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = append(d.heard, event)
	return errors.New("it can't be noted, which refuses nothing")
}
func (d *told) Installation(_ context.Context, e github.Event) error {
	return d.say("installation %d %s", e.Installation, e.Action)
}
func (d *told) LookAll(_ context.Context, repos []github.RepoID) error {
	for _, id := range repos {
		if err := d.say("look at all of %d", id); err != nil {
			return err
		}
	}
	return nil
}
func (d *told) Look(_ context.Context, repo github.RepoID, number int) error {
	return d.say("look at %d #%d", repo, number)
}
func (d *told) Pushed(_ context.Context, repo github.RepoID, branch, after string, by github.Account) error {
	return d.say("pushed %d %s %.7s by %d", repo, branch, after, by.ID)
}
func (d *told) Pressed(_ context.Context, repo github.RepoID, e github.CheckEvent, by github.Account) error {
	return d.say("pressed %d %s %s by %d", repo, e.ExternalID, e.Button, by.ID)
}
func (d *told) Rerun(_ context.Context, repo github.RepoID, e github.CheckEvent, by github.Account) error {
	return d.say("rerun %d %s by %d", repo, e.ExternalID, by.ID)
}
func (d *told) RerunAll(_ context.Context, repo github.RepoID, e github.CheckEvent, by github.Account) error {
	return d.say("rerun all %d %.7s by %d", repo, e.SHA, by.ID)
}
func (d *told) Queued(_ context.Context, repo github.RepoID, sha string) error {
	return d.say("queued %d %.7s", repo, sha)
}
func (d *told) CancelAll(_ context.Context, repo github.RepoID, reason string) error {
	return d.say("cancel %d: %s", repo, reason)
}

// hub takes deliveries on a database.
type hub struct {
	*webhook.Service
	told *told
	db   *store.DB
	url  string

	mu       sync.Mutex
	outcomes map[webhook.Outcome]int
}

// newHub makes one that does not work anything off until it is started. Options that are set are kept.
func newHub(t *testing.T, db *store.DB, o webhook.Options) *hub {
	t.Helper()
	h := &hub{told: &told{}, db: db, outcomes: map[webhook.Outcome]int{}}
	if o.GitHub == nil {
		o.GitHub = github.NewHolder(nil)
	}
	if o.Access == nil {
		o.Access, o.Setup, o.Proposals, o.Builds = h.told, h.told, h.told, h.told
	}
	o.Log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel)
	o.Observe = func(what webhook.Outcome) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.outcomes[what]++
	}
	var err error
	if h.Service, err = webhook.New(db, o); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h.Service)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

// started works deliveries off until the test ends.
func (h *hub) started(t *testing.T) *hub {
	t.Helper()
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Stop)
	return h
}

func (h *hub) count(o webhook.Outcome) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.outcomes[o]
}

// post sends a signed delivery and returns the status and the text of the answer.
func (h *hub) post(t testing.TB, event, guid, payload string) (int, string) {
	t.Helper()
	return h.send(t, githubtest.Signed(event, guid, secret, []byte(payload)), payload)
}

func (h *hub) send(t testing.TB, header http.Header, payload string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, bytes.NewReader([]byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

// taken is post of what has to be stored.
func (h *hub) taken(t testing.TB, event, guid, payload string) {
	t.Helper()
	if status, text := h.post(t, event, guid, payload); status != http.StatusAccepted || text != "Taken.\n" {
		t.Fatalf("%s: %d %s", event, status, text)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rows counts deliveries in a state.
func rows(t testing.TB, db *store.DB, state string) (n int) {
	t.Helper()
	if err := db.Read(context.WithoutCancel(t.Context()), func(tx *store.Tx) error {
		return tx.Row(`SELECT COUNT(*) FROM deliveries WHERE state = $1`, state).Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func pull(repo, number int) string {
	return fmt.Sprintf(`{"action":"synchronize","repository":{"id":%d},"pull_request":{"number":%d}}`, repo, number)
}

func pushOf(repo int) string {
	return fmt.Sprintf(`{"ref":"refs/heads/main","after":"%040d","repository":{"id":%d},"sender":{"id":9}}`, 1, repo)
}
