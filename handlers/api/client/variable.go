package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// Discard gives up what the draft has beyond the current version. The answer is the draft that is there now, nil for none.
func (c *Client) Discard(ctx context.Context, repo, base int64) (*schema.Draft, error) {
	var out schema.Discarded
	_, err := c.do(ctx, post(repoPath(repo, "environment", "draft", "discard"), schema.Base{Base: base}), &out)
	return out.Draft, err
}

// Restore makes a version's Spec the draft.
func (c *Client) Restore(ctx context.Context, repo, base int64, version int) (d schema.Draft, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "environment", "draft", "restore"), schema.Restore{Base: base, Version: version}), &d)
	return d, err
}

// Diff compares two sides, each "draft", "none" or a version's number. "" is the current version as from, and the draft as to.
func (c *Client) Diff(ctx context.Context, repo int64, from, to string) (d schema.Diff, err error) {
	q := get(repoPath(repo, "environment", "diff"))
	q.query = url.Values{"from": {from}, "to": {to}}
	_, err = c.do(ctx, q, &d)
	return d, err
}

// DraftVariables lists the draft's Variables with what may be shown of their values; none without a draft.
func (c *Client) DraftVariables(ctx context.Context, repo int64) (list []schema.Variable, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "draft", "variables")), &list)
	return list, err
}

// VersionVariables is DraftVariables of a version.
func (c *Client) VersionVariables(ctx context.Context, repo int64, number int) (list []schema.Variable, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "versions", strconv.Itoa(number), "variables")), &list)
	return list, err
}

// EnterValue puts a value in the place of a lost one. It applies at once.
func (c *Client) EnterValue(ctx context.Context, repo int64, name string, value []byte) error {
	_, err := c.do(ctx, post(repoPath(repo, "environment", "variables", name, "enter"), schema.EnterValue{Value: schema.ValueOf(value)}), nil)
	return err
}

// SharedChanges lists the Links of a version, available at build, whose Shared variable got a new value since it was tested.
func (c *Client) SharedChanges(ctx context.Context, repo int64, number int) (list []schema.SharedChange, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "versions", strconv.Itoa(number), "shared-changes")), &list)
	return list, err
}

// OnVersions counts the Repo's Sessions by the version they stand on.
func (c *Client) OnVersions(ctx context.Context, repo int64) (list []schema.OnVersion, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "environment", "sessions")), &list)
	return list, err
}

// AllShared lists the Shared variables with who links them.
func (c *Client) AllShared(ctx context.Context) (list []schema.Shared, err error) {
	_, err = c.do(ctx, get("/shared"), &list)
	return list, err
}

// Shared reads one.
func (c *Client) Shared(ctx context.Context, name string) (s schema.Shared, err error) {
	_, err = c.do(ctx, get(seg("shared", name)), &s)
	return s, err
}

// CreateShared makes a Shared variable.
func (c *Client) CreateShared(ctx context.Context, in schema.CreateShared) (s schema.Shared, err error) {
	_, err = c.do(ctx, post("/shared", in), &s)
	return s, err
}

// SetShared gives one a new value.
func (c *Client) SetShared(ctx context.Context, name string, in schema.SetShared) (s schema.Shared, err error) {
	_, err = c.do(ctx, call{method: http.MethodPut, path: seg("shared", name, "value"), body: in}, &s)
	return s, err
}

// NoteShared changes one's note.
func (c *Client) NoteShared(ctx context.Context, name string, in schema.NoteShared) (s schema.Shared, err error) {
	_, err = c.do(ctx, call{method: http.MethodPut, path: seg("shared", name, "note"), body: in}, &s)
	return s, err
}

// RenameShared changes one's name.
func (c *Client) RenameShared(ctx context.Context, name string, in schema.RenameShared) (s schema.Shared, err error) {
	_, err = c.do(ctx, post(seg("shared", name, "rename"), in), &s)
	return s, err
}

// DeleteShared deletes one with its value.
func (c *Client) DeleteShared(ctx context.Context, name string, revision int64) error {
	_, err := c.do(ctx, post(seg("shared", name, "delete"), schema.DeleteShared{Revision: revision}), nil)
	return err
}
