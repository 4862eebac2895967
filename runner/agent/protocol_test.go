package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func (b *box) raw(sent ...[]byte) string {
	b.t.Helper()
	conn, err := b.Dial(ctx(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	for _, s := range sent {
		conn.Write(s) // the agent may have hung up already; what it said is read below
	}
	got, err := io.ReadAll(conn)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		b.t.Fatalf("the agent left a connection open: %q", got)
	}
	return string(got)
}

func frame(kind byte, content string) []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(content))), kind), content...)
}

func TestHostileRequestsGetASentenceAndTheAgentGoesOn(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	huge := binary.BigEndian.AppendUint32(nil, 0xffffffff)
	for name, c := range map[string]struct {
		sent [][]byte
		says string
	}{
		"4 GiB frame":         {[][]byte{append(huge, 'Q')}, "isn't a header frame"},
		"wrong kind":          {[][]byte{frame('D', "x")}, "isn't a header frame"},
		"no JSON":             {[][]byte{frame('Q', "{")}, "isn't JSON"},
		"deep JSON":           {[][]byte{frame('Q', strings.Repeat("[", 60_000))}, "isn't JSON"},
		"newer version":       {[][]byte{frame('Q', `{"Version":3,"Op":"hello"}`)}, "version 3 of the protocol"},
		"no git":              {[][]byte{frame('Q', `{"Version":2,"Op":"git","Payload":1}`), frame('P', "{")}, "isn't JSON"},
		"no URL":              {[][]byte{frame('Q', `{"Version":2,"Op":"git","Payload":18}`), frame('P', `{"Remotes":["x:"]}`)}, "no URL of a remote"},
		"no question":         {[][]byte{frame('Q', `{"Version":2,"Op":"answer","At":9,"Payload":2}`), frame('P', "{}")}, `"Body":{}`},
		"no version":          {[][]byte{frame('Q', `{"Op":"hello"}`)}, "version 0 of the protocol"},
		"unknown op":          {[][]byte{frame('Q', `{"Version":1,"Op":"fly","ID":"a"}`)}, "knows no command"},
		"huge payload":        {[][]byte{frame('Q', `{"Version":1,"Op":"start","Payload":999999999}`)}, "too large"},
		"negative payload":    {[][]byte{frame('Q', `{"Version":1,"Op":"start","Payload":-1}`)}, "too large"},
		"payload that is not": {[][]byte{frame('Q', `{"Version":1,"Op":"start","Payload":5}`), frame('D', "12345")}, "not what its header promised"},
		"longer payload":      {[][]byte{frame('Q', `{"Version":1,"Op":"start","Payload":5}`), frame('P', "123456")}, "did not come"},
		"null command":        {[][]byte{frame('Q', `{"Version":1,"Op":"start","Payload":4}`), frame('P', "null")}, "ID has 1 to"},
		"long id":             {[][]byte{frame('Q', `{"Version":1,"Op":"wait","ID":"`+strings.Repeat("a", 60_000)+`"}`)}, "knows no command"},
	} {
		if got := b.raw(c.sent...); !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", name, clip(got, 300))
		}
	}
	if now, _ := b.rss(); now > 30<<20 {
		t.Errorf("the agent has %d MB", now>>20)
	}
	b.sh("true")
}

func TestCallersThatHangOrVanishHoldNothing(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	id := b.start(Cmd{Argv: []string{"sh", "-c", "echo one; sleep 1000"}})
	before := b.sh("ls /proc/1/fd | wc -l")
	var silent []net.Conn
	for range maxConns / 2 {
		conn, err := b.Dial(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	for range 50 {
		c, cancel := context.WithCancel(ctx(t))
		r, err := b.Output(c, id, Out, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		go b.Wait(c, id)
		cancel() // without Close
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
			t.Errorf("reading after the context's end: %v", err)
		}
	}
	b.sh("true") // silent connections don't hold others up
	until(t, "the agent hanging up on who says nothing", func() (bool, string) {
		now := b.sh("ls /proc/1/fd | wc -l")
		return now == before, now + " descriptors, before " + before
	})
	silent[0].SetDeadline(time.Now().Add(10 * time.Second))
	if got, err := io.ReadAll(silent[0]); err != nil || !strings.Contains(string(got), "isn't a header frame") {
		t.Errorf("%q %v", got, err)
	}
}

func TestProcessesOfTheSandboxGetNoAnswer(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := boot(t, image{Binds: map[string]string{folder: "/shared"}})
	if err := os.Link(b.folder+"/sock", folder+"/sock"); err != nil {
		t.Fatal(err)
	}
	out, exit := b.run(Cmd{Argv: []string{"/agent", "dial", "/shared/sock"}})
	if exit.Code != 9 || !strings.Contains(out, "hung up without an answer") {
		t.Errorf("from inside: %q %+v", out, exit)
	}
	cmd := exec.Command("/proc/self/exe", "dial", folder+"/sock")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), fmt.Sprintf("Version:%d", Protocol)) {
		t.Errorf("from outside, by the same path: %s %v", out, err)
	}
}

// hostileAgent answers every connection with what f writes.
func hostileAgent(t *testing.T, f func(net.Conn)) *Client {
	t.Helper()
	return &Client{Dial: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			go io.Copy(io.Discard, theirs)
			f(theirs)
		}()
		return ours, nil
	}}
}

func TestTheClientSurvivesAHostileAgent(t *testing.T) {
	t.Parallel()
	ok := frame('A', `{"Body":{}}`)
	for name, c := range map[string]struct {
		sent []byte
		says string
	}{
		"silence then gone": {nil, "hung up without an answer"},
		"huge frame":        {append(binary.BigEndian.AppendUint32(nil, 1<<31), 'A'), "larger than"},
		"no JSON":           {frame('A', "nope"), "isn't JSON"},
		"other JSON":        {frame('A', `{"Body":[1,2]}`), "something else than was asked"},
		"wrong kind":        {frame('D', "data"), "where an answer was due"},
		"half a frame":      {frame('A', `{"Body":{}}`)[:9], "hung up without an answer"},
		"future version":    {frame('A', `{"Body":{"Version":99}}`), "speaks version 99"},
		"long error":        {frame('A', `{"Error":{"Code":"x","Message":"`+strings.Repeat("a", 1<<20)+`"}}`), "aaaa"},
	} {
		cl := hostileAgent(t, func(conn net.Conn) { conn.Write(c.sent) })
		if _, err := cl.Hello(ctx(t)); err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 5000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		sent []byte
		says string
	}{
		"empty data":     {frame('D', ""), "within output"},
		"large data":     {frame('D', strings.Repeat("x", maxData+1)), "larger than"},
		"backwards":      {frame('G', "\xff\xff\xff\xff\xff\xff\xff\xff"), "goes backwards"},
		"standing still": {frame('G', "\x00\x00\x00\x00\x00\x00\x00\x05"), "goes backwards"},
		"cut off":        {frame('D', "abc"), "hung up"},
		"nonsense":       {frame('!', "abc"), "within output"},
	} {
		cl := hostileAgent(t, func(conn net.Conn) { conn.Write(append(append([]byte{}, ok...), c.sent...)) })
		r, err := cl.Output(ctx(t), "x", Out, 5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		r.Close()
	}
}

func TestWordsOfAHostileAgentAreCutShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 100_000)
	answer := func(body any) *Client {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return hostileAgent(t, func(conn net.Conn) { conn.Write(frame('A', `{"Body":`+string(b)+`}`)) })
	}
	h, err := answer(Hello{Version: Protocol, BootID: long, Problems: slices.Repeat([]string{long[:1500]}, 1000)}).Hello(ctx(t))
	if err != nil || len(h.BootID) > 200 || len(h.Problems) > maxProblems || len(h.Problems[0]) > 1100 {
		t.Errorf("hello: %v, a boot id of %d bytes, %d problems", err, len(h.BootID), len(h.Problems))
	}
	e, err := answer(Exit{Code: 1, Signal: long}).Wait(ctx(t), "x")
	if err != nil || len(e.Signal) > 100 {
		t.Errorf("wait: %v, a signal of %d bytes", err, len(e.Signal))
	}
	l, err := answer([]Process{{Argv: slices.Repeat([]string{long[:1000]}, 500), User: long, Command: long}, {}}).Processes(ctx(t))
	if err != nil || len(l) != 2 || len(l[0].Argv) > maxArgs || len(l[0].Argv[0]) > 300 || len(l[0].User) > 300 || len(l[0].Command) > 200 || len(l[1].Argv) != 1 {
		t.Errorf("processes: %v", err)
	}
}

func TestTheClientWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	silent := hostileAgent(t, func(net.Conn) { <-t.Context().Done() })
	short, cancel := context.WithTimeout(ctx(t), 50*time.Millisecond)
	defer cancel()
	for name, f := range map[string]func() error{
		"hello":  func() error { _, err := silent.Hello(short); return err },
		"wait":   func() error { _, err := silent.Wait(short, "x"); return err },
		"output": func() error { _, err := silent.Output(short, "x", Out, 0); return err },
		"input":  func() error { return silent.Input(short, "x", 0, []byte("x")) },
	} {
		if err := f(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHelloTellsVersionAndBoot(t *testing.T) {
	t.Parallel()
	a, b := boot(t, image{}), boot(t, image{})
	ha, err := a.Hello(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	hb, err := b.Hello(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if ha.Version != Protocol || len(ha.BootID) < 20 || ha.BootID == hb.BootID || len(ha.Problems) != 0 {
		t.Errorf("%+v %+v", ha, hb)
	}
	again, err := a.Hello(ctx(t))
	if err != nil || fmt.Sprint(again) != fmt.Sprint(ha) {
		t.Errorf("%+v %v", again, err)
	}
}

func TestManyCallersAtOnceAreServed(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	const n = 60
	errs := make(chan error, n)
	for i := range n {
		go func() {
			var out screen
			e, err := b.Run(ctx(t), Cmd{ID: fmt.Sprintf("m%d", i), Argv: []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}}, &out, nil)
			if err == nil && (e.Code != i || out.text() != fmt.Sprintf("%d\n", i)) {
				err = fmt.Errorf("command %d: %+v %q", i, e, out.text())
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	if err != nil {
		t.Fatal(err)
	}
	var threads int
	_, rest, _ := strings.Cut(string(raw), "Threads:")
	fmt.Sscan(rest, &threads)
	if threads == 0 || threads > 32 {
		t.Errorf("the agent has %d threads", threads)
	}
}
