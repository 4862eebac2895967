package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/agent/stage"
)

// startLimit is how long a process may take from fork to exec; only a Dir on a file system that hangs takes so long.
const startLimit = 30 * time.Second

// maxString is the longest argument or NAME=value Linux passes on, in bytes (MAX_ARG_STRLEN, with its NUL).
const maxString = 128<<10 - 1

// command is a process the agent started, and what is left of it.
type command struct {
	id      string
	begun   time.Time
	number  int64
	ready   chan struct{} // closed when Start has succeeded or failed
	pid     int
	answer  Started
	out     *output
	err     *output // nil unless Split
	in      *input  // nil without Stdin and TTY
	tty     *os.File
	ended   chan struct{} // closed after exit is set
	exit    Exit
	scripts string // the script's folder

	mu       sync.Mutex
	marked   map[int]uint64 // pid to start time of what an earlier Signal(tree) reached
	leftover bool           // something of the session was alive when the process ended
}

func (c *command) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

func (c *command) status() Status {
	s := Status{ID: c.id, Running: c.running(), Started: c.begun, Out: c.out.span()}
	if !s.Running {
		exit := c.exit
		s.Exit = &exit
	}
	if c.err != nil {
		span := c.err.span()
		s.Err = &span
	}
	if c.in != nil {
		s.Input = c.in.offset()
	}
	return s
}

// unread tells whether output waits for a reader, or may still come.
func (c *command) unread() bool {
	for _, o := range []*output{c.out, c.err} {
		if o == nil {
			continue
		}
		if s := o.span(); !s.Complete || s.From < s.To {
			return true
		}
	}
	return false
}

func (c *command) stream(s Stream) (*output, error) {
	switch {
	case s == Out:
		return c.out, nil
	case s == Err && c.err != nil:
		return c.err, nil
	}
	return nil, fail(CodeBad, "command %q has no stream %d", clip(c.id, maxID), s)
}

func validate(cmd Cmd) error {
	if cmd.ID == "" || len(cmd.ID) > maxID {
		return fail(CodeBad, "a command's ID has 1 to %d bytes", maxID)
	}
	if (cmd.Script == nil) == (len(cmd.Argv) == 0) {
		return fail(CodeBad, "a command has either arguments or a script")
	}
	if cmd.Keep < 0 || cmd.Keep > MaxKeep || cmd.Full < Block || cmd.Full > DropOldest {
		return fail(CodeBad, "a command keeps at most %d bytes, and blocks or drops the oldest", MaxKeep)
	}
	if cmd.TTY != nil && cmd.Split {
		return fail(CodeBad, "a terminal has one output; standard error can't be apart")
	}
	if len(cmd.Argv) > 0 && cmd.Argv[0] == "" {
		return fail(CodeNotFound, "the command's first argument, the program, is empty")
	}
	for _, a := range cmd.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return fail(CodeBad, "an argument contains a NUL byte")
		}
		if len(a) > maxString {
			return fail(CodeLimit, "an argument has %d bytes; Linux passes on at most %d", len(a), maxString)
		}
	}
	for _, e := range cmd.Env {
		key, _, ok := strings.Cut(e, "=")
		if !ok || key == "" {
			return fail(CodeBad, "the environment has an entry without a name")
		}
		if strings.IndexByte(e, 0) >= 0 {
			return fail(CodeBad, "the value of %s contains a NUL byte, which no environment can hold", clip(key, 128))
		}
		if len(e) > maxString {
			return fail(CodeLimit, "the value of %s has %d bytes; Linux passes on at most %d with its name",
				clip(key, 128), len(e)-len(key)-1, maxString)
		}
	}
	if strings.IndexByte(cmd.Dir, 0) >= 0 {
		return fail(CodeBad, "the folder's name contains a NUL byte")
	}
	return nil
}

// launch starts c's process. On an error nothing of it is left.
func (a *agent) launch(c *command, cmd Cmd) error {
	who, err := lookupUser(cmd.User)
	if err != nil {
		return err
	}
	env := environment(cmd.Env, who, cmd.TTY != nil)
	path, ok := value(env, "PATH")
	if !ok {
		path = stage.DefaultPath
	}
	rq := stage.Request{Env: bytesOf(env), Path: []byte(path), Dir: cmd.Dir, NeedDir: cmd.NeedDir, UID: who.uid, GID: who.gid,
		Groups: who.groups, Cgroups: cgroupFiles, Withheld: a.withheld}
	if cmd.Script != nil {
		interp, err := interpreter(cmd.Script.Body)
		if err != nil {
			return err
		}
		file, dir, err := writeScript(cmd.Script, c.number)
		if err != nil {
			return err
		}
		c.scripts = dir
		scriptRequest(&rq, interp, file, path)
	} else {
		argv := program(cmd.Argv)
		rq.Names, rq.Argv = bytesOf(argv[:1]), bytesOf(argv)
	}
	oomBefore := oomKills()
	ends, err := c.wire(cmd, who)
	if err != nil {
		c.removeScript()
		return err
	}
	pid, status, fallback, err := a.spawn(rq, ends, cmd, who)
	ends.closeChild()
	if err != nil {
		ends.closeOurs()
		c.removeScript()
		return err
	}
	c.pid, c.answer = pid, Started{PID: pid, DirFallback: fallback}
	go c.out.pump(ends.out, cmd.TTY != nil, c.ended)
	if c.err != nil {
		go c.err.pump(ends.err, false, c.ended)
	}
	if c.in != nil {
		go c.in.pump(ends.in, c.ended)
	}
	go func() {
		c.exit = exitOf(<-status)
		c.exit.OOM = c.exit.Code != 0 && oomKills() > oomBefore
		c.mu.Lock()
		c.leftover = len(sessionOf(c.pid)) > 0
		c.mu.Unlock()
		c.removeScript()
		close(c.ended)
		a.retire()
	}()
	return nil
}

func (c *command) removeScript() {
	if c.scripts != "" {
		os.RemoveAll(c.scripts)
	}
}

func exitOf(ws syscall.WaitStatus) Exit {
	if ws.Signaled() {
		return Exit{Code: 128 + int(ws.Signal()), Signal: signalName(ws.Signal())}
	}
	return Exit{Code: ws.ExitStatus()}
}

// ends are both ends of what connects a process.
type ends struct {
	in, out, err *os.File    // ours
	child        [3]*os.File // the process's 0, 1, 2
}

func (e *ends) closeChild() {
	for _, f := range e.child {
		if f != nil {
			f.Close() // the same file may be there twice; closing it again is harmless
		}
	}
}

func (e *ends) closeOurs() {
	for _, f := range []*os.File{e.in, e.out, e.err} {
		if f != nil {
			f.Close()
		}
	}
}

// wire makes the pipes or the terminal of c, and the buffers beside them.
func (c *command) wire(cmd Cmd, who account) (_ *ends, err error) {
	e := &ends{}
	defer func() {
		if err != nil {
			e.closeChild()
			e.closeOurs()
			err = fail(CodeLimit, "the Sandbox can't make another pipe or terminal: %v", err)
		}
	}()
	if cmd.TTY != nil {
		ours, theirs, err := openTTY(*cmd.TTY)
		if err != nil {
			return e, err
		}
		e.in, e.out, e.child = ours, ours, [3]*os.File{theirs, theirs, theirs}
		// Programs open the terminal by its name too (gpg, screen), as the user they run as.
		if err := theirs.Chown(who.uid, -1); err != nil && who.uid != 0 {
			return e, err
		}
		c.tty = ours
		c.in = newInput(true)
		return e, nil
	}
	if e.out, e.child[1], err = pipe(true); err != nil {
		return e, err
	}
	e.child[2] = e.child[1]
	if cmd.Split {
		if e.err, e.child[2], err = pipe(true); err != nil {
			return e, err
		}
	}
	if !cmd.Stdin {
		e.child[0], err = os.OpenFile(os.DevNull, os.O_RDONLY, 0)
		return e, err
	}
	c.in = newInput(false)
	e.child[0], e.in, err = pipe(false)
	return e, err
}

// pipe makes a pipe of which only our end is non-blocking: the flag belongs to the end, and programs don't expect it.
func pipe(readIsOurs bool) (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	ours := p[1]
	if readIsOurs {
		ours = p[0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe"), nil
}

// spawn forks a stage, hands it rq and waits until it has become the program, or says why it could not.
func (a *agent) spawn(rq stage.Request, e *ends, cmd Cmd, who account) (int, <-chan syscall.WaitStatus, bool, error) {
	body, err := stage.Encode(rq)
	if err != nil {
		return 0, nil, false, fail(CodeLimit, "arguments and environment are too large together")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, false, fail(CodeLimit, "the Sandbox can't make another socket: %v", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "stage")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return 0, nil, false, err
	}
	ours := os.NewFile(uintptr(pair[0]), "stage")
	defer ours.Close()
	ours.SetDeadline(time.Now().Add(startLimit)) //nolint:errcheck // sockets have deadlines
	attr := &syscall.ProcAttr{
		Dir: "/",
		// The stage needs few threads; the Sandbox's limit on them counts each.
		Env: []string{"GOMAXPROCS=1", "GOGC=off"},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: cmd.TTY != nil, Ctty: 0},
	}
	var fds [3]int
	for i, f := range e.child {
		fds[i] = int(f.Fd())
		// The flag is the description's, so the process would inherit it, and programs don't expect EAGAIN.
		if err := unix.SetNonblock(fds[i], false); err != nil {
			return 0, nil, false, err
		}
	}
	attr.Files = []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2]), uintptr(pair[1])}
	pid, status, err := a.reaper.fork("/proc/self/exe", []string{"claude-hub", "agent", stage.Arg}, attr, !cmd.unwatched)
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			return 0, nil, false, fail(CodeLimit, "the Sandbox has no process or memory left to start a command: %v", err)
		}
		return 0, nil, false, fail(CodeInternal, "the Sandbox can't start a process: %v", err)
	}
	theirs.Close()
	ready, rep, err := converse(ours, body)
	if err == nil && rep == nil && ready != nil {
		return pid, status, ready.DirFallback, nil
	}
	a.reaper.kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have exited already
	if err != nil {
		return 0, nil, false, fail(CodeInternal,
			"the command did not start within %s: its folder may be on a file system that hangs", startLimit)
	}
	if rep == nil {
		ws := <-status
		return 0, nil, false, fail(CodeLimit, "the command was killed while it started (%s); the Sandbox may be out of memory",
			orExit(exitOf(ws)))
	}
	return 0, nil, false, refusal(*rep, cmd, who, string(rq.Path))
}

func orExit(e Exit) string {
	if e.Signal != "" {
		return e.Signal
	}
	return "it exited early"
}

// converse sends a stage its request and reads until the end. ready is its last word before exec, rep a failure.
// The only error is that it took too long.
func converse(conn *os.File, body []byte) (ready, rep *stage.Report, err error) {
	if _, err := conn.Write(body); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil, err
	}
	// A stage that stops reading has something to say, or is dead: both are seen below.
	b, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil, err
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		r := &stage.Report{}
		if json.Unmarshal(sc.Bytes(), r) != nil {
			continue
		}
		if r.Step == stage.StepReady {
			ready = r
		} else {
			rep = r
		}
	}
	return ready, rep, nil
}

// refusal turns what a stage reported into a sentence.
func refusal(r stage.Report, cmd Cmd, who account, path string) error {
	subject, errno := visible(string(r.Subject)), syscall.Errno(r.Errno)
	name := who.name
	if name == "" {
		name = "uid " + itoa(who.uid)
	}
	switch r.Step {
	case stage.StepCgroup:
		return fail(CodeInternal, "the command could not be put under the Sandbox's limits: writing %s: %v", subject, errno)
	case stage.StepUser:
		return fail(CodeUser, "the command can't run as %s (uid %d, gid %d): %v; ids in a Sandbox are below 1048576",
			name, who.uid, who.gid, errno)
	case stage.StepDir:
		switch errno {
		case syscall.ENOENT:
			return fail(CodeDir, "there is no folder %s in the Sandbox", subject)
		case syscall.ENOTDIR:
			return fail(CodeDir, "%s is not a folder", subject)
		case syscall.EACCES:
			return fail(CodeDir, "the folder %s can't be entered by %s: permission denied", subject, name)
		}
		return fail(CodeDir, "the folder %s can't be entered: %v", subject, errno)
	case stage.StepBroken:
		return fail(CodeInternal, "the command could not be started: its stage got no request: %v", errno)
	}
	if cmd.Script != nil {
		interp, _ := interpreter(cmd.Script.Body)
		switch {
		case interp == nil && r.Step == stage.StepAbsent:
			return ErrNoShell
		case interp != nil && r.Step == stage.StepAbsent:
			return fail(CodeInterpreter, "the script's interpreter %s was not found", visible(interp[0]))
		}
	}
	switch {
	case r.Step == stage.StepAbsent && strings.Contains(subject, "/"):
		return fail(CodeNotFound, "%s was not found", subject)
	case r.Step == stage.StepAbsent:
		return fail(CodeNotFound, "%s was not found in PATH (%s)", subject, visible(path))
	case r.Step == stage.StepLoader:
		return missingLoader(string(r.Subject))
	case errno == syscall.EACCES:
		return fail(CodeDenied, "%s can't be executed by %s: permission denied", subject, name)
	case errno == syscall.ENOEXEC:
		return fail(CodeDenied, "%s can't be executed: it is neither a program for this machine nor a script with a shebang",
			subject)
	case errno == syscall.E2BIG:
		return fail(CodeLimit, "arguments and environment are larger together than Linux allows")
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		return fail(CodeLimit, "the Sandbox has no memory or process left to run %s: %v", subject, errno)
	}
	return fail(CodeDenied, "%s can't be executed: %v", subject, errno)
}

// missingLoader explains ENOENT for a file that exists.
func missingLoader(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err == nil {
		defer f.Close()
		head := make([]byte, 256)
		n, _ := io.ReadFull(f, head)
		interp, err := interpreter(head[:n])
		if err != nil {
			return err
		}
		if interp != nil {
			return fail(CodeInterpreter, "the interpreter %s of %s was not found", visible(interp[0]), visible(path))
		}
	}
	return fail(CodeDenied, "%s can't be executed: the loader it asks for isn't in the image "+
		"(a program for glibc in a musl image, or the reverse)", visible(path))
}
