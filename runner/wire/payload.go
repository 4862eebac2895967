package wire

import "encoding/json"

// Kinds of assignments. The fleet knows them only as words; their Owners are app/environment and app/session.
const (
	KindTestBuild = "test-build"
	KindSession   = "session"
	KindRun       = "run" // a command in a Session that runs without anybody connected
)

// What the Hub wants of an assignment.
const (
	WantRun    = "run"    // a Test build or a headless run: run it; a Session: awake
	WantStop   = "stop"   // a Test build: cancel it; a Session: asleep; a headless run: end its process
	WantRemove = "remove" // give up everything that belongs to it, a Session's Workspace included
)

// States a Runner reports of a Test build.
const (
	StateRunning   = "running" // also a Session that is awake
	StatePassed    = "passed"
	StateFailed    = "failed" // also a Session whose start failed
	StateCancelled = "cancelled"
)

// States a Runner reports of a Session, beside running and failed.
const (
	StateStarting = "starting"
	StateStopping = "stopping"
	StateAsleep   = "asleep"
	// StateBusy answers a request to sleep that was refused because something became active meanwhile.
	StateBusy = "busy"
	// StateRemoved ends an assignment: nothing of it is left on the Runner. Of a Test build its snapshot stays.
	StateRemoved = "removed"
	// StateArchived is asleep with all given up that Session.Archive names.
	StateArchived = "archived"
)

// CanArchive is the capability of a Runner that knows Session.Archive.
const CanArchive = "archive"

// CanRun is the capability of a Runner that knows KindRun.
const CanRun = "runs"

// What an archived Session gives up beside its processes.
const (
	ArchiveSandbox = "sandbox" // its root filesystem
	ArchiveDisks   = "disks"   // also dependency folders, package caches and Docker's data: all of its disk but the Workspace
)

// StateEnded is what a Runner reports of a headless run, beside running: its process has ended, or never will begin.
const StateEnded = "ended"

// Phases of a Test build and of a Session's start, in their order.
const (
	PhaseImage     = "image"     // resolve, pull, unpack
	PhaseDocker    = "docker"    // where the Environment's toggle is on: Docker is installed and started
	PhaseBootstrap = "bootstrap" // the bootstrap script, without the Workspace
	PhaseSnapshot  = "snapshot"
	PhaseClone     = "clone"
	PhaseBoot      = "boot"
	PhaseStart     = "start" // the start script, with the Workspace
)

// States of a phase.
const (
	PhaseRunning   = "running"
	PhaseDone      = "done"
	PhaseFailed    = "failed"
	PhaseCancelled = "cancelled"
	PhaseSkipped   = "skipped"
)

// Recipe is what a build is made from.
type Recipe struct {
	Environment string          `json:"environment"`            // its id: builds are kept and pruned for each Environment
	Spec        json.RawMessage `json:"spec"`                   // envspec.Spec
	ImageDigest string          `json:"image_digest,omitempty"` // pinned by a version; empty in a Test build, which resolves it
}

// Repo is where a Workspace is cloned from.
type Repo struct {
	Name     string `json:"name"` // owner/name, for people
	CloneURL string `json:"clone_url"`
	// HostCredentials has the Runner ask its host's own git credential helper: a Hub in dev mode, with no GitHub App.
	HostCredentials bool `json:"host_credentials,omitempty"`
	// Token has the Runner ask CloneToken just before it clones.
	Token bool `json:"token,omitempty"`
}

// TestBuild is the payload of one Test build.
type TestBuild struct {
	ID     string `json:"id"`
	Recipe Recipe `json:"recipe"`
	Repo   Repo   `json:"repo"`
	// Proposal is where the Recipe was read, when a pull request proposes it. What is cloned is the default branch.
	Proposal *Proposal `json:"proposal,omitempty"`
}

// Proposal is the head of a pull request, for the log.
type Proposal struct {
	PullRequest int    `json:"pull_request"`
	Commit      string `json:"commit"`
	Branch      string `json:"branch,omitempty"`   // the commit that the default branch was at when the Test build was asked for
	Withheld    bool   `json:"withheld,omitempty"` // from a fork, and so without Sensitive values and Links
}

// Session is the payload of a Session, for one generation.
type Session struct {
	ID         string `json:"id"`
	Recipe     Recipe `json:"recipe"`
	Version    int    `json:"version"` // the Environment's version
	BuildKey   string `json:"build_key"`
	Repo       Repo   `json:"repo"`
	Branch     string `json:"branch,omitempty"` // cloned from; empty: the default branch
	WorkBranch string `json:"work_branch"`
	DiskSize   int64  `json:"disk_size"`         // bytes
	IdleMS     int64  `json:"idle_ms"`           // a request to sleep is refused (StateBusy) when idle for less; 0: sleep by hand
	Archive    string `json:"archive,omitempty"` // with a wish to stop: ArchiveSandbox, ArchiveDisks
	Person     Person `json:"person"`
}

// Person is who a Session belongs to, as git names the author of its commits.
type Person struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// What a token may do with a Repo's contents.
const (
	ContentsRead  = "read"
	ContentsWrite = "write"
)

// Phase is one step with its outcome.
type Phase struct {
	Name     string `json:"name"`
	State    string `json:"state"`   // PhaseRunning …
	Started  int64  `json:"started"` // Unix ms on the Runner's clock
	Ended    int64  `json:"ended,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"` // of the script
	Note     string `json:"note,omitempty"`      // "already on this Runner", "2 background processes stopped: redis-server, sleep"
}

// Progress of a long phase, as one line and, where it is known, as numbers.
type Progress struct {
	Text  string `json:"text"` // "412 of 1,240 MB · 7/11 layers · 38 MB/s"
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
}

// Failure says why something ended badly, in words for a person.
type Failure struct {
	Phase     string `json:"phase"`
	Code      string `json:"code"` // stable, for programs: exit, timeout, signal, oom, image-not-found, clone-refused …
	Message   string `json:"message"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Signal    string `json:"signal,omitempty"`
	LastLines string `json:"last_lines,omitempty"` // of the phase's output, redacted
}

// TestBuildDetail is what a Runner reports of a Test build beside its state. Every text went through the redactor.
type TestBuildDetail struct {
	Phases      []Phase   `json:"phases"`
	Progress    *Progress `json:"progress,omitempty"`
	Notes       []string  `json:"notes,omitempty"` // "asked 8 CPUs, runner r1 gives 4"
	ImageDigest string    `json:"image_digest,omitempty"`
	BuildKey    string    `json:"build_key,omitempty"`
	Commit      string    `json:"commit,omitempty"` // of the default branch the start script ran on
	Failure     *Failure  `json:"failure,omitempty"`
}

// SessionDetail is what a Runner reports of a Session beside its state. Every text went through the redactor.
type SessionDetail struct {
	Phases   []Phase   `json:"phases"` // of the newest start or wake
	Progress *Progress `json:"progress,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Failure  *Failure  `json:"failure,omitempty"`
	// StartFailed: the Sandbox is up, but its start script failed; the Session is usable for repair.
	StartFailed *Failure `json:"start_failed,omitempty"`
	Version     int      `json:"version,omitempty"` // of the build its root filesystem stands on
	Workspace   bool     `json:"workspace"`         // the Workspace is there, whole
	Unsaved     *Unsaved `json:"unsaved,omitempty"` // nil: unknown
	Stages      []Stage  `json:"stages,omitempty"`  // of the newest start or wake that came so far
}

// Unsaved is what exists in the Workspace only, counted by git in the Sandbox.
type Unsaved struct {
	Files   int   `json:"files"`   // uncommitted
	Commits int   `json:"commits"` // on no remote branch
	At      int64 `json:"at"`      // Unix ms
	// Unknown is why git could not count at that time; Files and Commits say nothing then.
	Unknown string `json:"unknown,omitempty"`
}

// ChannelSpec is what a person asked to run in a Session.
type ChannelSpec struct {
	Argv  []string `json:"argv"` // empty: a login shell
	TTY   bool     `json:"tty,omitempty"`
	Rows  uint16   `json:"rows,omitempty"`
	Cols  uint16   `json:"cols,omitempty"`
	Term  string   `json:"term,omitempty"`
	User  string   `json:"user,omitempty"` // empty: the image's USER
	Dir   string   `json:"dir,omitempty"`  // empty: /workspace
	Stdin bool     `json:"stdin,omitempty"`
	// Keep makes a TTY a terminal of the Session: it lives until its process ends or somebody closes it, whoever looks, and its
	// output has the offsets of the process's own, so that Hub and Runner can take it up again after a restart.
	Keep bool `json:"keep,omitempty"`
	// Again comes with a terminal that its Runner has begun with before: it is taken up, and never started a second time.
	Again bool `json:"again,omitempty"`
	// Port, in place of Argv, connects to a TCP port of the Sandbox's own loopback: what comes from it is the output.
	Port uint16 `json:"port,omitempty"`
}

// Run is the payload of a headless run: the process of a command in a Session that is on the same Runner.
type Run struct {
	Session string   `json:"session"` // the Session's assignment
	Argv    []string `json:"argv"`
	Dir     string   `json:"dir,omitempty"`      // empty: /workspace
	User    string   `json:"user,omitempty"`     // empty: the image's USER
	LimitMS int64    `json:"limit_ms,omitempty"` // from its start until its process is ended; 0: none
}

// RunDetail is what a Runner reports of a headless run beside its state.
type RunDetail struct {
	Started int64        `json:"started,omitempty"` // Unix ms on the Runner's clock; 0: it never began
	Exit    *ChannelExit `json:"exit,omitempty"`    // with StateEnded
}

// ChannelExit is how it ended.
type ChannelExit struct {
	Code   int    `json:"code"` // of the process; 128 + signal when a signal ended it
	Signal string `json:"signal,omitempty"`
	OOM    bool   `json:"oom,omitempty"`
	// Masked: something of a Sensitive value, or shaped like a secret, stood in the output and was masked: it is not byte for byte
	// what the process wrote.
	Masked bool `json:"masked,omitempty"`
	// Failed is set when claude-hub itself could not run it: why.
	Failed string `json:"failed,omitempty"`
}
