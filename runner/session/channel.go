package session

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Pipe carries a channel's bytes to and from the Hub. Streams are 1 (standard output, or the terminal) and 2.
type Pipe interface {
	Run(ctx context.Context) error
	Write(ctx context.Context, stream int, t redact.Text) error
	Finish(ctx context.Context, exit wire.ChannelExit) error
	// Taken is how much of a stream the Hub has, of what was ever written by any process of the Runner, and a channel
	// that is closed when that changes. It waits until the Hub has said so for the first time.
	Taken(ctx context.Context, stream int) (offset int64, changed <-chan struct{}, err error)
	// Resume says, before Run, how much input a terminal's process has taken; Skip, where its output goes on after what was
	// dropped. Forgot tells, after Run, that the Hub was restarted and needs a fresh Pipe that begins with what the agent keeps.
	Resume(input int64)
	Skip(ctx context.Context, to int64) error
	Forgot() bool
}

// Endpoint is what a Pipe gives the process's side.
type Endpoint interface {
	Input(ctx context.Context, offset int64, b []byte) error
	CloseInput(ctx context.Context) error
	Control(ctx context.Context, c *wire.Control) error
	Gone()
}

// Dialer makes the Pipe of a channel.
type Dialer func(c *wire.Channel, fence int64, e Endpoint) Pipe

// hangUp is how long a process nobody wants any more gets between SIGHUP and SIGKILL.
const hangUp = 2 * time.Second

// channel is one exec or terminal. Its process is known at the agent by the channel's id and lives on when the Runner
// is killed: the next process finds it there, with what of its output the Hub has not taken.
type channel struct {
	m    *Machine
	id   string
	spec wire.ChannelSpec
	c    *agent.Client
	pipe Pipe
	dial func() Pipe // a fresh one, after the Hub forgot
	stop context.CancelFunc

	started chan struct{} // closed when the process runs, or never will

	mu      sync.Mutex
	gone    bool
	starved error // its input could not be brought to it
	masked  bool  // something of its output was
	typed   time.Time
}

// Channels makes the Session serve exactly these, those of the Hub's newest list. A channel that is no longer in it
// has its process ended. A list may be older than the end of a channel that is in it: that is not served again, since
// the agent no longer knows its command and would run it a second time. Of an adopted Sandbox none is served before Follow:
// they wait, or after Withhold are answered at once with its reason and code 125, and a process that one already has is ended,
// since nobody will ever see what it prints.
func (m *Machine) Channels(ctx context.Context, list []*wire.Channel, fence int64, dial Dialer) {
	wanted := map[string]bool{}
	m.mu.Lock()
	defer m.mu.Unlock()
	withheld := ""
	if m.box != nil && !m.follow {
		if withheld = m.withheld; withheld == "" {
			return
		}
	}
	for _, w := range list {
		wanted[w.Id] = true
		if m.chans[w.Id] != nil || m.served[w.Id] {
			continue
		}
		cctx, cancel := context.WithCancel(ctx)
		ch := &channel{m: m, id: w.Id, stop: cancel, started: make(chan struct{})}
		ch.dial = func() Pipe { return dial(w, fence, ch) }
		ch.pipe = ch.dial()
		m.chans[w.Id] = ch
		m.beside(func() {
			defer func() {
				cancel()
				m.mu.Lock()
				delete(m.chans, ch.id)
				m.served[ch.id] = true
				m.mu.Unlock()
			}()
			ch.serve(cctx, w.SpecJson, withheld)
		})
	}
	for id, ch := range m.chans {
		if !wanted[id] {
			ch.Gone()
		}
	}
	maps.DeleteFunc(m.served, func(id string, _ bool) bool { return !wanted[id] })
}

// Settle waits until no channel is served and no start script followed any more, after the Runner's life has ended.
func (m *Machine) Settle() { m.serving.Wait() }

// serve brings the channel to its end. withheld is why it can only be refused.
func (ch *channel) serve(ctx context.Context, specJSON, withheld string) {
	if json.Unmarshal([]byte(specJSON), &ch.spec) == nil && ch.spec.Keep && ch.spec.TTY && withheld == "" {
		ch.terminal(ctx)
		return
	}
	var wg sync.WaitGroup
	pipeCtx, stopPipe := context.WithCancel(ctx)
	wg.Go(func() {
		ch.pipe.Run(pipeCtx) //nolint:errcheck // ends with the channel; Finish says whether all arrived
	})
	defer wg.Wait()
	defer stopPipe()
	release := sync.OnceFunc(func() { close(ch.started) })
	defer release()
	if err := json.Unmarshal([]byte(specJSON), &ch.spec); err != nil {
		ch.fail(ctx, "this Runner can't read what to run; update the Runner")
		return
	}
	if withheld != "" {
		ch.fail(ctx, withheld)
		if ch.c = ch.m.client(); ch.c != nil && !errors.Is(context.Cause(ctx), build.ErrShutdown) {
			ch.end(context.WithoutCancel(ctx), false)
		}
		return
	}
	counts := (len(ch.spec.Argv) > 0 || ch.spec.Port > 0) && !ch.spec.TTY
	ch.c = ch.m.client()
	if ch.c == nil || !ch.m.act.begin(counts) {
		ch.fail(ctx, "the Session is not awake")
		return
	}
	defer ch.m.act.end(counts)
	spans, err := ch.start(ctx)
	if err != nil {
		ch.refuse(ctx, err)
		return
	}
	release()
	exit, ended := ch.follow(ctx, spans)
	if ctx.Err() == nil {
		ch.pipe.Finish(ctx, exit) //nolint:errcheck // nobody wants it, or the Runner stops
	}
	if errors.Is(context.Cause(ctx), build.ErrShutdown) {
		return
	}
	ch.end(context.WithoutCancel(ctx), ended)
}

// fail tells the person that claude-hub could not run it.
func (ch *channel) fail(ctx context.Context, why string) {
	ch.pipe.Finish(ctx, wire.ChannelExit{Code: 125, Failed: ch.m.log().Text(why)}) //nolint:errcheck // nobody wants it
}

// refuse tells the person that the command can't be run, with the code that a shell would give.
func (ch *channel) refuse(ctx context.Context, err error) {
	ch.pipe.Finish(ctx, wire.ChannelExit{Code: refusal(err), Failed: ch.m.log().Text(err.Error())}) //nolint:errcheck // nobody wants it
}

// refusal is the code that a shell would give for a command that can't be run.
func refusal(err error) int {
	switch {
	case errors.Is(err, agent.ErrNotFound):
		return 127
	case errors.Is(err, agent.ErrDenied), errors.Is(err, agent.ErrInterpreter):
		return 126
	}
	return 125
}

// start starts the process, or finds it: then spans are what its agent still holds of each stream.
func (ch *channel) start(ctx context.Context) (spans [2]*agent.Span, err error) {
	m := ch.m
	cmd, base := m.command(ch.id, ch.argv(), ch.spec.Dir, ch.spec.User)
	cmd.Stdin = ch.spec.Stdin
	if ch.spec.TTY {
		cmd.TTY, cmd.Full = &agent.Size{Rows: ch.spec.Rows, Cols: ch.spec.Cols}, agent.DropOldest
		if ch.spec.Keep {
			cmd.Keep = scrollback
		}
		if ch.spec.Term != "" {
			cmd.Env = append(cmd.Env, "TERM="+ch.spec.Term)
		}
	} else {
		cmd.Split = true
	}
	cmd.Env = append(cmd.Env, m.variables()...)
	started, err := ch.startFirst(ctx, cmd, loginShells(base, cmd.User))
	if err != nil || !started.Existed {
		return spans, cause(ctx, err)
	}
	list, err := ch.c.List(ctx)
	if err != nil {
		return spans, err
	}
	for _, s := range list {
		if s.ID == ch.id {
			spans[0], spans[1] = &s.Out, s.Err
		}
	}
	return spans, nil
}

// command is a process as a person asks for it, all but the Variables: in the Workspace or in the folder that was named, as the
// image's user or another, with the environment of a login shell.
func (m *Machine) command(id string, argv []string, dir, user string) (agent.Cmd, build.Base) {
	m.mu.Lock()
	base := m.base
	m.mu.Unlock()
	img := base.Meta.Image
	cmd := agent.Cmd{ID: id, Argv: argv, Dir: dir, User: user}
	if cmd.Dir == "" {
		cmd.Dir = build.WorkspaceGuest
	} else { // what was named is meant: a command must not do its work in another folder
		cmd.NeedDir = true
		if !path.IsAbs(cmd.Dir) {
			cmd.Dir = path.Join(build.WorkspaceGuest, cmd.Dir)
		}
	}
	if cmd.User == "" {
		cmd.User = img.User
	}
	if cmd.User == img.User {
		cmd.Env = m.b.Env(build.WithCaches(img), m.login())
	} else { // another user's login shell was not asked, and has another home; what it left in the caches would be in the way of theirs
		cmd.Env = m.b.Env(img, nil)
	}
	return cmd, base
}

// argv is what was asked to run, or what connects to a port.
func (ch *channel) argv() []string {
	if ch.spec.Port > 0 {
		return agent.Connect(ch.spec.Port)
	}
	return ch.spec.Argv
}

// startFirst starts cmd, or for a login shell the first of shells that is there.
func (ch *channel) startFirst(ctx context.Context, cmd agent.Cmd, shells []string) (agent.Started, error) {
	if len(cmd.Argv) > 0 {
		return ch.c.Start(ctx, cmd)
	}
	for _, shell := range shells {
		cmd.Argv = []string{shell, "-l"}
		started, err := ch.c.Start(ctx, cmd)
		if errors.Is(err, agent.ErrNotFound) || errors.Is(err, agent.ErrDenied) || errors.Is(err, agent.ErrInterpreter) {
			continue
		}
		return started, err
	}
	return agent.Started{}, agent.ErrNoShell
}

// loginShells are those to try in turn: what /etc/passwd says for the image's own user, then what most images have.
func loginShells(base build.Base, user string) []string {
	shells := []string{"bash", "sh"}
	own := base.Meta.User.Shell
	if user != base.Meta.Image.User || !path.IsAbs(own) {
		return shells
	}
	switch path.Base(own) {
	case "nologin", "false", "true", "sync":
		return shells
	}
	return append([]string{own}, shells...)
}

// follow brings all output to the Pipe and returns how the process ended, if it did.
func (ch *channel) follow(ctx context.Context, spans [2]*agent.Span) (exit wire.ChannelExit, ended bool) {
	var wg sync.WaitGroup
	streams := 2
	if ch.spec.TTY {
		streams = 1
	}
	for i := range streams {
		wg.Go(func() { ch.copy(ctx, agent.Stream(i), spans[i]) })
	}
	wg.Wait()
	e, err := ch.c.Wait(ctx, ch.id)
	ch.mu.Lock()
	starved, masked := ch.starved, ch.masked
	ch.mu.Unlock()
	if starved != nil {
		return wire.ChannelExit{Code: 125, Failed: ch.m.log().Text("its input could not be brought to it, so it was ended: " + starved.Error())}, err == nil
	}
	if err != nil {
		return wire.ChannelExit{Code: 125, Failed: "the Sandbox ended: the Session was put to sleep, or its Sandbox crashed"}, false
	}
	return wire.ChannelExit{Code: e.Code, Signal: e.Signal, OOM: e.OOM, Masked: masked}, true
}

// copy brings one stream through the redactor to the Pipe, and lets the agent forget what the Hub has.
func (ch *channel) copy(ctx context.Context, s agent.Stream, had *agent.Span) {
	a := acks{ch: ch, s: s}
	var from int64
	if had != nil {
		// Where nothing was masked, offsets at the Hub are those of the process. Otherwise what the agent still holds is
		// sent again, rather than lose any of it.
		taken, _, err := ch.pipe.Taken(ctx, int(s)+1)
		if err != nil {
			return
		}
		from = had.From
		if taken >= had.From && taken <= had.To {
			from = taken
		}
		a.sent = taken
	}
	r, err := ch.c.Output(ctx, ch.id, s, from)
	if err != nil {
		return
	}
	defer r.Close()
	actx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { a.run(actx) })
	w := ch.m.log().Set().Writer(func(t redact.Text) error {
		a.write(t.Len())
		return ch.pipe.Write(ctx, int(s)+1, t)
	})
	// A person who waits for what is held back as the possible beginning of a value waits no longer than this.
	defer func() {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		ch.masked = ch.masked || len(w.Found()) > 0
	}()
	idle := time.AfterFunc(time.Hour, func() { w.Release() }) //nolint:errcheck // the next Write says it
	defer idle.Stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if ctx.Err() == nil {
				ch.m.act.touch()
			}
			_, werr := w.Write(buf[:n])
			if werr != nil {
				return
			}
			if w.Held() > 0 {
				idle.Reset(releaseAfter)
			} else {
				idle.Stop()
			}
			a.note(r.Offset() - int64(w.Held()))
		}
		if err != nil {
			w.Flush() //nolint:errcheck // nobody wants it any more
			a.note(r.Offset())
			return
		}
	}
}

// releaseAfter is how long what a person may wait for is held back, with some room below the promised 100 ms.
const releaseAfter = 60 * time.Millisecond

// acks remembers which raw offset each redacted one stands for, until the Hub has it.
type acks struct {
	ch *channel
	s  agent.Stream

	mu    sync.Mutex
	sent  int64 // redacted bytes given to the Pipe
	marks []ackMark
}

type ackMark struct{ raw, sent int64 }

func (a *acks) write(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent += int64(n)
}

func (a *acks) note(raw int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.marks); n > 0 && a.marks[n-1].sent == a.sent {
		a.marks[n-1].raw = raw
		return
	}
	a.marks = append(a.marks, ackMark{raw, a.sent})
}

func (a *acks) run(ctx context.Context) {
	for {
		taken, changed, err := a.ch.pipe.Taken(ctx, int(a.s)+1)
		if err != nil {
			return
		}
		raw := int64(-1)
		a.mu.Lock()
		for len(a.marks) > 0 && a.marks[0].sent <= taken {
			raw = a.marks[0].raw
			a.marks = a.marks[1:]
		}
		a.mu.Unlock()
		if raw >= 0 {
			if err := a.ch.c.Ack(ctx, a.ch.id, a.s, raw); err != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// end ends the process if it still runs, and forgets it. What a process that ended by itself left in the background lives
// on, as after ssh.
func (ch *channel) end(ctx context.Context, ended bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if ended {
		ch.c.Forget(ctx, ch.id) //nolint:errcheck // agents bound what they remember
		return
	}
	ch.c.Signal(ctx, ch.id, 1, true) //nolint:errcheck // SIGKILL follows
	wait, stop := context.WithTimeout(ctx, hangUp)
	_, err := ch.c.Wait(wait, ch.id)
	stop()
	if err != nil {
		ch.c.Signal(ctx, ch.id, 9, true) //nolint:errcheck // the Sandbox's end will end it
		ch.c.Wait(ctx, ch.id)            //nolint:errcheck // as above
	}
	ch.c.Forget(ctx, ch.id) //nolint:errcheck // agents bound what they remember
}

// Gone is the Pipe's: nobody wants the channel any more.
func (ch *channel) Gone() {
	ch.mu.Lock()
	first := !ch.gone
	ch.gone = true
	ch.mu.Unlock()
	if first {
		ch.stop()
	}
}

// ready waits until there is a process to speak to.
func (ch *channel) ready(ctx context.Context) error {
	select {
	case <-ch.started:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ch.c == nil {
		return errors.New("it never started")
	}
	return nil
}

// Input is the Pipe's. Offsets are the process's own, so what it has taken before a restart is not given twice.
func (ch *channel) Input(ctx context.Context, offset int64, b []byte) error {
	if err := ch.ready(ctx); err != nil {
		return err
	}
	if !ch.spec.Stdin && !ch.spec.TTY {
		return nil
	}
	ch.m.act.touch()
	ch.mu.Lock()
	ch.typed = time.Now()
	ch.mu.Unlock()
	for refused := 0; ; {
		err := ch.c.Input(ctx, ch.id, offset, b)
		var said *agent.Error
		switch {
		case err == nil, errors.Is(err, agent.ErrEnded), errors.Is(err, agent.ErrUnknown):
			return nil // a process that has ended, or closed its input, reads no more; its output and its end still count
		case ctx.Err() != nil:
			return err
		case errors.As(err, &said):
			if refused++; refused == 5 {
				ch.starve(ctx, err)
				return err
			}
		}
		select { // the connection broke; the process may still be there
		case <-ch.m.Done():
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// starve ends a process that can't be given its input: it would do its work on what it has got, and call that a success.
func (ch *channel) starve(ctx context.Context, why error) {
	ch.mu.Lock()
	ch.starved = why
	ch.mu.Unlock()
	ch.c.Signal(ctx, ch.id, 9, true) //nolint:errcheck // it has ended already, or the Sandbox's end will end it
}

// CloseInput is the Pipe's.
func (ch *channel) CloseInput(ctx context.Context) error {
	if err := ch.ready(ctx); err != nil {
		return err
	}
	if ch.spec.TTY {
		return nil // a terminal has no end but ^D, which a person types
	}
	return ch.c.CloseInput(ctx, ch.id)
}

// Control is the Pipe's.
func (ch *channel) Control(ctx context.Context, k *wire.Control) error {
	if err := ch.ready(ctx); err != nil {
		return err
	}
	if k.Rows > 0 && k.Cols > 0 {
		if err := ch.c.Resize(ctx, ch.id, agent.Size{Rows: uint16(k.Rows), Cols: uint16(k.Cols)}); err != nil {
			return err
		}
	}
	if k.Signal > 0 {
		return ch.c.Signal(ctx, ch.id, int(k.Signal), false)
	}
	return nil
}
