package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Reader is one stream of output from an offset on. Not for use by several goroutines, except Close.
type Reader struct {
	ctx  context.Context
	conn net.Conn
	stop func()
	buf  []byte // backing store of frames
	rest []byte // what of the last frame is not read yet
	next int64
	lost int64
	err  error
}

// Output streams the bytes of id's stream from an offset, as they come. It ends with io.EOF after the process has ended
// and what it wrote is drained; background children that hold the pipe don't keep it open (facts/recipes.md B5).
// Bytes stay at the agent until Ack. A from before what is kept is ErrGone under Block; under DropOldest the reader
// starts at the oldest byte there is.
func (c *Client) Output(ctx context.Context, id string, s Stream, from int64) (*Reader, error) {
	conn, stop, err := c.open(ctx, header{Op: "output", ID: id, Stream: s, At: from}, nil)
	if err != nil {
		return nil, err
	}
	kind, b, err := readFrame(conn, maxAnswer, nil)
	if err == nil {
		err = decode(kind, b, nil)
	} else {
		err = broken(ctx, err)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return &Reader{ctx: ctx, conn: conn, stop: stop, buf: make([]byte, maxData), next: from}, nil
}

// Read returns io.EOF only when the output is complete; an agent that went away is io.ErrUnexpectedEOF.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.err = r.frame()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.next += int64(n)
	return n, nil
}

func (r *Reader) frame() error {
	kind, b, err := readFrame(r.conn, maxData, r.buf)
	if err != nil {
		return broken(r.ctx, err)
	}
	switch {
	case kind == kindData && len(b) > 0:
		r.rest = b
		return nil
	case kind == kindGap && len(b) == 8:
		to := int64(binary.BigEndian.Uint64(b))
		if to <= r.next {
			return errors.New("the Sandbox's agent sent an offset that goes backwards")
		}
		r.lost += to - r.next
		r.next = to
		return nil
	case kind == kindEnd:
		return io.EOF
	}
	return fmt.Errorf("the Sandbox's agent sent a frame of kind %q and %d bytes within output", kind, len(b))
}

// Offset is that of the next byte Read returns; between two Reads it may rise by what was dropped.
func (r *Reader) Offset() int64 { return r.next }

// Dropped is how many bytes were skipped because they were dropped before they could be read.
func (r *Reader) Dropped() int64 { return r.lost }

// Close ends the stream. Output that wasn't acknowledged stays at the agent.
func (r *Reader) Close() error {
	r.stop()
	return nil
}

// Copy writes a stream from an offset to w until it is complete and acknowledges what w took, at latest every 256 KiB
// and whenever nothing more is waiting. It returns the offset after the last byte w took.
func (c *Client) Copy(ctx context.Context, id string, s Stream, from int64, w io.Writer) (int64, error) {
	r, err := c.Output(ctx, id, s, from)
	if err != nil {
		return from, err
	}
	defer r.Close()
	buf := make([]byte, maxData)
	var acked int64 = from
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return r.Offset() - int64(n), err
			}
			if r.Offset()-acked >= 128<<10 || n < 16<<10 {
				if err := c.Ack(ctx, id, s, r.Offset()); err != nil {
					return r.Offset(), err
				}
				acked = r.Offset()
			}
		}
		if err == io.EOF {
			return r.Offset(), c.Ack(ctx, id, s, r.Offset())
		}
		if err != nil {
			return r.Offset(), err
		}
	}
}

// Run starts cmd, copies its output, and forgets it when it has ended: for short commands whose output nobody needs to
// read again. With Split, standard error goes to stderr, which otherwise may be nil. When ctx ends the whole tree of
// processes is killed.
func (c *Client) Run(ctx context.Context, cmd Cmd, stdout, stderr io.Writer) (Exit, error) {
	_, err := c.Start(ctx, cmd)
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return Exit{}, err
	}
	var exit Exit
	if err == nil {
		exit, err = c.follow(ctx, cmd, stdout, stderr)
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), CallTimeout)
		defer cancel()
		if kerr := c.Signal(late, cmd.ID, 9, true); kerr == nil {
			if _, werr := c.Wait(late, cmd.ID); werr == nil {
				c.Forget(late, cmd.ID) //nolint:errcheck // the first error is the one to tell
			}
		}
		return exit, err
	}
	return exit, c.Forget(ctx, cmd.ID)
}

func (c *Client) follow(ctx context.Context, cmd Cmd, stdout, stderr io.Writer) (Exit, error) {
	errs := make(chan error, 1)
	if stderr == nil {
		stderr = io.Discard
	}
	if cmd.Split {
		go func() {
			_, err := c.Copy(ctx, cmd.ID, Err, 0, stderr)
			errs <- err
		}()
	} else {
		errs <- nil
	}
	_, err := c.Copy(ctx, cmd.ID, Out, 0, stdout)
	if err != nil {
		return Exit{}, err
	}
	if err := <-errs; err != nil {
		return Exit{}, err
	}
	return c.Wait(ctx, cmd.ID)
}
