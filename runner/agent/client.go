package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// CallTimeout bounds each call that doesn't wait for a process, beside the caller's context.
const CallTimeout = 60 * time.Second

// Client speaks to one agent, one connection for each call. It may be used from many goroutines.
// Errors that the agent answers are *Error; others mean that no sensible answer came.
type Client struct {
	// Dial opens a connection to the agent.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Hello asks who is there. An agent of a version this Client can't speak is an error.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	h, err := call[Hello](ctx, c, header{Op: "hello"}, nil, CallTimeout)
	if err != nil {
		return Hello{}, err
	}
	if h.Version < Protocol-1 || h.Version < 1 || h.Version > Protocol {
		return h, fmt.Errorf("the Sandbox's agent speaks version %d of the protocol, this Runner %d; restart the Sandbox",
			h.Version, Protocol)
	}
	h.BootID = clip(h.BootID, maxID)
	h.Problems = h.Problems[:min(len(h.Problems), maxProblems)]
	for i := range h.Problems {
		h.Problems[i] = clip(h.Problems[i], maxProblem)
	}
	return h, nil
}

// Start starts cmd unless its ID is known already. When it returns without an error the program itself runs; what could
// be found out before (no such program, user, shell or interpreter) is an *Error, and the ID is free again.
func (c *Client) Start(ctx context.Context, cmd Cmd) (Started, error) {
	b, err := json.Marshal(toWire(cmd))
	if err != nil {
		return Started{}, err
	}
	if len(b) > maxPayload {
		return Started{}, fail(CodeLimit, "the command with its environment is %d bytes as sent, more than the %d an agent takes",
			len(b), maxPayload)
	}
	return call[Started](ctx, c, header{Op: "start", ID: cmd.ID}, b, CallTimeout)
}

// List tells all commands that are not forgotten, the oldest first.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	l, err := call[[]Status](ctx, c, header{Op: "list"}, nil, CallTimeout)
	if len(l) > maxList {
		return nil, fmt.Errorf("the Sandbox's agent lists %d commands, more than it can have", len(l))
	}
	return l, err
}

// Wait returns when the process has ended. Its output may still wait to be read.
func (c *Client) Wait(ctx context.Context, id string) (Exit, error) {
	e, err := call[Exit](ctx, c, header{Op: "wait", ID: id}, nil, 0)
	e.Signal = clip(e.Signal, maxSignal)
	return e, err
}

// Signal sends sig to the process, or with tree to its session, its process group and all descendants; SIGKILL with
// tree is repeated until none is left. For a command that has ended, tree reaches what is left of its session, and
// without tree it is ErrEnded.
func (c *Client) Signal(ctx context.Context, id string, sig int, tree bool) error {
	_, err := call[struct{}](ctx, c, header{Op: "signal", ID: id, Signal: sig, Tree: tree}, nil, CallTimeout)
	return err
}

// Resize changes the size of the command's terminal.
func (c *Client) Resize(ctx context.Context, id string, s Size) error {
	_, err := call[struct{}](ctx, c, header{Op: "resize", ID: id, Size: &s}, nil, CallTimeout)
	return err
}

// Input writes b to the process's standard input as the bytes from offset at on. What the agent took before is skipped,
// so Input can be repeated; an at beyond the next offset is an error. It returns when all is taken, which on a
// process that reads nothing is when ctx ends.
func (c *Client) Input(ctx context.Context, id string, at int64, b []byte) error {
	for {
		part := b[:min(len(b), maxInput)]
		if _, err := call[struct{}](ctx, c, header{Op: "input", ID: id, At: at}, part, 0); err != nil {
			return err
		}
		at += int64(len(part))
		if b = b[len(part):]; len(b) == 0 {
			return nil
		}
	}
}

// CloseInput ends standard input after all that was taken. On a terminal it is an error: send \x04 instead.
func (c *Client) CloseInput(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, header{Op: "closeinput", ID: id}, nil, CallTimeout)
	return err
}

// Ack lets the agent forget the stream's bytes before offset. Under Block that is what lets the process write on.
func (c *Client) Ack(ctx context.Context, id string, s Stream, offset int64) error {
	_, err := call[struct{}](ctx, c, header{Op: "ack", ID: id, Stream: s, At: offset}, nil, CallTimeout)
	return err
}

// Forget drops an ended command with what is left of its output, acknowledged or not. An unknown ID is no error.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, header{Op: "forget", ID: id}, nil, CallTimeout)
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	return err
}

// Processes lists what is alive in the Sandbox except the agent, at most 1,000.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	return c.processes(ctx, header{Op: "processes"})
}

// Leftovers lists what is alive of one command's session and descendants, its own process excepted. A daemon that made
// itself a new session and lost its parent is only in Processes.
func (c *Client) Leftovers(ctx context.Context, id string) ([]Process, error) {
	return c.processes(ctx, header{Op: "leftovers", ID: id})
}

func (c *Client) processes(ctx context.Context, h header) ([]Process, error) {
	l, err := call[[]Process](ctx, c, h, nil, CallTimeout)
	if len(l) > maxList {
		return nil, fmt.Errorf("the Sandbox's agent lists %d processes, more than it may", len(l))
	}
	for i := range l {
		p := &l[i]
		if len(p.Argv) == 0 {
			p.Argv = []string{"?"}
		}
		p.Argv = p.Argv[:min(len(p.Argv), maxArgs)]
		for j := range p.Argv {
			p.Argv[j] = clip(p.Argv[j], maxArg)
		}
		p.User, p.Command = clip(p.User, maxArg), clip(p.Command, maxID)
	}
	return l, err
}

// KillAll ends every process of the Sandbox but the agent: SIGTERM, then SIGKILL after grace. While it runs nothing
// new starts. Commands stay listed with their output.
func (c *Client) KillAll(ctx context.Context, grace time.Duration) error {
	_, err := call[struct{}](ctx, c, header{Op: "killall", GraceMS: grace.Milliseconds()}, nil, grace+CallTimeout)
	return err
}

// Stop is KillAll, after which the agent exits, and with it the Sandbox.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	_, err := call[struct{}](ctx, c, header{Op: "stop", GraceMS: grace.Milliseconds()}, nil, grace+CallTimeout)
	return err
}

// open dials and sends a request. The connection is closed for good when ctx ends; stop must be called in any case.
func (c *Client) open(ctx context.Context, h header, payload []byte) (net.Conn, func(), error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("the Sandbox's agent can't be reached: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() { conn.Close() })
	stop := func() { unhook(); conn.Close() }
	h.Version, h.Payload = since(h.Op), len(payload)
	err = writeJSON(conn, kindHeader, h)
	if err == nil && len(payload) > 0 {
		err = writeFrame(conn, kindPayload, payload)
	}
	// An agent that refuses a request early closes before it has read all; its answer tells more than EPIPE.
	if err != nil && ctx.Err() != nil {
		stop()
		return nil, nil, ctx.Err()
	}
	return conn, stop, nil
}

func call[T any](ctx context.Context, c *Client, h header, payload []byte, limit time.Duration) (T, error) {
	var out T
	if limit > 0 {
		var cancel context.CancelFunc
		late := fmt.Errorf("the Sandbox's agent did not answer %s within %s", h.Op, limit)
		ctx, cancel = context.WithTimeoutCause(ctx, limit, late)
		defer cancel()
	}
	conn, stop, err := c.open(ctx, h, payload)
	if err != nil {
		return out, err
	}
	defer stop()
	kind, b, err := readFrame(conn, maxAnswer, nil)
	if err != nil {
		return out, broken(ctx, err)
	}
	if err := decode(kind, b, &out); err != nil {
		return out, err
	}
	return out, nil
}

func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the Sandbox's agent hung up without an answer: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("the Sandbox's agent gave no usable answer: %w", err)
}

func decode(kind byte, b []byte, out any) error {
	if kind != kindAnswer {
		return fmt.Errorf("the Sandbox's agent answered with a frame of kind %q where an answer was due", kind)
	}
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		return fmt.Errorf("the Sandbox's agent answered with what isn't JSON: %w", err)
	}
	if a.Error != nil {
		a.Error.Message = clip(a.Error.Message, 4096)
		return a.Error
	}
	if out == nil || len(a.Body) == 0 {
		return nil
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return fmt.Errorf("the Sandbox's agent answered with something else than was asked: %w", err)
	}
	return nil
}

// Git tells git in the Sandbox who the person is, and to ask the Runner for credentials; see Asked. ErrVersion: this
// Sandbox's agent is older. Other errors are a sentence that says what git lacks. It can be repeated.
func (c *Client) Git(ctx context.Context, g Git) error {
	b, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = call[struct{}](ctx, c, header{Op: "git"}, b, CallTimeout)
	return err
}

// Asked waits until git asks something, and returns the open questions after the one with ID seen, oldest first.
func (c *Client) Asked(ctx context.Context, seen int64) ([]Question, error) {
	list, err := call[[]Question](ctx, c, header{Op: "asked", At: seen}, nil, 0)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > maxAsks {
		return nil, fmt.Errorf("the Sandbox's agent lists %d questions of git at once, which it can't have", len(list))
	}
	for i := range list {
		q := &list[i]
		q.Protocol, q.Host, q.Rejected = clip(q.Protocol, maxAskText), clip(q.Host, maxAskText), clip(q.Rejected, maxAskText)
	}
	return list, nil
}

// Answer answers a Question. That nobody waits for it any more is no error.
func (c *Client) Answer(ctx context.Context, question int64, r Reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = call[struct{}](ctx, c, header{Op: "answer", At: question}, b, CallTimeout)
	return err
}
