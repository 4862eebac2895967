package github

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Observed is one request that went to GitHub, those for tokens included. It names no Repo and no person, so that it can
// become a metric.
type Observed struct {
	Operation string // for example "POST /repositories/{}/check-runs"
	Status    int    // 0 when nothing was answered
	Took      time.Duration
	// Limit and Remaining are the asker's hourly limit as GitHub said it; both 0 where it says none.
	Limit, Remaining int
}

// words are the parts of paths that are kept; everything else could be a name or an id.
var words = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`app hook config deliveries attempts installations installation access_tokens app-manifests
		conversions applications token grant repositories repos user users orgs check-runs commits pulls branches compare git
		trees blobs collaborators permission login oauth access_token`) {
		m[w] = true
	}
	return m
}()

// operation gives a request's form. A branch or person called like a word is a word: that makes no new operation.
func operation(method, path string) string {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/"), "api/v3/"), "/")
	for i, p := range parts {
		if !words[p] && p != "" {
			parts[i] = "{}"
		}
	}
	return method + " /" + strings.Join(parts[:min(len(parts), 6)], "/")
}

func (f *fence) watch(r *http.Request, resp *http.Response, begun time.Time) {
	if f.observe == nil {
		return
	}
	o := Observed{Operation: operation(r.Method, r.URL.EscapedPath()), Took: time.Since(begun)}
	if resp != nil {
		o.Status = resp.StatusCode
		o.Limit, _ = strconv.Atoi(resp.Header.Get("X-RateLimit-Limit"))
		o.Remaining, _ = strconv.Atoi(resp.Header.Get("X-RateLimit-Remaining"))
	}
	f.observe(o)
}
