package handlers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
)

// environmentSchema serves the JSON Schema of environment.yml, for editors: to anybody, from any page, and kept for an
// hour. It says nothing that the documentation doesn't.
func environmentSchema(w http.ResponseWriter, r *http.Request) {
	b := envspec.Schema()
	sum := sha256.Sum256(b)
	h := w.Header()
	h.Set("Content-Type", "application/schema+json")
	h.Set("Cache-Control", "public, max-age=3600")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}
