package github

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
)

// Event is what the Hub reads of a webhook. Deliveries come late, twice and in any order: an Event says what to look at
// again and who did it, and is never itself the state (facts/github.md §4, 5). What an event doesn't have is zero.
type Event struct {
	Name, Action string
	Installation int64 // which of the App's
	Sender       Account
	Organization Account
	Repo         Repository

	PullRequest PullRequest // pull_request

	// Branch, Before and After are of push (After is "" when the branch was deleted) and of create and delete, which have
	// the branch only.
	Branch, Before, After string

	Check      CheckEvent // check_run, check_suite
	MergeGroup Side       // merge_group: the queue's own commit and the branch it is for

	Install        Installation // installation
	Added, Removed []Repository // installation, installation_repositories: only ID, FullName, Private

	Person  Account // member, membership, organization: whose access changed
	Account Account // installation_target: who has another login now
}

// CheckEvent is about a check run, or with Run 0 about all of the App's on a commit.
type CheckEvent struct {
	Run, Suite, App  int64
	SHA              string
	Name, ExternalID string
	Button           string // requested_action: the Identifier of what was pressed
	// Body is the SHA-256 of the signed payload: the same for what is sent again under another delivery id, which isn't signed.
	Body string
}

// moment is a time in whatever form: webhooks have some that no parser of RFC 3339 takes, and no delivery may be lost for that.
type moment struct{ time.Time }

func (m *moment) UnmarshalJSON(b []byte) error {
	if t, err := time.Parse(time.RFC3339, strings.Trim(string(b), `"`)); err == nil {
		m.Time = t
	}
	return nil
}

type payloadJSON struct {
	Action       string           `json:"action"`
	Installation installationJSON `json:"installation"`
	Sender       *accountJSON     `json:"sender"`
	Organization *accountJSON     `json:"organization"`
	Account      *accountJSON     `json:"account"`
	Member       *accountJSON     `json:"member"`
	Membership   struct {
		User *accountJSON `json:"user"`
	} `json:"membership"`
	Repository  repositoryJSON `json:"repository"`
	PullRequest pullJSON       `json:"pull_request"`
	Ref         string         `json:"ref"`
	RefType     string         `json:"ref_type"`
	Before      string         `json:"before"`
	After       string         `json:"after"`
	CheckRun    struct {
		suiteJSON
		Name       string    `json:"name"`
		ExternalID string    `json:"external_id"`
		Suite      suiteJSON `json:"check_suite"`
	} `json:"check_run"`
	CheckSuite      suiteJSON `json:"check_suite"`
	RequestedAction struct {
		Identifier string `json:"identifier"`
	} `json:"requested_action"`
	MergeGroup struct {
		HeadSHA string `json:"head_sha"`
		BaseRef string `json:"base_ref"`
	} `json:"merge_group"`
	Repositories []repositoryJSON `json:"repositories"`
	Added        []repositoryJSON `json:"repositories_added"`
	Removed      []repositoryJSON `json:"repositories_removed"`
}

type suiteJSON struct {
	ID  int64  `json:"id"`
	SHA string `json:"head_sha"`
	App struct {
		ID int64 `json:"id"`
	} `json:"app"`
}

// Decode reads what the Hub needs of the payload, and only that: an odd field elsewhere loses no delivery. An event that
// isn't known has Name, Action, Sender, Repo and Installation. The error is Invalid: the same bytes won't do later either.
func (d Delivery) Decode() (Event, error) {
	var j payloadJSON
	if err := json.Unmarshal(d.Payload, &j); err != nil {
		return Event{}, &Error{Kind: Invalid, Message: "GitHub's event can't be read.", Detail: sentence(err.Error())}
	}
	e := Event{
		Name: d.Event, Action: j.Action, Installation: j.Installation.ID, Sender: j.Sender.account(),
		Organization: j.Organization.account(), Repo: j.Repository.repository(),
	}
	switch d.Event {
	case "pull_request":
		e.PullRequest = j.PullRequest.pull()
	case "push":
		e.Branch, e.Before, e.After = branch(j.Ref), known(j.Before), known(j.After)
	case "create", "delete":
		if j.RefType == "branch" {
			e.Branch = branch("refs/heads/" + strings.TrimPrefix(j.Ref, "refs/heads/"))
		}
	case "check_run":
		e.Check = CheckEvent{
			Body: digest(d.Payload), Run: j.CheckRun.ID, Suite: j.CheckRun.Suite.ID, App: j.CheckRun.App.ID, SHA: j.CheckRun.SHA, Name: j.CheckRun.Name,
			ExternalID: j.CheckRun.ExternalID, Button: j.RequestedAction.Identifier,
		}
	case "check_suite":
		e.Check = CheckEvent{Body: digest(d.Payload), Suite: j.CheckSuite.ID, App: j.CheckSuite.App.ID, SHA: j.CheckSuite.SHA}
	case "merge_group":
		e.MergeGroup = Side{Repo: e.Repo.ID, Ref: branch(j.MergeGroup.BaseRef), SHA: j.MergeGroup.HeadSHA}
	case "installation":
		e.Install = j.Installation.installation()
		e.Added = repositories(j.Repositories)
		if j.Action == "deleted" {
			e.Added, e.Removed = nil, e.Added
		}
	case "installation_repositories":
		e.Added, e.Removed = repositories(j.Added), repositories(j.Removed)
	case "installation_target":
		e.Account = j.Account.account()
	case "member", "membership":
		e.Person = j.Member.account()
	case "organization":
		e.Person = j.Membership.User.account()
	}
	return e, nil
}

func digest(payload []byte) string {
	h := sha256.Sum256(payload)
	return hex.EncodeToString(h[:])
}

// branch is the name in refs/heads/…, and "" for a tag.
func branch(ref string) string {
	name, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok {
		return ""
	}
	return name
}

// known is a commit, or "" for the zeros that stand for none.
func known(sha string) string {
	if strings.Trim(sha, "0") == "" {
		return ""
	}
	return sha
}

func repositories(all []repositoryJSON) []Repository {
	var out []Repository
	for _, j := range all {
		out = append(out, j.repository())
	}
	return out
}
