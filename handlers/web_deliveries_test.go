package handlers_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestDeliveriesThatWereSetAsideAreShownAndTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	ana := s.as("ana")
	ana.see("/deliveries", "There is none.")
	if err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO deliveries (guid, event, action, subject, body, state, received_at, due_at, tries, faults, ended_at, why)
VALUES ('72d3162e-cc78', 'pull_request', 'opened', '', $1, 'aside', 1000, 1000, 12, 12, 2000, 'It failed 12 times.')`, []byte{1})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p := ana.see("/deliveries", "pull_request.opened", "It failed 12 times.", "72d3162e-cc78", "after 12 tries")
	if strings.Contains(p.body, "There is none") {
		t.Error("none, it says")
	}
	if to := ana.posted("/deliveries/72d3162e-cc78/again", url.Values{}); to != "/deliveries" {
		t.Errorf("leads to %s", to)
	}
	ana.see("/deliveries", "There is none.")
	ana.want(ana.post("/deliveries/72d3162e-cc78/again", url.Values{}), http.StatusNotFound, "isn&#39;t set aside any more")
	if b, err := s.hook.Backlog(t.Context()); err != nil || b.Waiting != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestTheWebhookNeedsNeitherCookieNorOrigin is what GitHub's requests are like, and what a stranger's are answered.
func TestTheWebhookNeedsNeitherCookieNorOrigin(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.browser()
	req := b.request(http.MethodPost, "/webhook/github", strings.NewReader(`{}`))
	req.Header.Set("X-GitHub-Event", "ping")
	p := b.do(req)
	b.want(p, http.StatusUnauthorized, "The signature is missing or wrong.")
	if len(p.header.Values("Set-Cookie")) != 0 {
		t.Error("it sets a cookie")
	}
	b.want(s.as("ana").do(b.request(http.MethodGet, "/webhook/github", nil)), http.StatusMethodNotAllowed, "GitHub posts its webhooks here.")
}
