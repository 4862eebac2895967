package webhook_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestADeliveryIsStoredOnceAndAnswered(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, webhook.Options{})
		h.taken(t, "pull_request", "g-1", pull(7, 1))
		if status, text := h.post(t, "pull_request", "g-1", pull(7, 1)); status != http.StatusAccepted || text != "Known already.\n" {
			t.Errorf("the second time: %d %s", status, text)
		}
		if n := rows(t, db, "waiting"); n != 1 {
			t.Errorf("%d are stored", n)
		}
		if h.count(webhook.Received) != 1 || h.count(webhook.Duplicate) != 1 {
			t.Errorf("counted %v", h.outcomes)
		}
	})
}

func TestEveryKindOfBadDeliveryIsAnsweredInWords(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	h := newHub(t, db, webhook.Options{})
	good := pull(7, 1)
	signed := func(event, guid, payload string, change func(http.Header)) http.Header {
		header := githubtest.Signed(event, guid, secret, []byte(payload))
		if change != nil {
			change(header)
		}
		return header
	}
	cases := map[string]struct {
		header  http.Header
		payload string
		status  int
		says    string
	}{
		"unsigned":                  {signed("push", "g", good, func(h http.Header) { h.Del("X-Hub-Signature-256") }), good, 401, "The signature is missing or wrong."},
		"signed by another":         {githubtest.Signed("push", "g", "other", []byte(good)), good, 401, "The signature is missing or wrong."},
		"changed on the way":        {signed("push", "g", good, nil), strings.Replace(good, "7", "8", 1), 401, "The signature is missing or wrong."},
		"SHA-1 only":                {signed("push", "g", good, func(h http.Header) { h.Set("X-Hub-Signature", "sha1=00"); h.Del("X-Hub-Signature-256") }), good, 401, "The signature is missing or wrong."},
		"without an id":             {signed("push", "", good, nil), good, 400, "This is no delivery of GitHub"},
		"no JSON":                   {signed("push", "g", "{", nil), "{", 400, "no event of GitHub"},
		"JSON of another kind":      {signed("push", "g", "[1]", nil), "[1]", 400, "no event of GitHub"},
		"an unknown event":          {signed("sponsorship", "g", `{"action":"created"}`, nil), `{"action":"created"}`, 202, "Nothing follows"},
		"an unknown action":         {signed("pull_request", "g", `{"action":"labeled"}`, nil), `{"action":"labeled"}`, 202, "Nothing follows"},
		"our own echo":              {signed("check_run", "g", `{"action":"completed"}`, nil), `{"action":"completed"}`, 202, "Nothing follows"},
		"a pull request of no Repo": {signed("pull_request", "g", `{"action":"opened"}`, nil), `{"action":"opened"}`, 202, "Nothing follows"},
		"a ping":                    {signed("ping", "g", `{"zen":"x"}`, nil), `{"zen":"x"}`, 200, "claude-hub is here."},
	}
	for name, c := range cases {
		if status, text := h.send(t, c.header, c.payload); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if n := rows(t, db, "waiting"); n != 0 {
		t.Errorf("%d are stored", n)
	}
	resp, err := http.Get(h.url) //nolint:noctx // one request
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != http.MethodPost {
		t.Errorf("a GET: %d", resp.StatusCode)
	}
}

func TestTooLargeAPayloadIsRefusedWithoutBeingKept(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	for name, length := range map[string]int64{"announced": github.MaxPayload + 1, "not announced": -1} {
		header := githubtest.Signed("push", "g", secret, nil)
		req := httptest.NewRequest(http.MethodPost, "/webhook/github", io.LimitReader(zeros{}, github.MaxPayload+1))
		req.Header, req.ContentLength = header, length
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "25 MiB") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	largest := `{"action":"synchronize","repository":{"id":7},"pull_request":{"number":1},"x":"` + strings.Repeat("x", github.MaxPayload-90) + `"}`
	if len(largest) > github.MaxPayload {
		t.Fatalf("%d bytes", len(largest))
	}
	h.taken(t, "pull_request", "large", largest)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestBothSecretsAreGoodWhileOneReplacesTheOther(t *testing.T) {
	t.Parallel()
	secrets, failing := []github.Secret{github.NewSecret("new"), github.NewSecret("old")}, error(nil)
	h := newHub(t, storetest.New(t), webhook.Options{})
	h.told.secrets = func() ([]github.Secret, error) { return secrets, failing }
	for _, s := range []string{"new", "old"} {
		if status, text := h.send(t, githubtest.Signed("push", s, s, []byte(pushOf(7))), pushOf(7)); status != http.StatusAccepted {
			t.Errorf("%s: %d %s", s, status, text)
		}
	}
	secrets, failing = nil, &github.Error{Kind: github.NoApp, Message: "There is no App."}
	if status, _ := h.send(t, githubtest.Signed("push", "x", "", []byte(pushOf(7))), pushOf(7)); status != http.StatusUnauthorized {
		t.Errorf("without a secret: %d", status)
	}
	failing = errors.New("the database is away")
	if status, text := h.post(t, "push", "y", pushOf(7)); status != http.StatusServiceUnavailable || strings.Contains(text, "database is") {
		t.Errorf("without an answer: %d %s", status, text)
	}
}

func TestADatabaseThatIsAwayLosesNoDelivery(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.SQLite(t))
	h := newHub(t, db, webhook.Options{})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if status, text := h.post(t, "push", "g", pushOf(7)); status != http.StatusServiceUnavailable || !strings.Contains(text, "asks GitHub for this one again") {
		t.Errorf("%d %s", status, text)
	}
	if h.count(webhook.Refused) != 1 {
		t.Errorf("counted %v", h.outcomes)
	}
}

func TestManyAtOnceAreAllStored(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, webhook.Options{})
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				for range 2 {
					if status, text := h.post(t, "push", fmt.Sprint("g-", i), pushOf(i+1)); status != http.StatusAccepted {
						t.Errorf("%d %s", status, text)
					}
				}
			})
		}
		all.Wait()
		if n := rows(t, db, "waiting"); n != 300 || h.count(webhook.Received) != 300 || h.count(webhook.Duplicate) != 300 {
			t.Errorf("%d are stored, counted %v", n, h.outcomes)
		}
	})
}

func TestOnlySignedDeliveriesCountAsHeard(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	h.post(t, "ping", "g", `{}`)
	h.send(t, githubtest.Signed("push", "g", "wrong", []byte(`{}`)), `{}`)
	h.taken(t, "push", "g", pushOf(1))
	if got := strings.Join(h.told.heard, " "); got != "ping push" {
		t.Errorf("heard %q", got)
	}
}

func FuzzIntake(f *testing.F) {
	f.Add("push", []byte(pushOf(7)))
	f.Add("check_run", []byte(`{"action":"rerequested","check_run":{"id":1}}`))
	f.Add("installation", []byte(`{"action":"deleted","installation":{"id":1},"repositories":[{"id":1}]}`))
	f.Add("pull_request", []byte(`{"action":null,"repository":null}`))
	f.Add("ping", []byte(`null`))
	db := storetest.New(f)
	h, err := webhook.New(db, webhook.Options{
		GitHub: github.NewHolder(nil), Access: &told{}, Setup: &told{}, Proposals: &told{}, Builds: &told{},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, event string, payload []byte) {
		for _, key := range []string{secret, "wrong"} {
			req := httptest.NewRequest(http.MethodPost, "/webhook/github", bytes.NewReader(payload))
			req.Header = githubtest.Signed(event, store.NewID(), key, payload)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			switch {
			case key != secret && w.Code != http.StatusUnauthorized:
				t.Errorf("wrongly signed: %d", w.Code)
			case w.Code != 200 && w.Code != 202 && w.Code != 400 && w.Code != 401:
				t.Errorf("%s %q: %d %s", event, payload, w.Code, w.Body)
			}
		}
	})
}
