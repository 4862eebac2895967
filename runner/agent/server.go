package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxConns = 256
	// These bound the calls that fork, and those that read /proc, at once: each may take a thread and some memory, and
	// the agent has 192 pids and 64 MiB (facts/sandbox.md §2.3). Starts are apart, since a folder that hangs holds one up.
	maxStarts = 6
	maxWork   = 8
	// largeStart is a payload, in bytes, of which only one is worked on at a time: it is in memory several times over.
	largeStart = 256 << 10
	maxEnded   = 1000
	ioLimit    = 10 * time.Second // for a caller to send its request or take a short answer
	maxGrace   = 10 * time.Minute
)

// agent is the server's state.
type agent struct {
	boot     string
	problems []string
	reaper   *reaper
	held     atomic.Int64 // bytes of unread output of all commands
	killing  atomic.Int32 // >0: nothing may start
	stopped  chan struct{}
	stopOnce sync.Once
	work     semaphore
	starts   semaphore
	docker   docker
	folders  *folders // nil without a Store
	withheld []int    // capabilities that are the agent's alone
	gvisor   bool     // the kernel is gVisor
	large    sync.Mutex
	git      gitAsks

	mu     sync.Mutex
	cmds   map[string]*command
	number int64
}

type semaphore chan struct{}

func (a *agent) serve(l net.Listener) {
	a.work, a.starts = make(semaphore, maxWork), make(semaphore, maxStarts)
	slots := make(semaphore, maxConns)
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(20 * time.Millisecond) // out of descriptors or memory for the moment
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			if outside(conn) {
				a.handle(conn)
			}
		}()
	}
}

// outside tells whether a peer is from outside the agent's pid namespace: the kernel then has no pid for it. Processes
// of the Sandbox never have a way to the socket, and get no answer if they find one (facts/sandbox.md §2.1).
func outside(conn net.Conn) bool {
	if _, ok := conn.(handed); ok {
		return true
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	sc, err := uc.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = sc.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && cerr == nil && cred.Pid == 0
}

// handle serves one connection, which is one call.
func (a *agent) handle(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(ioLimit)) //nolint:errcheck // sockets have deadlines
	kind, b, err := readFrame(conn, maxHeader, nil)
	if err != nil || kind != kindHeader {
		reply(conn, nil, fail(CodeBad, "the request isn't a header frame"))
		return
	}
	var h header
	if err := json.Unmarshal(b, &h); err != nil {
		reply(conn, nil, fail(CodeBad, "the request's header isn't JSON: %v", err))
		return
	}
	if h.Version < 1 || h.Version > Protocol {
		reply(conn, nil, fail(CodeVersion, "the request is in version %d of the protocol; this Sandbox's agent speaks %d",
			h.Version, Protocol))
		return
	}
	if h.Payload < 0 || h.Payload > maxPayload || h.Op != "start" && h.Payload > maxInput {
		reply(conn, nil, fail(CodeBad, "a payload of %d bytes is too large", h.Payload))
		return
	}
	a.dispatch(conn, h)
}

func (a *agent) dispatch(conn net.Conn, h header) {
	switch h.Op {
	case "wait", "output", "input", "asked", "docker-up":
		a.lasting(conn, h)
		return
	case "killall", "stop":
		conn.SetDeadline(time.Time{}) //nolint:errcheck // see handle
		err := a.killAll(min(max(0, time.Duration(h.GraceMS)*time.Millisecond), maxGrace))
		if err == nil && h.Op == "stop" && a.folders != nil {
			a.folders.leave()
		}
		reply(conn, struct{}{}, err)
		if h.Op == "stop" {
			a.stopOnce.Do(func() { close(a.stopped) })
		}
		return
	}
	if h.Op == "docker-down" {
		conn.SetDeadline(time.Time{}) //nolint:errcheck // see handle
		left, err := a.dockerDown(min(max(0, time.Duration(h.GraceMS)*time.Millisecond), maxGrace))
		reply(conn, left, err)
		return
	}
	slots := a.work
	if h.Op == "start" {
		slots = a.starts
		if h.Payload > largeStart {
			a.large.Lock()
			defer a.large.Unlock()
		}
	}
	slots <- struct{}{}
	defer func() { <-slots }()
	conn.SetDeadline(time.Now().Add(ioLimit)) //nolint:errcheck // see handle
	body, err := a.short(conn, h)
	reply(conn, body, err)
}

// short does what is done at once.
func (a *agent) short(conn net.Conn, h header) (any, error) {
	switch h.Op {
	case "hello":
		return Hello{Version: Protocol, BootID: a.boot, Problems: a.problems}, nil
	case "start":
		var w wireCmd
		if err := decodePayload(conn, h, &w); err != nil {
			return nil, err
		}
		return a.start(w.cmd())
	case "git":
		var g Git
		if err := decodePayload(conn, h, &g); err != nil {
			return nil, err
		}
		return struct{}{}, a.git.setUp("/", g)
	case "answer":
		var r Reply
		if err := decodePayload(conn, h, &r); err != nil {
			return nil, err
		}
		a.git.answer(h.At, r)
		return struct{}{}, nil
	case "bind":
		return a.bind(conn, h)
	case "list":
		return a.list(), nil
	case "processes":
		return a.describe(processes()), nil
	}
	c := a.find(h.ID)
	if c == nil {
		return nil, unknown(h.ID)
	}
	switch h.Op {
	case "signal":
		return struct{}{}, a.signal(c, syscall.Signal(h.Signal), h.Tree)
	case "resize":
		if c.tty == nil || h.Size == nil {
			return nil, fail(CodeBad, "command %q has no terminal", c.id)
		}
		if err := setSize(c.tty, *h.Size); err != nil {
			return nil, fail(CodeEnded, "the terminal is closed: %v", err)
		}
		return struct{}{}, nil
	case "closeinput":
		if c.in == nil {
			return nil, fail(CodeBad, "command %q has no standard input", c.id)
		}
		return struct{}{}, c.in.close()
	case "ack":
		o, err := c.stream(h.Stream)
		if err != nil {
			return nil, err
		}
		return struct{}{}, o.ack(h.At)
	case "forget":
		return struct{}{}, a.forget(c)
	case "leftovers":
		ps := c.tree()
		if n := len(ps); n > 0 && ps[n-1].pid == c.pid && c.running() {
			ps = ps[:n-1]
		}
		return a.describe(ps), nil
	}
	return nil, fail(CodeBad, "the agent knows no request %q", clip(h.Op, 32))
}

func (a *agent) bind(conn net.Conn, h header) (Binding, error) {
	var f Folders
	if err := decodePayload(conn, h, &f); err != nil {
		return Binding{}, err
	}
	if a.gvisor {
		return Binding{}, fail(CodeBad, "gVisor can't bind them from the Session's disk as programs make and remove them")
	}
	if a.folders == nil {
		return Binding{}, fail(CodeBad, "this Sandbox has nothing to bind dependency folders from")
	}
	return a.folders.bindAll(f)
}

// lasting does what goes on until a process does something or the caller hangs up.
func (a *agent) lasting(conn net.Conn, h header) {
	c := a.find(h.ID)
	if c == nil && h.Op != "asked" && h.Op != "docker-up" {
		reply(conn, nil, unknown(h.ID))
		return
	}
	var d Docker
	if h.Op == "docker-up" {
		if err := decodePayload(conn, h, &d); err != nil {
			reply(conn, nil, err)
			return
		}
	}
	var in []byte
	if h.Op == "input" {
		var err error
		if in, err = payload(conn, h); err != nil {
			reply(conn, nil, err)
			return
		}
	}
	conn.SetDeadline(time.Time{}) //nolint:errcheck // see handle
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		conn.Read(make([]byte, 1)) //nolint:errcheck // any outcome means that the caller waits no more
		cancel()
		conn.Close()
	}()
	switch h.Op {
	case "wait":
		select {
		case <-c.ended:
			reply(conn, c.exit, nil)
		case <-ctx.Done():
		}
	case "input":
		err := error(fail(CodeBad, "command %q has no standard input", c.id))
		if c.in != nil {
			err = c.in.take(ctx, h.At, in)
		}
		reply(conn, struct{}{}, err)
	case "output":
		a.output(ctx, conn, c, h)
	case "asked":
		if questions := a.git.wait(ctx, h.At); questions != nil {
			reply(conn, questions, nil)
		}
	case "docker-up":
		reply(conn, struct{}{}, a.dockerUp(ctx, d))
	}
}

func (a *agent) output(ctx context.Context, conn net.Conn, c *command, h header) {
	o, err := c.stream(h.Stream)
	if err == nil {
		err = o.check(h.At)
	}
	reply(conn, struct{}{}, err)
	conn.SetDeadline(time.Time{}) //nolint:errcheck // a reader may take its time
	if err != nil {
		return
	}
	// The next bytes are written behind the frame's head, so that a frame is one write and no copy.
	frame := make([]byte, 5+chunkSize)
	for next := h.At; ; {
		at, n, err := o.read(ctx, next, frame[5:])
		if err != nil && err != io.EOF {
			return // the caller is gone, or sees the end too early and asks again
		}
		if at > next {
			if writeFrame(conn, kindGap, binary.BigEndian.AppendUint64(nil, uint64(at))) != nil {
				return
			}
		}
		if err == io.EOF {
			writeFrame(conn, kindEnd, nil) //nolint:errcheck // the caller is gone
			return
		}
		binary.BigEndian.PutUint32(frame, uint32(n))
		frame[4] = kindData
		if _, err := conn.Write(frame[:5+n]); err != nil {
			return
		}
		next = at + int64(n)
	}
}

func payload(conn net.Conn, h header) ([]byte, error) {
	if h.Payload == 0 {
		return nil, nil
	}
	kind, b, err := readFrame(conn, h.Payload, nil)
	if err != nil {
		return nil, fail(CodeBad, "the request's payload did not come: %v", err)
	}
	if kind != kindPayload || len(b) != h.Payload {
		return nil, fail(CodeBad, "the request's payload is not what its header promised")
	}
	return b, nil
}

func decodePayload(conn net.Conn, h header, into any) error {
	b, err := payload(conn, h)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fail(CodeBad, "the request's payload isn't JSON: %v", err)
	}
	return nil
}

func reply(conn net.Conn, body any, err error) {
	conn.SetWriteDeadline(time.Now().Add(ioLimit)) //nolint:errcheck // see handle
	var a answer
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = fail(CodeInternal, "%v", err)
		}
		a.Error = e
	} else if a.Body, err = json.Marshal(body); err != nil || len(a.Body) > maxAnswer-1024 {
		a = answer{Error: fail(CodeInternal, "the answer is too large")}
	}
	writeJSON(conn, kindAnswer, a) //nolint:errcheck // the caller is gone
}

func (a *agent) find(id string) *command {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cmds[id]
	if c == nil {
		return nil
	}
	select {
	case <-c.ready:
		return c
	default:
		return nil // it isn't a command before it has started
	}
}

// start starts cmd unless it is there. Two calls with one ID at once start one process.
func (a *agent) start(cmd Cmd) (Started, error) {
	if err := validate(cmd); err != nil {
		return Started{}, err
	}
	if cmd.Keep == 0 {
		cmd.Keep = DefaultKeep
	}
	var c *command
	for c == nil {
		a.mu.Lock()
		other := a.cmds[cmd.ID]
		if other == nil {
			a.number++
			c = &command{id: cmd.ID, begun: time.Now(), number: a.number, ready: make(chan struct{}), ended: make(chan struct{})}
			c.out = newOutput(cmd.Keep, cmd.Full, &a.held)
			if cmd.Split {
				c.err = newOutput(cmd.Keep, cmd.Full, &a.held)
			}
			a.cmds[cmd.ID] = c
		}
		a.mu.Unlock()
		if other == nil {
			break
		}
		<-other.ready
		a.mu.Lock()
		same := a.cmds[cmd.ID] == other
		a.mu.Unlock()
		if same {
			s := other.answer
			s.Existed = true
			return s, nil
		}
	}
	err := error(ErrStopping)
	if a.killing.Load() == 0 {
		err = a.launch(c, cmd)
	}
	if err != nil {
		a.mu.Lock()
		delete(a.cmds, cmd.ID)
		a.mu.Unlock()
		close(c.ready)
		return Started{}, err
	}
	close(c.ready)
	return c.answer, nil
}

// all are the commands that have started, oldest first.
func (a *agent) all() []*command {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*command, 0, len(a.cmds))
	for _, c := range a.cmds {
		select {
		case <-c.ready:
			out = append(out, c)
		default:
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].number < out[j].number })
	return out
}

func (a *agent) list() []Status {
	out := []Status{}
	for _, c := range a.all() {
		out = append(out, c.status())
	}
	return out
}

func (a *agent) sessions() map[int]string {
	m := map[int]string{}
	for _, c := range a.all() {
		if c.running() || c.leftover {
			m[c.pid] = c.id
		}
	}
	return m
}

func (a *agent) forget(c *command) error {
	if c.running() {
		return fail(CodeRunning, "command %q is still running", c.id)
	}
	a.mu.Lock()
	if a.cmds[c.id] == c {
		delete(a.cmds, c.id)
	}
	a.mu.Unlock()
	c.out.drop()
	if c.err != nil {
		c.err.drop()
	}
	return nil
}

// retire keeps the number of ended commands within maxEnded: those whose output was all read go first, then the oldest.
func (a *agent) retire() {
	var read, unread []*command
	for _, c := range a.all() {
		if c.running() {
			continue
		}
		if c.unread() {
			unread = append(unread, c)
		} else {
			read = append(read, c)
		}
	}
	over := len(read) + len(unread) - maxEnded
	for _, c := range append(read, unread...) {
		if over--; over < 0 {
			return
		}
		a.forget(c) //nolint:errcheck // it has ended
	}
}
