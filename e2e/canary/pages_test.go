package canary

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// refusedValues has the Hub refuse requests that hold the value.
func (st *story) refusedValues() {
	st.t.Helper()
	st.channel("refused-requests")
	ctx := st.t.Context()
	for what, err := range map[string]error{
		"a value with NUL": errOf(st.c.CreateShared(ctx, schema.CreateShared{Name: "OTHER", Sensitive: true, Value: schema.ValueOf([]byte(st.value + "\x00"))})),
		"a taken name":     errOf(st.c.CreateShared(ctx, schema.CreateShared{Name: "SHARED_CANARY", Sensitive: true, Value: schema.ValueOf([]byte(st.value))})),
		"nothing lost":     st.c.EnterValue(ctx, repo, "CANARY", []byte(st.value)),
		"a draft's base": errOf(st.c.Save(ctx, repo, schema.SaveDraft{Base: 1, Spec: &envspec.Spec{Image: st.image, Variables: []envspec.Variable{{Name: "CANARY", Sensitive: true}}},
			Values: map[string]schema.Value{"CANARY": schema.ValueOf([]byte(st.value))}})),
		"no such Variable": errOf(st.c.Save(ctx, repo, schema.SaveDraft{Spec: &envspec.Spec{Image: st.image}, Values: map[string]schema.Value{"NONE": schema.ValueOf([]byte(st.value))}})),
	} {
		if err == nil {
			st.t.Errorf("%s is not refused", what)
			continue
		}
		st.search.look("errors of the client", []byte(err.Error()))
	}
	// What is no JSON, with the value in it.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, st.wire.URL+"/api/v1/shared", strings.NewReader(`{"name":"X","value":{"text":"`+st.value))
	if err != nil {
		st.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+st.Token)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		st.t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode < 400 {
		st.t.Errorf("half a request is answered %s %v", res.Status, err)
	}
}

func errOf[T any](_ T, err error) error { return err }

// pages opens every page and every answer of the API that is about this Repo, in a browser.
func (st *story) pages(id string) {
	st.t.Helper()
	ctx := st.t.Context()
	jar, err := cookiejar.New(nil)
	if err != nil {
		st.t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	res, err := browser.PostForm(st.wire.URL+"/sign-in", url.Values{"login": {"bob"}})
	if err != nil {
		st.t.Fatal(err)
	}
	_ = res.Body.Close()
	tests, err := st.c.Tests(ctx, repo)
	if err != nil {
		st.t.Fatal(err)
	}
	pages := []string{"/", "/runners", "/shared", "/shared/SHARED_CANARY", "/repos/7", "/repos/7/environment", "/repos/7/environment/variables/CANARY",
		"/repos/7/environment/variables/CANARY/value", "/repos/7/diff", "/repos/7/diff?from=none&to=1", "/repos/7/tests", "/repos/7/versions", "/repos/7/versions/1",
		"/repos/7/versions/1/restore", "/repos/7/sessions", "/repos/7/sessions/" + id, "/repos/7/sessions/" + id + "/log", "/repos/7/sessions/" + id + "/delete"}
	for _, t := range tests {
		pages = append(pages, "/repos/7/tests/"+t.ID, "/repos/7/tests/"+t.ID+"/log", "/repos/7/tests/"+t.ID+"/events")
	}
	opened := 0
	for _, p := range pages {
		page, cancel := context.WithTimeout(ctx, 10*time.Second)
		r, err := http.NewRequestWithContext(page, http.MethodGet, st.wire.URL+p, nil)
		if err != nil {
			st.t.Fatal(err)
		}
		res, err := browser.Do(r)
		if err != nil {
			st.t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil && page.Err() == nil {
			st.t.Errorf("%s: %v", p, err)
		}
		_ = res.Body.Close()
		cancel()
		if res.StatusCode == http.StatusOK {
			opened++
		}
	}
	if opened < len(pages)*2/3 {
		st.t.Errorf("only %d of %d pages are there", opened, len(pages))
	}
	st.events(browser, "/repos/7/sessions/"+id+"/events")
	for _, call := range []func() error{
		func() error { return errOf(st.c.Runners(ctx)) },
		func() error { return errOf(st.c.AllSessions(ctx)) },
		func() error { return errOf(st.c.Environment(ctx, repo)) },
		func() error { return errOf(st.c.Versions(ctx, repo)) },
		func() error { return errOf(st.c.DraftVariables(ctx, repo)) },
		func() error { return errOf(st.c.VersionVariables(ctx, repo, 1)) },
		func() error { return errOf(st.c.Diff(ctx, repo, "none", "1")) },
		func() error { return errOf(st.c.AllShared(ctx)) },
		func() error { return errOf(st.c.Shared(ctx, "SHARED_CANARY")) },
	} {
		if err := call(); err != nil {
			st.t.Error(err)
		}
	}
}

// events reads a page's stream until the first quiet moment.
func (st *story) events(browser *http.Client, path string) {
	st.t.Helper()
	ctx, cancel := context.WithCancel(st.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, st.wire.URL+path, nil)
	if err != nil {
		st.t.Fatal(err)
	}
	res, err := browser.Do(r)
	if err != nil {
		st.t.Fatal(err)
	}
	defer res.Body.Close()
	quiet := time.AfterFunc(3*time.Second, cancel)
	defer quiet.Stop()
	buf := make([]byte, 64<<10)
	for n := 0; ; {
		got, err := res.Body.Read(buf)
		n += got
		if err != nil {
			if n == 0 {
				st.t.Errorf("%s sent nothing: %v", path, err)
			}
			return
		}
		quiet.Reset(3 * time.Second)
	}
}
