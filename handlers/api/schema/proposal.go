package schema

import "time"

// Proposal is a pull request that proposes an Environment.
type Proposal struct {
	Number    int           `json:"number"`
	Title     string        `json:"title"`
	URL       string        `json:"url"`
	Author    string        `json:"author"` // login
	Commit    string        `json:"commit"` // of its head
	Base      string        `json:"base"`   // the branch it is for
	Fork      bool          `json:"fork,omitempty"`
	State     string        `json:"state"` // open, merged, closed
	File      string        `json:"file"`  // none, deleted, unchanged, invalid, valid
	Problems  []FileProblem `json:"problems"`
	Merged    string        `json:"merged,omitempty"`    // the commit that it was merged as
	MergedBy  string        `json:"merged_by,omitempty"` // login
	Outcome   string        `json:"outcome,omitempty"`   // of a merged one: applied, nothing, needs, superseded, kept, wrong, elsewhere
	UpdatedAt time.Time     `json:"updated_at"`
}

// FileProblem is one thing wrong with the file of a Proposal, or a script it names.
type FileProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

// ProposalDetail is a Proposal with all that its check run says.
type ProposalDetail struct {
	Proposal
	Heading  string      `json:"heading"` // what the check run is headed
	Sentence string      `json:"sentence"`
	Draft    *Draft      `json:"draft,omitempty"`
	At       string      `json:"at,omitempty"` // the commit that the draft was read at: what a Test build is asked for
	Verdict  Verdict     `json:"verdict"`
	Changes  []Change    `json:"changes"`
	Missing  []string    `json:"missing"` // Variables without a value
	Drift    []string    `json:"drift"`
	Withheld bool        `json:"withheld,omitempty"` // a Test build runs without Sensitive values and Links, and doesn't count
	Tests    []TestBuild `json:"tests"`
}

// TestProposal starts a Test build of what a pull request says at exactly one commit. Runner is an id or a name.
type TestProposal struct {
	Commit string `json:"commit"`
	Runner string `json:"runner"`
}

// EnterProposed gives a Sensitive Variable of a pull request's draft, which is at a revision, its value.
type EnterProposed struct {
	Revision int64 `json:"revision"`
	Value    Value `json:"value"`
}

// ApplyProposal makes a version of what was merged as a commit.
type ApplyProposal struct {
	Commit  string `json:"commit"`
	Message string `json:"message,omitempty"`
}

// AdoptProposal makes the draft of a pull request the Repo's draft, which is at revision base, 0 for none.
type AdoptProposal struct {
	Base int64 `json:"base"`
}
