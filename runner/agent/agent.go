// Package agent is PID 1 inside every Sandbox, and the Client the Runner speaks to it with.
//
// The agent is the Runner's own static binary, run as `<binary> agent`. It gets a listening unix socket as descriptor 3
// from the engine, so nothing of it is a path inside the Sandbox and it outlives the Runner; it answers only peers
// from outside its pid namespace. It starts processes, keeps their output in memory until the Runner has acknowledged
// it, and reaps everything (design.md §6; what was measured and what broke: facts/sandbox.md §2.1, 2.3, 2.9).
//
// Whatever an agent says is said by the Sandbox's root. The Client bounds every frame, takes no descriptor and no host
// path, and waits no longer than its context allows; the values it returns are still not to be trusted.
package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Cmd is a process to start. Exactly one of Argv and Script is set.
type Cmd struct {
	// ID is chosen by the caller, at most 128 bytes, so that Start can be repeated after a lost answer.
	ID string
	// Argv[0] without a slash is looked up in Env's PATH (or the usual one), with the user's own permissions.
	Argv []string
	// Script is a file to run instead of Argv.
	Script *Script
	// Env is the whole environment as KEY=value; of doubles the last counts. HOME, USER, LOGNAME and SHELL are added
	// from /etc/passwd and TERM by TTY where Env lacks them. It is held in memory and given to the process, nothing else.
	Env []string
	// Dir is where the process starts, "/" if empty. Where it is missing or the user may not enter it the process
	// starts in "/" and Started says so: an image's WORKDIR is never fatal (facts/recipes.md B16).
	Dir string
	// NeedDir refuses to start anywhere else (ErrDir): what a person named must not be run in another folder.
	NeedDir bool
	// User is "" (root), "name", "uid", "name:group" or "uid:gid", as an image's USER. A uid needs no entry in
	// /etc/passwd. Without a group, supplementary groups come from /etc/group.
	User string
	// TTY gives the process a terminal of that size as its controlling one; its output is all in Out.
	TTY *Size
	// Stdin keeps standard input open for Input; otherwise it is /dev/null. A TTY always takes Input.
	Stdin bool
	// Split keeps standard error apart, as stream Err; otherwise both go to Out in the order they were written.
	Split bool
	// Keep is how many bytes of each stream wait in memory for a reader that is away; 0 means DefaultKeep. At most MaxKeep.
	Keep int64
	// Full says what happens when that is full.
	Full Full

	unwatched bool // its calls are not looked at for dependency folders: it is the agent's own, and has containers of its own
}

// The bounds of Cmd.Keep, in bytes.
const (
	DefaultKeep = 1 << 20
	MaxKeep     = 8 << 20
)

// Script is a file that the agent writes (mode 0755, owned by root) to a folder in memory below /run/claude-hub/scripts
// and runs by its own shebang, else with bash, else with sh. Nothing is added: no -e, no pipefail (design.md §4).
// The file is removed when its process has ended. At most 1 MiB.
type Script struct {
	Name string // the file's name, which shells print in their messages
	Body []byte
}

// Full is what a process does whose unread output fills Keep.
type Full int

const (
	Block      Full = iota // it waits, as on any full pipe: scripts, where no byte may be lost
	DropOldest             // the oldest bytes are dropped and counted: terminals
)

// Size is a terminal's size in characters.
type Size struct{ Rows, Cols uint16 }

// Stream names one of a command's outputs, each with its own offsets.
type Stream int

const (
	Out Stream = 0 // standard output, and standard error unless Cmd.Split
	Err Stream = 1 // standard error of a Cmd with Split
)

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code; of a process killed by a signal 128 + the signal's number, as in a shell.
	Code int
	// Signal is the name of the signal that killed it ("SIGKILL"), or empty.
	Signal string `json:",omitempty"`
	// OOM says that the kernel killed something in the Sandbox for want of memory while this process ran, and that it
	// failed. Only known where the cgroup's counters can be read.
	OOM bool `json:",omitempty"`
}

// Started is the answer to Start.
type Started struct {
	// Existed: a command with that ID was there already, running or ended, and nothing was started.
	Existed bool
	// DirFallback: Cmd.Dir could not be entered; the process started in "/".
	DirFallback bool
	// PID as the Sandbox sees it.
	PID int
}

// Status is one command as List tells it.
type Status struct {
	ID      string
	Running bool
	Started time.Time
	Exit    *Exit `json:",omitempty"` // once it has ended
	Input   int64 // offset the next Input byte has
	Out     Span  // what there is of stream Out
	Err     *Span `json:",omitempty"` // and of Err, with Split
}

// Span is what the agent holds of a stream: offsets From (inclusive) to To (exclusive).
type Span struct {
	From, To int64
	Dropped  int64 // bytes no reader acknowledged before DropOldest dropped them
	Complete bool  // nothing will follow
}

// Process is something alive in the Sandbox.
type Process struct {
	PID     int
	Argv    []string // as the process shows itself, shortened; never empty
	User    string   // name from /etc/passwd, else the uid
	Command string   // ID of the command it belongs to by its session, or empty
}

// Hello is what an agent says of itself.
type Hello struct {
	Version int
	// BootID is random for each start of the agent: with a new one, all commands of before are gone.
	BootID string
	// Problems are sentences about what failed at boot, such as /etc/hosts that could not be written.
	Problems []string
}

// Git is what git in the Sandbox is told of the person whose it is. It stands below all that the image, the Repo and the
// person say themselves.
type Git struct {
	// Remotes are URLs, http or https without a user: for these git asks the Runner for credentials (Asked), before it
	// asks the terminal.
	Remotes []string
	// Name and Email are the author of commits; both or none.
	Name, Email string
}

// Question is what git in the Sandbox asks. Anything in the Sandbox can ask, and say anything.
type Question struct {
	ID             int64
	Protocol, Host string
	// Rejected is set when nothing is asked: git says that the password with this Sum was not accepted, and waits for no
	// more than an empty Reply.
	Rejected string `json:",omitempty"`
}

// Sum is how a Question names a password: it may be one of the person's own, which is nobody else's business.
func Sum(password string) string {
	h := sha256.Sum256([]byte(password))
	return hex.EncodeToString(h[:])
}

// Reply is what git gets. Without a Password git goes on to ask the person's own helpers and the terminal.
type Reply struct {
	Username, Password string
	Expires            time.Time // of the Password
	// Says is a line for whoever runs git.
	Says string
	// ReadOnly is set when the Password can't push: a line that says why, for who pushes. They get the line and no Password,
	// so that git asks for credentials of their own, as it would not after a refusal by the other side.
	ReadOnly string
}
