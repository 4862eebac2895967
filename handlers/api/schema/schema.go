// Package schema is the JSON of the HTTP API: what handlers/api answers and handlers/api/client reads. Fields are only
// ever added. Times are RFC 3339 in UTC.
package schema

import (
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Me is who a token belongs to.
type Me struct {
	ID       string `json:"id"`
	Login    string `json:"login"`
	DevLogin bool   `json:"dev_login"` // anyone can sign in here under any name
}

// Repo is one that the caller may use.
type Repo struct {
	ID   int64  `json:"id"`
	Name string `json:"name"` // owner/name
}

// OpenRepo names a Repo as a person does: owner/name, or the address of it that a browser or git uses.
type OpenRepo struct {
	Repo string `json:"repo"`
}

// Token is one of the caller's tokens; its secret was shown once, when it was made.
type Token struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Scopes  []string   `json:"scopes"`
	Repos   []Repo     `json:"repos,omitempty"`  // the only ones it is good for, as far as the caller has access to them now; none and Hidden 0: all
	Hidden  int        `json:"hidden,omitempty"` // how many more that the caller has no access to now
	Created time.Time  `json:"created"`
	Expires time.Time  `json:"expires"`
	Used    *time.Time `json:"used,omitempty"` // within the hour; nil: never
}

// NewToken makes a token. Repos are owner/name or ids; none: every Repo the person has access to.
type NewToken struct {
	Name   string   `json:"name"`
	Scopes []string `json:"scopes"`
	Repos  []string `json:"repos,omitempty"`
	Days   int      `json:"days"` // until it expires
}

// MadeToken is a new Token with its secret.
type MadeToken struct {
	Token
	Secret string `json:"secret"`
}

// Runner is one registered Runner.
type Runner struct {
	ID           string         `json:"id"`
	Name         string         `json:"name"`
	Online       bool           `json:"online"`
	LastContact  *time.Time     `json:"last_contact,omitempty"` // nil: never
	Platform     string         `json:"platform,omitempty"`
	Version      string         `json:"version,omitempty"`
	Engine       string         `json:"engine,omitempty"`
	Capabilities []string       `json:"capabilities,omitempty"`
	CPU          float64        `json:"cpu,omitempty"`    // the most CPUs one Sandbox gets; 0: unknown
	Memory       int64          `json:"memory,omitempty"` // the most bytes one Sandbox gets; 0: unknown
	Load         map[string]int `json:"load"`             // what it should run now, by kind
	Disk         *RunnerDisk    `json:"disk,omitempty"`   // nil: not told to this Hub since it started
	Missing      []string       `json:"missing,omitempty"`
	Update       string         `json:"update,omitempty"` // why the Hub can't work with it, and what to do
}

// RunnerDisk is what a Runner's host has of room.
type RunnerDisk struct {
	Builds     int   `json:"builds"`
	BuildBytes int64 `json:"build_bytes"` // what they take
	Free       int64 `json:"free"`        // bytes of the file system with the Runner's data folder
}

// Registration is a token that registers one Runner, once.
type Registration struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	Command string    `json:"command"` // to be typed on the Runner's host
}

// Environment is a Repo's Environment as it stands. A Repo without one has neither draft nor current version.
type Environment struct {
	Draft   *Draft   `json:"draft,omitempty"`
	Current *Version `json:"current,omitempty"`
	Verdict Verdict  `json:"verdict"`
	Changes []Change `json:"changes"` // from the current version, or from nothing, to the draft
}

// Draft is the Repo's web draft.
type Draft struct {
	Revision  int64        `json:"revision"`
	Spec      envspec.Spec `json:"spec"`
	YAML      string       `json:"yaml"` // the same Spec as a document
	TestKey   string       `json:"test_key"`
	UpdatedAt time.Time    `json:"updated_at"`
	UpdatedBy string       `json:"updated_by"`
}

// Version is an applied Spec.
type Version struct {
	Number      int          `json:"number"`
	Spec        envspec.Spec `json:"spec"`
	YAML        string       `json:"yaml"`
	ImageDigest string       `json:"image_digest"`
	TestKey     string       `json:"test_key"`
	BuildKey    string       `json:"build_key"`
	TestBuild   string       `json:"test_build"`
	Message     string       `json:"message,omitempty"`
	Source      string       `json:"source"`
	AppliedAt   time.Time    `json:"applied_at"`
	AppliedBy   string       `json:"applied_by"`
}

// Verdict says whether the draft can be applied.
type Verdict struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason"`
}

// Change is one field that the draft changes, and what that means.
type Change struct {
	Field    string `json:"field"`
	Affects  string `json:"affects"`
	Sentence string `json:"sentence"`
}

// SaveDraft stores a draft, as a Spec or as a document; base is the revision it was made from, 0 for none. A base that is no
// longer the draft's is the error code conflict, with the draft as it is in Error.Conflict.
type SaveDraft struct {
	Base int64         `json:"base"`
	Spec *envspec.Spec `json:"spec,omitempty"`
	YAML *string       `json:"yaml,omitempty"`
	Name string        `json:"name,omitempty"` // of the document, for problems' places
	// Values are new values of Sensitive Variables, by name. One without a new value keeps the one it has.
	Values map[string]Value `json:"values,omitempty"`
}

// StartTest starts a Test build of one revision of the draft. Runner is an id or a name.
type StartTest struct {
	Revision int64  `json:"revision"`
	Runner   string `json:"runner"`
}

// RunnerRef names a Runner; Name is empty when it is no longer registered.
type RunnerRef struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// TestBuild is one Test build. Final ones don't change any more.
type TestBuild struct {
	ID          string               `json:"id"`
	Revision    int64                `json:"revision"`
	Spec        envspec.Spec         `json:"spec"`
	TestKey     string               `json:"test_key"`
	Runner      RunnerRef            `json:"runner"`
	State       string               `json:"state"` // queued, running, passed, failed, cancelled, lost
	Final       bool                 `json:"final"`
	Cancelling  bool                 `json:"cancelling,omitempty"` // somebody asked for its end
	CreatedAt   time.Time            `json:"created_at"`
	CreatedBy   string               `json:"created_by"`
	FinishedAt  *time.Time           `json:"finished_at,omitempty"`
	Detail      wire.TestBuildDetail `json:"detail"`
	ImageDigest string               `json:"image_digest,omitempty"`
	// Of what a pull request proposes: its number, the commit that was read, and whether Sensitive values and Links were withheld,
	// so that it doesn't count for Apply.
	PullRequest int    `json:"pull_request,omitempty"`
	Commit      string `json:"commit,omitempty"`
	Withheld    bool   `json:"withheld,omitempty"`
}

// Apply makes a version of one revision of the draft.
type Apply struct {
	Revision int64  `json:"revision"`
	Message  string `json:"message,omitempty"`
}

// StartSession starts a Session. Empty fields choose: the least loaded Runner, the default branch, a new work branch.
type StartSession struct {
	Runner     string `json:"runner,omitempty"` // id or name
	Branch     string `json:"branch,omitempty"`
	WorkBranch string `json:"work_branch,omitempty"`
}

// Session is one Session.
type Session struct {
	ID          string             `json:"id"`
	Repo        Repo               `json:"repo"`
	State       string             `json:"state"`                // starting, running, stopping, asleep, waking, failed, archiving, archived, deleting
	Restarting  bool               `json:"restarting,omitempty"` // stopping and waking as the halves of a restart
	Unreachable bool               `json:"unreachable"`
	Runner      RunnerRef          `json:"runner"`
	Version     int                `json:"version"`   // of the Environment, which it boots from next
	BuildKey    string             `json:"build_key"` // of that version: a boot from a version with another one replaces the root filesystem
	Branch      string             `json:"branch,omitempty"`
	WorkBranch  string             `json:"work_branch"`
	DiskSize    int64              `json:"disk_size"`
	Detail      wire.SessionDetail `json:"detail"`
	Unsaved     string             `json:"unsaved"` // what exists in its Workspace only, in a sentence
	Loses       string             `json:"loses"`   // what archiving gives up, and what it keeps, in sentences
	CreatedAt   time.Time          `json:"created_at"`
	CreatedBy   string             `json:"created_by"`
	ChangedAt   time.Time          `json:"changed_at"`
}

// GrowSession gives a sleeping Session a larger disk.
type GrowSession struct {
	DiskSize int64 `json:"disk_size"` // bytes
}

// RestoreSession brings an archived Session back.
type RestoreSession struct {
	Wake bool `json:"wake,omitempty"` // at once; else it is asleep
}

// Delete gives up a Session with its Workspace; Confirm is its id.
type Delete struct {
	Confirm string `json:"confirm"`
}

// Opened is a channel that was opened.
type Opened struct {
	Channel string `json:"channel"`
}

// Piece is some bytes of a channel's stream at their offset. Streams: 0 input, 1 stdout (or the terminal), 2 stderr.
type Piece struct {
	Stream int32  `json:"stream"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// Size is a terminal's window.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Control is a signal or a window size. Seq rises by one with each; one that was taken already changes nothing.
type Control struct {
	Seq    int64 `json:"seq"`
	Signal int   `json:"signal,omitempty"` // by number; 0: none
	Size   *Size `json:"size,omitempty"`
}

// Exchange is the person's side of a channel: what it sends, and how much it has of what it receives. It can be
// repeated: bytes the Hub has already are skipped, and bytes not yet acknowledged come again.
type Exchange struct {
	In       []Piece   `json:"in,omitempty"`
	InClosed bool      `json:"in_closed,omitempty"` // no input follows the last piece
	Controls []Control `json:"controls,omitempty"`
	Out1     int64     `json:"out1"` // received of stdout
	Out2     int64     `json:"out2"` // received of stderr
	WaitMS   int64     `json:"wait_ms,omitempty"`
}

// Exchanged is the answer: new output, how much input was taken, and how it ended once all output was received.
type Exchanged struct {
	Out      []Piece           `json:"out,omitempty"`
	InOffset int64             `json:"in_offset"` // input the Hub's side holds or has passed on
	Picked   bool              `json:"picked"`    // the Runner has begun to serve it
	Exit     *wire.ChannelExit `json:"exit,omitempty"`
}

// OpenTerminal asks for a terminal of a Session.
type OpenTerminal struct {
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	Term string `json:"term,omitempty"`
	User string `json:"user,omitempty"` // empty: the image's
}

// Terminal is one of a Session's.
type Terminal struct {
	ID       string            `json:"id"`
	OpenedBy string            `json:"opened_by"`
	OpenedAt time.Time         `json:"opened_at"`
	EndedAt  *time.Time        `json:"ended_at,omitempty"`
	Exit     *wire.ChannelExit `json:"exit,omitempty"`
}

// StartRun starts a headless run: a command in a Session that runs without anybody connected. A Session that sleeps is woken.
type StartRun struct {
	Argv        []string `json:"argv"`
	Dir         string   `json:"dir,omitempty"`           // empty: the Workspace
	User        string   `json:"user,omitempty"`          // empty: the image's
	TimeLimitMS int64    `json:"time_limit_ms,omitempty"` // from the start of its process; 0: none
}

// Run is a headless run. What it prints is a log of its own.
type Run struct {
	ID        string            `json:"id"`
	State     string            `json:"state"`   // waiting (for the Session to be up), running, ended
	Command   string            `json:"command"` // for people, Sensitive values masked
	CreatedAt time.Time         `json:"created_at"`
	CreatedBy string            `json:"created_by"`
	Stopping  bool              `json:"stopping,omitempty"` // somebody asked for its end
	StartedAt *time.Time        `json:"started_at,omitempty"`
	EndedAt   *time.Time        `json:"ended_at,omitempty"`
	Exit      *wire.ChannelExit `json:"exit,omitempty"` // of an ended one
}

// Look is one exchange with a terminal: input of this viewer, and what it wants of the output.
type Look struct {
	Viewer   string `json:"viewer"` // made up by the viewer, the same for all its calls
	In       []byte `json:"in,omitempty"`
	InOffset int64  `json:"in_offset,omitempty"` // of In, in this viewer's own input
	Size     *Size  `json:"size,omitempty"`
	From     int64  `json:"from"`  // below 0: the oldest output there is
	Taken    int64  `json:"taken"` // of the output that was shown
	WaitMS   int64  `json:"wait_ms,omitempty"`
}

// Looked is the answer.
type Looked struct {
	Offset   int64             `json:"offset"` // of Data; later than From where something is missing
	Data     []byte            `json:"data,omitempty"`
	InOffset int64             `json:"in_offset"` // how much of this viewer's input was taken; less than before: the Hub was restarted
	Picked   bool              `json:"picked"`
	Exit     *wire.ChannelExit `json:"exit,omitempty"`
}

// Problem is one thing wrong with an input, where it is known with its place in the document.
type Problem struct {
	Field   string `json:"field,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

// Error is every error's body: problem+json (RFC 9457) with a stable code. Status by code: not-found 404, invalid 422 (400
// for a body that is no JSON), conflict and refused 409 (the code tells them apart: read again, or do first what the
// detail says), unauthorized 401, forbidden 403 (the token lacks a scope), unavailable 503, internal 500.
type Error struct {
	Type     string            `json:"type"`
	Title    string            `json:"title"`
	Status   int               `json:"status"`
	Detail   string            `json:"detail"`
	Code     fault.Code        `json:"code"`
	Fields   map[string]string `json:"fields,omitempty"`
	Problems []Problem         `json:"problems,omitempty"`
	Conflict *Conflict         `json:"conflict,omitempty"` // of code conflict, when it is about a draft
	// InstallURL is where the GitHub App is installed, when a Repo can't be entered.
	InstallURL string `json:"install_url,omitempty"`
	RequestID  string `json:"request_id"`
}

// Headers of a log's answer, whose body is the raw bytes. At the end of what there is, ?from= of Next waits for more.
const (
	LogNext    = "X-Log-Next"    // the offset after the body's last byte
	LogEnded   = "X-Log-Ended"   // "true": nothing follows Next
	LogDropped = "X-Log-Dropped" // bytes missing before this part: the log is kept up to a limit, head and tail
	LogSize    = "X-Log-Size"    // the offset after the newest byte
)
