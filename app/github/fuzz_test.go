package github_test

import (
	"bytes"
	"net/http"
	"testing"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/examples"
)

// FuzzDelivery: whatever arrives, only what is signed is taken, byte for byte, and reading it never panics.
func FuzzDelivery(f *testing.F) {
	for _, x := range examples.All()[:40] {
		f.Add(x.Event, "sha256=00", []byte(x.Payload))
	}
	f.Add("push", "", []byte(`{"ref":1}`))
	f.Fuzz(func(t *testing.T, event, signature string, payload []byte) {
		h := githubtest.Signed("push", "g-1", "s", payload)
		h.Set("X-GitHub-Event", event)
		d, err := read(h, bytes.NewReader(payload), secrets("s"))
		if err == nil && (!bytes.Equal(d.Payload, payload) || d.Event != event) {
			t.Errorf("got %q, sent %q", d.Payload, payload)
		}
		if err == nil {
			_, _ = d.Decode()
		}
		if h.Get("X-Hub-Signature-256") != signature {
			h.Set("X-Hub-Signature-256", signature)
			if _, err := read(h, bytes.NewReader(payload), secrets("s")); err == nil && len(signature) != len("sha256=")+64 {
				t.Errorf("taken with the signature %q", signature)
			}
		}
		if _, err := read(http.Header{}, bytes.NewReader(payload), secrets("s", "")); err == nil {
			t.Error("taken without a signature")
		}
	})
}

func FuzzClip(f *testing.F) {
	f.Add("ü€😀", 5)
	f.Add("\xff\xfe", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(limit, 0) % 200
		if c := github.Clip(s, limit); len(c) > limit || !utf8.ValidString(c) {
			t.Errorf("Clip(%q, %d) = %q", s, limit, c)
		}
	})
}
