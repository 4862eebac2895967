package github_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

func secrets(s ...string) []github.Secret {
	var out []github.Secret
	for _, v := range s {
		out = append(out, github.NewSecret(v))
	}
	return out
}

func read(h http.Header, body io.Reader, s []github.Secret) (github.Delivery, error) {
	r := httptest.NewRequest("POST", "/webhook", body)
	r.Header = h
	return github.ReadDelivery(httptest.NewRecorder(), r, s)
}

func TestDeliveryIsTakenOnlyWithAGoodSignature(t *testing.T) {
	t.Parallel()
	body := []byte(`{"zen":"é"}`)
	good := func() http.Header { return githubtest.Signed("ping", "g-1", "new", body) }
	with := func(name, value string) http.Header {
		h := good()
		h.Del(name)
		if value != "" {
			h.Set(name, value)
		}
		return h
	}
	old := hmac.New(sha1.New, []byte("new"))
	old.Write(body)
	sha1Only := with("X-Hub-Signature-256", "")
	sha1Only.Set("X-Hub-Signature", "sha1="+hex.EncodeToString(old.Sum(nil)))
	for name, c := range map[string]struct {
		header  http.Header
		body    []byte
		secrets []github.Secret
		status  int // 0: taken
	}{
		"the present secret":         {good(), body, secrets("new"), 0},
		"the old secret of two":      {good(), body, secrets("newer", "new"), 0},
		"another secret":             {good(), body, secrets("other"), 401},
		"no secret":                  {good(), body, nil, 401},
		"an empty secret":            {githubtest.Signed("ping", "g", "", body), body, secrets(""), 401},
		"no signature":               {with("X-Hub-Signature-256", ""), body, secrets("new"), 401},
		"no signature, empty secret": {with("X-Hub-Signature-256", ""), body, secrets(""), 401},
		"SHA-1 only":                 {sha1Only, body, secrets("new"), 401},
		"the hash without its name":  {with("X-Hub-Signature-256", strings.TrimPrefix(good().Get("X-Hub-Signature-256"), "sha256=")), body, secrets("new"), 401},
		"half a hash":                {with("X-Hub-Signature-256", good().Get("X-Hub-Signature-256")[:20]), body, secrets("new"), 401},
		"another body":               {good(), append([]byte(" "), body...), secrets("new"), 401},
		"no delivery id":             {with("X-GitHub-Delivery", ""), body, secrets("new"), 400},
		"no event":                   {with("X-GitHub-Event", ""), body, secrets("new"), 400},
		"an event that is a text":    {with("X-GitHub-Event", "push\nx"), body, secrets("new"), 400},
		"a form":                     {with("Content-Type", "application/x-www-form-urlencoded"), body, secrets("new"), 400},
		"JSON with a charset":        {with("Content-Type", "application/json; charset=utf-8"), body, secrets("new"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := read(c.header, bytes.NewReader(c.body), c.secrets)
			var e *github.DeliveryError
			switch {
			case c.status == 0 && (err != nil || d.ID != "g-1" || d.Event != "ping" || !bytes.Equal(d.Payload, body)):
				t.Errorf("got %+v %v", d, err)
			case c.status != 0 && (!errors.As(err, &e) || e.Status != c.status || d.Payload != nil):
				t.Errorf("got %+v %v, want %d", d, err, c.status)
			}
		})
	}
	_, missing := read(with("X-Hub-Signature-256", ""), bytes.NewReader(body), secrets("new"))
	_, wrong := read(good(), bytes.NewReader(body), secrets("other"))
	if missing != wrong {
		t.Errorf("a missing signature and a wrong one say different things: %v, %v", missing, wrong)
	}
}

// counter counts what is read of a body.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func TestDeliveryIsReadOnlyAsFarAsItMayBe(t *testing.T) {
	t.Parallel()
	h := githubtest.Signed("push", "g-1", "s", []byte("x"))
	long := &counter{Reader: io.LimitReader(zeros{}, 1<<30)}
	_, err := read(h, long, secrets("s"))
	var e *github.DeliveryError
	if !errors.As(err, &e) || e.Status != http.StatusRequestEntityTooLarge || long.n > github.MaxPayload+1<<20 {
		t.Errorf("read %d bytes: %v", long.n, err)
	}
	unsigned := &counter{Reader: io.LimitReader(zeros{}, 1<<30)}
	h.Del("X-Hub-Signature-256")
	if _, err := read(h, unsigned, secrets("s")); !errors.As(err, &e) || e.Status != 401 || unsigned.n != 0 {
		t.Errorf("read %d bytes that nobody signed: %v", unsigned.n, err)
	}
	whole := bytes.Repeat([]byte("x"), github.MaxPayload)
	if _, err := read(githubtest.Signed("push", "g-1", "s", whole), bytes.NewReader(whole), secrets("s")); err != nil {
		t.Errorf("as large as GitHub sends: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// hub is a webhook's receiver that takes what is signed.
type hub struct {
	*httptest.Server
	mu   sync.Mutex
	took []github.Delivery
	sick bool
}

func newHub(t *testing.T, s *[]github.Secret) *hub {
	t.Helper()
	h := &hub{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		d, err := github.ReadDelivery(w, r, *s)
		var e *github.DeliveryError
		switch {
		case errors.As(err, &e):
			http.Error(w, e.Message, e.Status)
		case h.sick:
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			h.took = append(h.took, d)
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hub) guids(event string) map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := map[string]int{}
	for _, d := range h.took {
		if event == "" || d.Event == event {
			m[d.ID]++
		}
	}
	return m
}

func (h *hub) sicken(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sick = yes
}

func TestMissedDeliveriesAreFoundAndSentAgain(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		r := setScene(t, gh)
		known := secrets(r.cred.WebhookSecret)
		h := newHub(t, &known)
		since := time.Now().Add(-time.Minute)
		ok(t, r.app.SetHook(t.Context(), h.URL+"/webhook", known[0]))
		if got := must[string](t)(r.app.HookURL(t.Context())); got != h.URL+"/webhook" {
			t.Errorf("the webhook goes to %s", got)
		}
		gh.Deliver(func(d githubtest.Delivery) githubtest.Fate { return githubtest.Fate{Lose: d.Event == "push"} })
		r.repo.Push(r.ana, "main", "One", githubtest.Files{"a": githubtest.Text("1")})
		ok(t, gh.Settle(within(t, 20*time.Second)))
		gh.Deliver(nil)
		h.sicken(true)
		r.repo.Push(r.ana, "main", "Two", githubtest.Files{"a": githubtest.Text("2")})
		ok(t, gh.Settle(within(t, 20*time.Second)))
		h.sicken(false)
		if n := len(h.guids("push")); n != 0 {
			t.Fatalf("%d pushes arrived", n)
		}
		log := must[[]github.Attempt](t)(r.app.Attempts(t.Context(), since))
		missed := github.Missed(log)
		if len(missed) != 3 || missed[0].Event != "push" || missed[0].Status != 0 || missed[1].Status != 503 || missed[0].Repository != r.repo.ID ||
			missed[0].Installation != r.inst.ID {
			t.Fatalf("got %+v", missed)
		}
		for _, m := range missed {
			ok(t, r.app.Redeliver(t.Context(), m.ID))
		}
		ok(t, gh.Settle(within(t, 20*time.Second)))
		got := h.guids("")
		for _, m := range missed {
			if got[m.GUID] != 1 {
				t.Errorf("%s %s arrived %d times", m.Event, m.GUID, got[m.GUID])
			}
		}
		if left := github.Missed(must[[]github.Attempt](t)(r.app.Attempts(t.Context(), since))); len(left) != 0 {
			t.Errorf("still missed: %+v", left)
		}
		if got := must[[]github.Attempt](t)(r.app.Attempts(t.Context(), time.Now().Add(time.Hour))); len(got) != 0 {
			t.Errorf("in the future: %+v", got)
		}
		wantKind(t, r.app.Redeliver(t.Context(), 1), github.NotFound)
		wantKind(t, r.app.SetHook(t.Context(), h.URL, github.Secret{}), github.Invalid)
	})
}

func TestLogOfDeliveriesIsReadOverItsPages(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	known := secrets(r.cred.WebhookSecret)
	h := newHub(t, &known)
	r.gh.HookURL(r.cred.ID, h.URL)
	for range 230 {
		r.gh.Send(r.cred.ID, "public", []byte(`{}`))
	}
	ok(t, r.gh.Settle(within(t, 30*time.Second)))
	log := must[[]github.Attempt](t)(r.app.Attempts(t.Context(), time.Now().Add(-time.Hour)))
	seen := map[int64]bool{}
	for _, a := range log {
		seen[a.ID] = true
	}
	if len(log) != 230 || len(seen) != 230 {
		t.Errorf("got %d attempts, %d different, want 230", len(log), len(seen))
	}
}

func TestSecretIsRotatedWithoutALostDelivery(t *testing.T) {
	t.Parallel()
	r := setScene(t, checked.New(t, githubtest.Options{}))
	known := secrets("the-next-one", r.cred.WebhookSecret)
	h := newHub(t, &known)
	r.gh.HookURL(r.cred.ID, h.URL)
	r.gh.Send(r.cred.ID, "public", []byte(`{}`))
	ok(t, r.gh.Settle(within(t, 20*time.Second)))
	ok(t, r.app.SetHook(t.Context(), h.URL, known[0]))
	r.gh.Send(r.cred.ID, "public", []byte(`{}`))
	ok(t, r.gh.Settle(within(t, 20*time.Second)))
	if got := h.guids("public"); len(got) != 2 {
		t.Errorf("%d deliveries arrived, want 2", len(got))
	}
}
