package handlers_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestEditorsGetTheSchemaWithoutSignInAndMayKeepIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	get := func(etag string) (*http.Response, []byte) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/schemas/environment.v1.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, b
	}
	first, b := get("")
	if first.StatusCode != http.StatusOK || !bytes.Equal(b, envspec.Schema()) || first.Header.Get("Content-Type") != "application/schema+json" ||
		first.Header.Get("Cache-Control") != "public, max-age=3600" || first.Header.Get("Access-Control-Allow-Origin") != "*" || len(first.Header["Set-Cookie"]) != 0 {
		t.Errorf("status %d, headers %v, %d bytes", first.StatusCode, first.Header, len(b))
	}
	if again, b := get(first.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || len(b) != 0 {
		t.Errorf("asked again with its tag: status %d and %d bytes", again.StatusCode, len(b))
	}
}
