package proposal

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/envspec"
)

func TestWhatFollowsFromFacts(t *testing.T) {
	t.Parallel()
	none := document{absent: true}
	good := func(blobs string) document { return document{blobs: blobs} }
	bad := document{blobs: "bad", problems: envspec.Problems{{Message: "wrong"}}}
	warned := document{blobs: "warned", problems: envspec.Problems{{Message: "look", Warning: true}}}
	open := github.PullRequest{Open: true, Base: github.Side{Ref: "main"}}
	merged := github.PullRequest{Merged: true, Base: github.Side{Ref: "main"}}
	aside := github.PullRequest{Merged: true, Base: github.Side{Ref: "release"}}
	for name, c := range map[string]struct {
		pull                       github.PullRequest
		head, base, merged, branch document
		state                      State
		file                       File
		outcome                    Outcome
		drafts                     bool
	}{
		"nothing":                {open, none, none, none, none, Open, None, "", false},
		"new":                    {open, good("1"), none, none, none, Open, Valid, "", true},
		"changed":                {open, good("2"), good("1"), none, none, Open, Valid, "", true},
		"with a warning":         {open, warned, good("1"), none, none, Open, Valid, "", true},
		"as it was":              {open, good("1"), good("1"), none, none, Open, Unchanged, "", false},
		"as wrong as it was":     {open, bad, bad, none, none, Open, Unchanged, "", false},
		"wrong":                  {open, bad, good("1"), none, none, Open, Invalid, "", false},
		"mended":                 {open, good("1"), bad, none, none, Open, Valid, "", true},
		"deleted":                {open, none, good("1"), none, none, Open, Deleted, "", false},
		"closed":                 {github.PullRequest{}, none, none, none, none, Closed, None, "", false},
		"merged":                 {merged, good("2"), good("1"), good("2"), good("2"), Merged, Valid, Needs, true},
		"merged with others":     {merged, good("2"), good("1"), good("3"), good("3"), Merged, Valid, Needs, true},
		"merged, changed since":  {merged, good("2"), good("1"), good("2"), good("3"), Merged, Valid, Superseded, false},
		"merged, deleted since":  {merged, good("2"), good("1"), good("2"), none, Merged, Valid, Superseded, false},
		"merged, leaves it":      {merged, good("1"), good("1"), none, none, Merged, Unchanged, Nothing, false},
		"merged without":         {merged, none, none, none, none, Merged, None, Nothing, false},
		"merged, deletes it":     {merged, none, good("1"), none, none, Merged, Deleted, Kept, false},
		"merged, wrong":          {merged, bad, good("1"), bad, bad, Merged, Invalid, Wrong, false},
		"merged to wrong":        {merged, good("2"), good("1"), bad, bad, Merged, Invalid, Wrong, false},
		"merged somewhere else":  {aside, none, none, none, none, Merged, None, Elsewhere, false},
		"merged, and back again": {merged, none, good("1"), none, good("1"), Merged, Deleted, Superseded, false},
	} {
		d := decide(facts{repo: github.Repository{DefaultBranch: "main"}, pull: c.pull, head: c.head, base: c.base, merged: c.merged, branch: c.branch})
		if d.state != c.state || d.file != c.file || d.outcome != c.outcome || d.drafts() != c.drafts || d.reason == "" {
			t.Errorf("%s: %+v, drafts %v", name, d, d.drafts())
		}
	}
}
