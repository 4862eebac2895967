// Package checked starts a githubtest.Server for a test and holds every request on its API, and every answer, against
// GitHub's own OpenAPI description: what GitHub doesn't describe fails the test that asked it.
//
// It is apart from githubtest so that only test code links the validator.
package checked

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
)

//go:embed openapi.json
var description []byte

// New starts a GitHub that ends with the test. A request or an answer that GitHub doesn't describe fails the test.
func New(t testing.TB, o githubtest.Options) *githubtest.Server {
	t.Helper()
	return Lenient(t, o, func(err error) { t.Errorf("%v", err) })
}

// Lenient is New for tests that ask what GitHub doesn't describe: violation is told of it in place of the test.
func Lenient(t testing.TB, o githubtest.Options, violation func(error)) *githubtest.Server {
	t.Helper()
	c, err := checker()
	if err != nil {
		t.Fatalf("GitHub's description: %v", err)
	}
	o.Checker, o.Violation = c, violation
	if o.Folder == "" {
		o.Folder = t.TempDir()
	}
	s, err := githubtest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Both runs f against github.com and against an Enterprise Server, side by side.
func Both(t *testing.T, f func(t *testing.T, gh *githubtest.Server)) {
	t.Helper()
	for name, ghes := range map[string]bool{"github.com": false, "GHES": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, New(t, githubtest.Options{GHES: ghes}))
		})
	}
}

type openAPI struct{ router routers.Router }

// checker reads the description once for all tests of a process.
var checker = sync.OnceValues(func() (*openAPI, error) {
	doc, err := openapi3.NewLoader().LoadFromData(description)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil
	// GitHub answers null once a fork was deleted, whatever it describes (facts/github.md §3).
	for _, name := range []string{"pull-request", "pull-request-simple"} {
		head := doc.Components.Schemas[name].Value.Properties["head"].Value
		gone := *head.Properties["repo"].Value
		gone.Nullable = true
		head.Properties["repo"] = &openapi3.SchemaRef{Value: &gone}
	}
	r, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, err
	}
	// GitHub sends and takes what is not JSON as it is: files with Accept: raw.
	openapi3filter.RegisterBodyDecoder("application/vnd.github.raw+json", openapi3filter.FileBodyDecoder)
	return &openAPI{r}, nil
})

// byID is how GitHub's redirects name a repository. It isn't in the description; what stands below it is the same as below
// /repos/{owner}/{repo}.
var byID = regexp.MustCompile(`^/repositories/[0-9]+`)

// slashed are the parameters that may have slashes: paths and branches.
var slashed = regexp.MustCompile(`^(/repos/[^/]+/[^/]+/(?:contents|branches|compare|commits|git/trees)/)(.*?)(/check-runs|/pulls)?$`)

func (o *openAPI) find(r *http.Request, body []byte) (*openapi3filter.RequestValidationInput, error) {
	in := r.Clone(r.Context())
	in.URL.Path = byID.ReplaceAllString(r.URL.Path, "/repos/by/id")
	in.URL.RawPath = ""
	if m := slashed.FindStringSubmatch(in.URL.Path); m != nil {
		in.URL.Path = m[1] + cmp.Or(strings.ReplaceAll(m[2], "/", "_"), "root") + m[3]
	}
	in.URL.Host, in.URL.Scheme, in.Host = "", "", ""
	in.RequestURI = ""
	if string(bytes.TrimSpace(body)) == "null" { // what ghinstallation asks for, and GitHub takes (facts/github.md §1, 18)
		body = nil
	}
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if len(body) == 0 {
		in.Body = http.NoBody
	}
	route, params, err := o.router.FindRoute(in)
	if err != nil {
		return nil, err
	}
	return &openapi3filter.RequestValidationInput{
		Request: in, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}, nil
}

// Request judges a request.
func (o *openAPI) Request(r *http.Request, body []byte) error {
	in, err := o.find(r, body)
	if err != nil {
		return err
	}
	if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
		return brief(err)
	}
	// The description has no such rule for the creation of a check run, only for its update.
	var run struct{ Status, Conclusion string }
	if strings.HasSuffix(r.URL.Path, "/check-runs") && json.Unmarshal(body, &run) == nil &&
		run.Status == "completed" && run.Conclusion == "" {
		return errors.New("a check run that is completed needs a conclusion")
	}
	return nil
}

// Answer judges an answer. Errors that GitHub may give anywhere are not described and pass.
func (o *openAPI) Answer(r *http.Request, body []byte, status int, header http.Header, answer []byte) error {
	in, err := o.find(r, body)
	if err != nil {
		return err
	}
	if status >= 400 && in.Route.Operation.Responses.Status(status) == nil {
		return nil
	}
	if status == http.StatusTemporaryRedirect || status == http.StatusMovedPermanently {
		return nil
	}
	if strings.Contains(header.Get("Content-Type"), "raw") {
		return nil // a file, of any form
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: status, Header: header, Options: in.Options,
	}
	out.SetBodyBytes(answer)
	return brief(openapi3filter.ValidateResponse(r.Context(), out))
}

// brief leaves out the schema, which may be hundreds of lines.
func brief(err error) error {
	if err == nil {
		return nil
	}
	text, _, _ := strings.Cut(err.Error(), "\nSchema:")
	var at *openapi3.SchemaError
	if errors.As(err, &at) {
		text += " (at /" + strings.Join(at.JSONPointer(), "/") + ")"
	}
	return errors.New(text)
}
