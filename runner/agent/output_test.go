package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"testing"
	"time"
)

func TestBinaryOutputArrivesByteByByte(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	var out, sum bytes.Buffer
	line := "head -c 1000000 /dev/urandom >/tmp/r; head -c 70000 /dev/zero >>/tmp/r; cat /tmp/r; sha256sum </tmp/r >&2"
	cmd := Cmd{ID: "binary", Argv: []string{"sh", "-c", line}, Split: true}
	if _, err := b.Run(ctx(t), cmd, &out, &sum); err != nil {
		t.Fatal(err)
	}
	got := sha256.Sum256(out.Bytes())
	if out.Len() != 1070000 || !strings.HasPrefix(sum.String(), hex.EncodeToString(got[:])) {
		t.Errorf("%d bytes with the sum %x, the Sandbox says %s", out.Len(), got, sum.String())
	}
}

type counting struct {
	n    int64
	sum  hash.Hash
	each func()
}

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	c.sum.Write(p)
	if c.each != nil {
		c.each()
	}
	return len(p), nil
}

func TestAFloodOf200MBIsWholeAndLeavesTheAgentSmall(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	const total = 200_000_000
	id := b.start(Cmd{Script: script(fmt.Sprintf("yes 0123456789 | head -c %d\n", total))})
	c := &counting{sum: sha256.New()}
	begun := time.Now()
	end, err := b.Copy(ctx(t), id, Out, 0, c)
	if err != nil || end != total || c.n != total {
		t.Fatalf("copied %d to offset %d: %v", c.n, end, err)
	}
	t.Logf("%.0f MB/s", total/1e6/time.Since(begun).Seconds())
	want := sha256.New()
	line := bytes.Repeat([]byte("0123456789\n"), 1<<12)
	for n := 0; n < total; {
		part := line[:min(len(line), total-n)]
		want.Write(part)
		n += len(part)
	}
	if !bytes.Equal(want.Sum(nil), c.sum.Sum(nil)) {
		t.Error("the bytes are not those that were written")
	}
	if _, peak := b.rss(); peak > 40<<20 {
		t.Errorf("the agent grew to %d MB", peak>>20)
	}
}

func TestALineOf5MBIsNotBroken(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out, _ := b.run(Cmd{Script: script("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo after\n")})
	if len(out) != 5000000+1+6 || strings.Count(out, "\n") != 2 || !strings.HasSuffix(out, "x\nafter\n") {
		t.Errorf("%d bytes", len(out))
	}
}

func TestScriptBlocksWhenNobodyReadsAndGoesOnAfterAck(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"sh", "-c", "yes | head -c 3000000"}, Keep: 100_000})
	full := func(at int64) {
		t.Helper()
		until(t, "a full buffer", func() (bool, string) {
			l, err := b.List(ctx(t))
			if err != nil {
				t.Fatal(err)
			}
			return l[0].Running && l[0].Out.From == at && l[0].Out.To == at+100_000, fmt.Sprintf("%+v", l[0])
		})
	}
	full(0)
	if err := b.Ack(ctx(t), id, Out, 40_000); err != nil {
		t.Fatal(err)
	}
	full(40_000)
	if _, err := b.Output(ctx(t), id, Out, 39_999); !errors.Is(err, ErrGone) {
		t.Errorf("reading what was acknowledged: %v", err)
	}
	if err := b.Ack(ctx(t), id, Out, 140_001); err == nil {
		t.Error("bytes that don't exist were acknowledged")
	}
	c := &counting{sum: sha256.New()}
	if end, err := b.Copy(ctx(t), id, Out, 40_000, c); err != nil || end != 3_000_000 || c.n != 2_960_000 {
		t.Errorf("copied %d to %d: %v", c.n, end, err)
	}
}

func TestAReaderThatWasKilledReadsAgainFromItsOffset(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Script: script("seq 1 200000\n")})
	var got bytes.Buffer
	at := int64(0)
	for hop := 0; ; hop++ {
		r, err := b.Output(ctx(t), id, Out, at)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 50_000)
		n, err := io.ReadFull(r, buf)
		r.Close()
		if hop%2 == 0 && err == nil {
			continue // this reader died before it had kept anything: the same bytes come again
		}
		got.Write(buf[:n])
		at += int64(n)
		if err := b.Ack(ctx(t), id, Out, at); err != nil {
			t.Fatal(err)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
	}
	lines := strings.Fields(got.String())
	if len(lines) != 200000 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, l := range lines {
		if l != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %s", i+1, l)
		}
	}
}

func TestTerminalsDropTheOldestAndCountIt(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"sh", "-c", "seq 1 300000"}, Keep: 50_000, Full: DropOldest})
	b.wait(id) // it ends although nobody reads
	r, err := b.Output(ctx(t), id, Out, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil || len(out) != 50_000 || !bytes.HasSuffix(out, []byte("\n299999\n300000\n")) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	if r.Dropped() == 0 || r.Dropped()+50_000 != r.Offset() {
		t.Errorf("dropped %d, offset %d", r.Dropped(), r.Offset())
	}
	l, err := b.List(ctx(t))
	if err != nil || l[0].Out.Dropped != r.Dropped() {
		t.Errorf("%+v %v", l, err)
	}
}

func TestABackgroundDaemonThatHoldsThePipeDoesNotHoldThePhase(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	begun := time.Now()
	id := b.start(Cmd{Script: script("(while :; do echo chatter; sleep 0.01; done) &\nseq 1 20000\necho last\n")})
	var out bytes.Buffer
	if _, err := b.Copy(ctx(t), id, Out, 0, &out); err != nil {
		t.Fatal(err)
	}
	if own := strings.ReplaceAll(out.String(), "chatter\n", ""); !strings.HasSuffix(own, "\n20000\nlast\n") || time.Since(begun) > 30*time.Second {
		t.Errorf("%d bytes after %s, ending %q", out.Len(), time.Since(begun), clip(out.String()[max(0, out.Len()-40):], 40))
	}
	left, err := b.Leftovers(ctx(t), id)
	if err != nil || len(left) == 0 || left[0].Command != id || left[0].User != "root" || !strings.Contains(strings.Join(left[0].Argv, " "), "bootstrap") {
		t.Fatalf("leftovers are %+v, %v", left, err)
	}
	// It goes on writing to a pipe nobody reads: neither a full pipe nor SIGPIPE may stop it.
	pid := left[0].PID
	ticks := func() string { return b.sh(fmt.Sprintf("grep ctxt /proc/%d/status | head -1", pid)) }
	before := ticks()
	until(t, "progress of the daemon", func() (bool, string) { now := ticks(); return now != before, now })
	if err := b.Signal(ctx(t), id, 9, true); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Leftovers(ctx(t), id); err != nil || len(left) != 0 {
		t.Errorf("after SIGKILL: %+v, %v", left, err)
	}
}

func TestABackgroundFloodDoesNotHoldThePhase(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Script: script("yes flood &\nsleep 0.1\n")})
	c := &counting{sum: sha256.New()}
	if _, err := b.Copy(ctx(t), id, Out, 0, c); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Leftovers(ctx(t), id); err != nil || len(left) != 1 || left[0].Argv[0] != "yes" {
		t.Errorf("%+v %v", left, err)
	}
}

func TestOutputOfManySilentReadersIsBoundedTogether(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	for range 40 {
		b.start(Cmd{Argv: []string{"yes"}, Keep: DefaultKeep})
	}
	until(t, "full buffers", func() (bool, string) {
		l, err := b.List(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		held := int64(0)
		for _, s := range l {
			held += s.Out.To - s.Out.From
			if s.Out.To == 0 {
				return false, "one has written nothing"
			}
		}
		return held >= outputBudget && held <= outputBudget+40*(outputMin+chunkSize), fmt.Sprint(held)
	})
	if _, peak := b.rss(); peak > 56<<20 {
		t.Errorf("the agent grew to %d MB", peak>>20)
	}
}

func TestInputComesOnceInOrderAndEnds(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"cat"}, Stdin: true})
	data := bytes.Repeat([]byte("0123456789abcdef"), 20_000) // five times what waits for a reader
	done := make(chan error, 1)
	go func() {
		for at := 0; at < len(data); at += 30_000 {
			part := data[at:min(len(data), at+45_000)] // each call repeats half of the next one
			if err := b.Input(ctx(t), id, int64(at), part); err != nil {
				done <- err
				return
			}
		}
		done <- b.CloseInput(ctx(t), id)
	}()
	var out bytes.Buffer
	if _, err := b.Copy(ctx(t), id, Out, 0, &out); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back of %d", out.Len(), len(data))
	}
	if e := b.wait(id); e.Code != 0 {
		t.Errorf("%+v", e)
	}
	if err := b.Input(ctx(t), id, int64(len(data)), []byte("x")); !errors.Is(err, ErrEnded) {
		t.Errorf("input after the end: %v", err)
	}
	if err := b.Input(ctx(t), id, 0, data[:10]); err != nil {
		t.Errorf("repeated input after the end: %v", err)
	}
}

func TestInputThatLeavesAGapIsRefused(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"cat"}, Stdin: true})
	var e *Error
	if err := b.Input(ctx(t), id, 1, []byte("x")); !errors.As(err, &e) || e.Code != CodeOffset {
		t.Errorf("%v", err)
	}
	quiet := b.start(Cmd{Argv: []string{"sleep", "1000"}})
	if err := b.Input(ctx(t), quiet, 0, []byte("x")); !errors.As(err, &e) || e.Code != CodeBad {
		t.Errorf("input without stdin: %v", err)
	}
}

func TestAProcessThatReadsNothingHoldsOnlyItsOwnInput(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"sleep", "1000"}, Stdin: true})
	done := make(chan error, 1)
	go func() { done <- b.Input(ctx(t), id, 0, make([]byte, 1<<20)) }()
	until(t, "full input", func() (bool, string) {
		l, err := b.List(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		return l[0].Input >= 2*inputQueue, fmt.Sprint(l[0].Input)
	})
	b.sh("true")
	if err := b.Signal(ctx(t), id, 15, false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrEnded) {
		t.Errorf("%v", err)
	}
}
