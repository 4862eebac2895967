package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// Me is who the token belongs to.
func (c *Client) Me(ctx context.Context) (me schema.Me, err error) {
	_, err = c.do(ctx, get("/me"), &me)
	return me, err
}

// Repos lists what the caller may use.
func (c *Client) Repos(ctx context.Context) (list []schema.Repo, err error) {
	_, err = c.do(ctx, get("/repos"), &list)
	return list, err
}

// Repo finds one by its name, owner/name, or its numeric id. A name that isn't among the caller's Repos is entered as
// OpenRepo does, for what the Hub says of it.
func (c *Client) Repo(ctx context.Context, nameOrID string) (repo schema.Repo, err error) {
	if id, err := strconv.ParseInt(nameOrID, 10, 64); err == nil && id > 0 {
		_, err := c.do(ctx, get(repoPath(id)), &repo)
		return repo, err
	}
	q := get("/repos")
	q.query = url.Values{"name": {nameOrID}}
	var list []schema.Repo
	switch _, err := c.do(ctx, q, &list); {
	case err == nil && len(list) == 1:
		return list[0], nil
	case err != nil && !Is(err, fault.NotFound):
		return repo, err
	}
	return c.OpenRepo(ctx, nameOrID)
}

// OpenRepo enters a Repo by owner/name or by an address of it. An Error says whether the App isn't installed on it, with
// where that is done.
func (c *Client) OpenRepo(ctx context.Context, text string) (repo schema.Repo, err error) {
	_, err = c.do(ctx, post("/repos/open", schema.OpenRepo{Repo: text}), &repo)
	return repo, err
}

// Tokens lists the caller's own.
func (c *Client) Tokens(ctx context.Context) (list []schema.Token, err error) {
	_, err = c.do(ctx, get("/tokens"), &list)
	return list, err
}

// CreateToken makes one that can do no more than the one that this Client has.
func (c *Client) CreateToken(ctx context.Context, in schema.NewToken) (made schema.MadeToken, err error) {
	_, err = c.do(ctx, post("/tokens", in), &made)
	return made, err
}

// RevokeToken ends one of the caller's tokens.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	_, err := c.do(ctx, post(seg("tokens", id, "revoke"), nil), nil)
	return err
}

// Runners lists all that are registered.
func (c *Client) Runners(ctx context.Context) (list []schema.Runner, err error) {
	_, err = c.do(ctx, get("/runners"), &list)
	return list, err
}

// NewRegistration makes a token that registers one Runner.
func (c *Client) NewRegistration(ctx context.Context) (reg schema.Registration, err error) {
	_, err = c.do(ctx, post("/runners/registrations", nil), &reg)
	return reg, err
}

// RevokeRunner ends a Runner's identity; it is named by id or name.
func (c *Client) RevokeRunner(ctx context.Context, runner string) error {
	_, err := c.do(ctx, post(seg("runners", runner, "revoke"), nil), nil)
	return err
}

// Environment reads a Repo's Environment.
func (c *Client) Environment(ctx context.Context, repo int64) (env schema.Environment, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment")), &env)
	return env, err
}

// SaveDraft stores spec as the web draft; base is the revision it was made from, 0 for none.
func (c *Client) SaveDraft(ctx context.Context, repo, base int64, spec envspec.Spec) (schema.Draft, error) {
	return c.Save(ctx, repo, schema.SaveDraft{Base: base, Spec: &spec})
}

// SaveDraftYAML is SaveDraft for a document; name is said in the problems found in it.
func (c *Client) SaveDraftYAML(ctx context.Context, repo, base int64, name, yaml string) (schema.Draft, error) {
	return c.Save(ctx, repo, schema.SaveDraft{Base: base, Name: name, YAML: &yaml})
}

// Save is SaveDraft with all there is to say. An older base is an *Error of code conflict, with the draft as it is.
func (c *Client) Save(ctx context.Context, repo int64, in schema.SaveDraft) (d schema.Draft, err error) {
	if err := carried(in); err != nil {
		return d, err
	}
	_, err = c.do(ctx, call{method: http.MethodPut, path: repoPath(repo, "environment", "draft"), body: in}, &d)
	return d, err
}

// carried refuses what JSON would carry as something else.
func carried(in schema.SaveDraft) error {
	refuse := func(field, format string, args ...any) error {
		message := fmt.Sprintf(format, args...)
		return &Error{Status: http.StatusUnprocessableEntity, Code: fault.Invalid, Message: message, Fields: map[string]string{field: message}}
	}
	if in.YAML != nil && !utf8.ValidString(*in.YAML) {
		return refuse("", "The document is not UTF-8: save it as UTF-8.")
	}
	if in.Spec == nil {
		return nil
	}
	for _, v := range in.Spec.Variables {
		switch {
		case !utf8.ValidString(v.Value):
			return refuse("variables."+v.Name, "The value of %s is not UTF-8 text. Make it Sensitive: a Sensitive value may be any bytes.", v.Name)
		case !utf8.ValidString(v.Note):
			return refuse("variables."+v.Name, "The note of %s is not UTF-8 text.", v.Name)
		}
	}
	return nil
}

// Apply makes a version of one revision of the draft.
func (c *Client) Apply(ctx context.Context, repo, revision int64, message string) (v schema.Version, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "environment", "apply"), schema.Apply{Revision: revision, Message: message}), &v)
	return v, err
}

// Versions lists the newest.
func (c *Client) Versions(ctx context.Context, repo int64) (list []schema.Version, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "versions")), &list)
	return list, err
}

// Version reads one by its number.
func (c *Client) Version(ctx context.Context, repo int64, number int) (v schema.Version, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "versions", strconv.Itoa(number))), &v)
	return v, err
}

// StartTest starts a Test build of one revision of the draft on a Runner, named by id or name.
func (c *Client) StartTest(ctx context.Context, repo, revision int64, runner string) (t schema.TestBuild, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "environment", "tests"), schema.StartTest{Revision: revision, Runner: runner}), &t)
	return t, err
}

// Tests lists the newest Test builds.
func (c *Client) Tests(ctx context.Context, repo int64) (list []schema.TestBuild, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "tests")), &list)
	return list, err
}

// Test reads a Test build, at once or when it is no longer the one w.Seen names. changed is false when it still is;
// etag is for the next Wait.
func (c *Client) Test(ctx context.Context, repo int64, id string, w Wait) (t schema.TestBuild, etag string, changed bool, err error) {
	a, err := c.do(ctx, w.on(get(repoPath(repo, "environment", "tests", id))), &t)
	return t, a.header.Get("ETag"), a.status == http.StatusOK, err
}

// WaitTest returns the Test build once it is final. each, if set, is called with every state on the way, the last included.
func (c *Client) WaitTest(ctx context.Context, repo int64, id string, each func(schema.TestBuild)) (schema.TestBuild, error) {
	w := Wait{For: pollTime}
	for {
		t, etag, changed, err := c.Test(ctx, repo, id, w)
		if err != nil {
			return t, err
		}
		w.Seen = etag
		if changed && each != nil {
			each(t)
		}
		if changed && t.Final {
			return t, nil
		}
	}
}

// CancelTest asks for the end of a Test build.
func (c *Client) CancelTest(ctx context.Context, repo int64, id string) error {
	q := post(repoPath(repo, "environment", "tests", id, "cancel"), nil)
	q.repeatable = true
	_, err := c.do(ctx, q, nil)
	return err
}

// Sessions lists a Repo's, newest first.
func (c *Client) Sessions(ctx context.Context, repo int64) (list []schema.Session, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "sessions")), &list)
	return list, err
}

// AllSessions lists those of every Repo the caller may use.
func (c *Client) AllSessions(ctx context.Context) (list []schema.Session, err error) {
	_, err = c.do(ctx, get("/sessions"), &list)
	return list, err
}

// FindSession finds one by its id, or by the start or the end of its id (6 characters at least) if only one has it.
func (c *Client) FindSession(ctx context.Context, id string) (schema.Session, error) {
	all, err := c.AllSessions(ctx)
	if err != nil {
		return schema.Session{}, err
	}
	var found []schema.Session
	for _, s := range all {
		if s.ID == id {
			return s, nil
		}
		if len(id) >= 6 && (strings.HasPrefix(s.ID, id) || strings.HasSuffix(s.ID, id)) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return schema.Session{}, &Error{Status: http.StatusNotFound, Code: fault.NotFound, Message: "There is no Session " + id + ", or you have no access to its Repo."}
	}
	return schema.Session{}, &Error{Status: http.StatusConflict, Code: fault.Invalid, Message: "More than one Session's id begins or ends with " + id + ". Give more of it."}
}

// StartSession starts one.
func (c *Client) StartSession(ctx context.Context, repo int64, in schema.StartSession) (s schema.Session, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "sessions"), in), &s)
	return s, err
}

// Session reads one as Test does a Test build.
func (c *Client) Session(ctx context.Context, repo int64, id string, w Wait) (s schema.Session, etag string, changed bool, err error) {
	a, err := c.do(ctx, w.on(get(repoPath(repo, "sessions", id))), &s)
	return s, a.header.Get("ETag"), a.status == http.StatusOK, err
}

// WaitSession returns the Session once until says so of it; each, if set, is called with every state on the way. A
// Session that was deleted meanwhile is the Hub's not-found.
func (c *Client) WaitSession(ctx context.Context, repo int64, id string, until func(schema.Session) bool, each func(schema.Session)) (schema.Session, error) {
	w := Wait{For: pollTime}
	for {
		s, etag, changed, err := c.Session(ctx, repo, id, w)
		if err != nil {
			return s, err
		}
		w.Seen = etag
		if changed && each != nil {
			each(s)
		}
		if changed && until(s) {
			return s, nil
		}
	}
}

// Sleep, Wake, Restart, Retry, Archive and Count are what a person asks of a Session; each can be asked again.
func (c *Client) Sleep(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "sleep", true)
}

// Wake is described with Sleep.
func (c *Client) Wake(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "wake", true)
}

// Restart has a Session sleep and boot again at once, from the newest version. It is described with Sleep.
func (c *Client) Restart(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "restart", false)
}

// Retry is described with Sleep.
func (c *Client) Retry(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "retry", false)
}

// Archive is described with Sleep. What it gives up is schema.Session.Loses.
func (c *Client) Archive(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "archive", true)
}

// RestoreSession brings an archived Session back, asleep, or with wake on its way up.
func (c *Client) RestoreSession(ctx context.Context, repo int64, id string, wake bool) (s schema.Session, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "sessions", id, "restore"), schema.RestoreSession{Wake: wake}), &s)
	return s, err
}

// GrowSession gives a sleeping Session a disk of size bytes.
func (c *Client) GrowSession(ctx context.Context, repo int64, id string, size int64) (s schema.Session, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "sessions", id, "grow"), schema.GrowSession{DiskSize: size}), &s)
	return s, err
}

// Count has what exists in the Workspace only counted anew, if the Session runs. The answer comes as Detail.Unsaved.
func (c *Client) Count(ctx context.Context, repo int64, id string) (schema.Session, error) {
	return c.ask(ctx, repo, id, "count", true)
}

func (c *Client) ask(ctx context.Context, repo int64, id, what string, repeatable bool) (s schema.Session, err error) {
	q := post(repoPath(repo, "sessions", id, what), nil)
	q.repeatable = repeatable
	_, err = c.do(ctx, q, &s)
	return s, err
}

// DeleteSession gives up a Session with its Workspace. confirm is its id; without it the refusal says what would be lost.
func (c *Client) DeleteSession(ctx context.Context, repo int64, id, confirm string) error {
	_, err := c.do(ctx, post(repoPath(repo, "sessions", id, "delete"), schema.Delete{Confirm: confirm}), nil)
	return err
}
