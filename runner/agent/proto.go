package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
)

// Protocol is the version of what Client and agent say to each other. A Runner talks to agents of its own and the
// previous version, since Sandboxes outlive updates of the Runner (design.md §6).
//
// Version 2 has git, asked and answer: in a Sandbox whose agent is older, git asks nobody but the person.
const Protocol = 2

// since is the version that first had a request. Each is sent under its own, so that older agents take those they know.
func since(op string) int {
	switch op {
	case "git", "asked", "answer":
		return 2
	}
	return 1
}

// One call is one connection: a header frame, a payload frame if the header says so, then one answer, or for Output
// a series of frames. A frame is four bytes of length (big endian, of the content), one byte of kind, the content.
const (
	kindHeader  = 'Q' // a request as JSON
	kindPayload = 'P' // what belongs to the request: a command as JSON, or input
	kindAnswer  = 'A' // an answer as JSON
	kindData    = 'D' // output
	kindGap     = 'G' // eight bytes: the offset of the next byte, where bytes were dropped
	kindEnd     = 'Z' // the output is complete
)

// Bounds in bytes. Each side refuses more before it allocates anything: the agent because the Runner may have a bug,
// the Client because an agent is as hostile as its Sandbox's root.
const (
	maxHeader  = 64 << 10
	maxPayload = 4 << 20
	maxAnswer  = 2 << 20
	maxData    = 64 << 10
	maxInput   = 64 << 10
	maxID      = 128
	maxList    = 4096
	maxScript  = 1 << 20
)

// Bounds of what an agent says in words: it ends in reports and logs. An honest agent stays below them.
const (
	maxArgs     = 8
	maxArg      = 256
	maxSignal   = 32
	maxProblems = 16
	maxProblem  = 1024
)

type header struct {
	Version int
	Op      string
	ID      string `json:",omitempty"`
	Stream  Stream `json:",omitempty"`
	At      int64  `json:",omitempty"`
	Signal  int    `json:",omitempty"`
	Tree    bool   `json:",omitempty"`
	Size    *Size  `json:",omitempty"`
	GraceMS int64  `json:",omitempty"`
	Payload int    `json:",omitempty"`
}

type answer struct {
	Error *Error          `json:",omitempty"`
	Body  json.RawMessage `json:",omitempty"`
}

// wireCmd is a Cmd whose free texts are bytes, because JSON would replace what isn't UTF-8 and values must arrive
// exactly as they are (facts/recipes.md B9).
type wireCmd struct {
	ID         string
	Argv, Env  [][]byte
	ScriptName string
	Script     []byte
	HasScript  bool
	Dir        []byte
	NeedDir    bool `json:",omitempty"`
	User       string
	TTY        *Size
	Stdin      bool
	Split      bool
	Keep       int64
	Full       Full
}

func toWire(c Cmd) wireCmd {
	w := wireCmd{ID: c.ID, Argv: bytesOf(c.Argv), Env: bytesOf(c.Env), Dir: []byte(c.Dir), NeedDir: c.NeedDir, User: c.User, TTY: c.TTY,
		Stdin: c.Stdin, Split: c.Split, Keep: c.Keep, Full: c.Full}
	if c.Script != nil {
		w.HasScript, w.ScriptName, w.Script = true, c.Script.Name, c.Script.Body
	}
	return w
}

func (w wireCmd) cmd() Cmd {
	c := Cmd{ID: w.ID, Argv: stringsOf(w.Argv), Env: stringsOf(w.Env), Dir: string(w.Dir), NeedDir: w.NeedDir, User: w.User, TTY: w.TTY,
		Stdin: w.Stdin, Split: w.Split, Keep: w.Keep, Full: w.Full}
	if w.HasScript {
		c.Script = &Script{Name: w.ScriptName, Body: w.Script}
	}
	return c
}

func bytesOf(s []string) [][]byte {
	b := make([][]byte, len(s))
	for i := range s {
		b[i] = []byte(s[i])
	}
	return b
}

func stringsOf(b [][]byte) []string {
	s := make([]string, len(b))
	for i := range b {
		s[i] = string(b[i])
	}
	return s
}

func writeFrame(w io.Writer, kind byte, content []byte) error {
	b := make([]byte, 0, 5+len(content))
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	b = append(b, kind)
	_, err := w.Write(append(b, content...))
	return err
}

func writeJSON(w io.Writer, kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, b)
}

// readFrame reads a frame of at most limit bytes. buf is used for the content if it is large enough.
func readFrame(r io.Reader, limit int, buf []byte) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if uint64(n) > uint64(limit) {
		return 0, nil, fmt.Errorf("a frame of %d bytes is larger than the %d allowed here", n, limit)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return head[4], buf, nil
}

// Code says what kind of Error it is.
type Code string

const (
	CodeUnknown     Code = "unknown_command" // no command has this ID
	CodeEnded       Code = "ended"           // the command has ended already
	CodeRunning     Code = "running"         // the command is still running
	CodeGone        Code = "gone"            // that part of the output was acknowledged or dropped
	CodeOffset      Code = "offset"          // an offset beyond what there is
	CodeBad         Code = "bad_request"     // the request makes no sense
	CodeNotFound    Code = "not_found"       // the program isn't in the image (a shell would say 127)
	CodeDenied      Code = "not_executable"  // the program is there but can't be run (a shell would say 126)
	CodeNoShell     Code = "no_shell"        // a script without shebang, and neither bash nor sh
	CodeInterpreter Code = "interpreter"     // the script's interpreter isn't in the image, or its line endings are CRLF
	CodeDir         Code = "dir"             // the needed folder isn't in the Sandbox, or the user may not enter it
	CodeUser        Code = "no_user"         // the user or group isn't in the image, or its id can't be used here
	CodeLimit       Code = "limit"           // the Sandbox has no process or memory left for it, or it is too large
	CodeStopping    Code = "stopping"        // the agent is stopping all processes
	CodeDocker      Code = "docker"          // dockerd doesn't run; the message says why
	CodeVersion     Code = "version"         // the agent is too old for this request
	CodeInternal    Code = "internal"        // something in the Sandbox is broken; the message says what
)

// Error is an answer of an agent that isn't a success: a sentence for the user and a code for the program. Both come
// from inside the Sandbox. It matches another *Error by errors.Is when the codes are equal.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// Is matches by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// For errors.Is.
var (
	ErrUnknown     = &Error{CodeUnknown, "the agent knows no such command"}
	ErrEnded       = &Error{CodeEnded, "the command has ended"}
	ErrRunning     = &Error{CodeRunning, "the command is still running"}
	ErrGone        = &Error{CodeGone, "that part of the output is gone"}
	ErrNotFound    = &Error{CodeNotFound, "the program was not found"}
	ErrDenied      = &Error{CodeDenied, "the program can't be run"}
	ErrNoShell     = &Error{CodeNoShell, "image has no bash or sh"}
	ErrInterpreter = &Error{CodeInterpreter, "the script's interpreter was not found"}
	ErrDir         = &Error{CodeDir, "no such folder"}
	ErrUser        = &Error{CodeUser, "no such user"}
	ErrLimit       = &Error{CodeLimit, "a limit of the Sandbox is reached"}
	ErrStopping    = &Error{CodeStopping, "the Sandbox is stopping"}
	ErrVersion     = &Error{CodeVersion, "the Sandbox's agent is too old for this"}
)

func fail(c Code, format string, a ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, a...)}
}

func unknown(id string) *Error {
	return fail(CodeUnknown, "the agent knows no command %q", clip(id, maxID))
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// signalName is "SIGKILL" for 9. The table is short because only these are sent or seen in practice.
func signalName(s syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL",
		syscall.SIGTRAP: "SIGTRAP", syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
		syscall.SIGKILL: "SIGKILL", syscall.SIGUSR1: "SIGUSR1", syscall.SIGSEGV: "SIGSEGV", syscall.SIGUSR2: "SIGUSR2",
		syscall.SIGPIPE: "SIGPIPE", syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM", syscall.SIGXCPU: "SIGXCPU",
		syscall.SIGXFSZ: "SIGXFSZ", syscall.SIGVTALRM: "SIGVTALRM", syscall.SIGPROF: "SIGPROF", syscall.SIGSYS: "SIGSYS",
		syscall.SIGIO: "SIGIO", syscall.SIGPWR: "SIGPWR", syscall.SIGSTKFLT: "SIGSTKFLT",
	}
	if n, ok := names[s]; ok {
		return n
	}
	return fmt.Sprintf("signal %d", int(s))
}
