package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// hub lends what a test says, and remembers what it was asked and given back.
type hub struct {
	lends    Loan
	life     time.Duration
	err      error
	made     int
	had      []string
	returned []string
}

func (h *hub) Lend(_ context.Context, have string) (Loan, error) {
	h.had = append(h.had, have)
	l := h.lends
	switch {
	case h.err != nil:
		return Loan{}, h.err
	case l.Refused != "":
		return l, nil
	case have == l.Contents:
		return Loan{Keep: true, ReadOnly: l.ReadOnly}, nil
	}
	h.made++
	l.Token, l.Expires = fmt.Sprintf("token-%d", h.made), time.Now().Add(h.life)
	return l, nil
}

func (h *hub) Return(_ context.Context, token string) { h.returned = append(h.returned, token) }

func TestWhatIsLentIsUsedAgainUntilItsEndIsNearOrRightsChange(t *testing.T) {
	t.Parallel()
	h := &hub{life: time.Hour, lends: Loan{Contents: wire.ContentsRead, ReadOnly: "off"}}
	l := &loans{lender: h}
	get := func(want string) Loan {
		t.Helper()
		got, err := l.get(t.Context())
		if err != nil || got.Token != want {
			t.Fatalf("got %q %v, want %q", got.Token, err, want)
		}
		return got
	}
	returned := func(want ...string) {
		t.Helper()
		if !slices.Equal(h.returned, want) {
			t.Errorf("given back: %q, want %q", h.returned, want)
		}
	}
	get("token-1")
	h.lends.ReadOnly = "still off"
	if got := get("token-1"); got.ReadOnly != "still off" {
		t.Errorf("why it can't push is what was said first: %q", got.ReadOnly)
	}
	h.lends = Loan{Contents: wire.ContentsWrite}
	h.life = spare - time.Second // a clone that reads with the earlier one goes on
	get("token-2")
	returned()
	h.life = time.Hour
	get("token-3") // the second is near its end, and whoever pushes with it goes on
	get("token-3")
	returned()
	h.lends = Loan{Contents: wire.ContentsRead}
	get("token-4") // may push no more: at once
	returned("token-1", "token-2", "token-3")
	h.err = errors.New("away")
	if got, err := l.get(t.Context()); err == nil || got.Token != "" {
		t.Errorf("what can't be checked is not handed out: %q %v", got.Token, err)
	}
	h.err = nil
	get("token-4")
	h.lends = Loan{Refused: "no access"}
	get("")
	returned("token-1", "token-2", "token-3", "token-4")
	h.lends = Loan{Contents: wire.ContentsWrite}
	get("token-5")
	l.rejected(t.Context(), agent.Sum("one of the person's own"))
	get("token-5")
	l.rejected(t.Context(), agent.Sum("token-5"))
	get("token-6")
	l.giveBack(t.Context(), l.take())
	returned("token-1", "token-2", "token-3", "token-4", "token-5", "token-6")
	if len(l.take()) != 1 || l.take()[0].Token != "" {
		t.Error("something is left of what was given back")
	}
}

// flooder is a Sandbox whose agent has sixteen new questions as soon as it is asked, and takes long over every answer.
type flooder struct {
	sandbox.Sandbox
	done    chan struct{}
	listed  atomic.Int64
	open    atomic.Int64 // answers that it takes long over
	most    atomic.Int64
	release chan struct{}
}

func (f *flooder) Done() <-chan struct{} { return f.done }

func (f *flooder) Dial(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		frame := func() []byte {
			head := make([]byte, 5)
			if _, err := io.ReadFull(theirs, head); err != nil {
				return nil
			}
			b := make([]byte, binary.BigEndian.Uint32(head))
			_, _ = io.ReadFull(theirs, b)
			return b
		}
		if bytes.Contains(frame(), []byte(`"answer"`)) {
			frame()
			f.most.Store(max(f.most.Load(), f.open.Add(1)))
			<-f.release
			f.open.Add(-1)
			return
		}
		var list []agent.Question
		for range 16 {
			list = append(list, agent.Question{ID: f.listed.Add(1), Protocol: "https", Host: "github.com"})
		}
		b, _ := json.Marshal(map[string]any{"Body": list})
		_, _ = theirs.Write(append(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), 'A'), b...))
	}()
	return ours, nil
}

func TestAnAgentThatFloodsIsListenedToSlowlyAndCostsTheHubLittle(t *testing.T) {
	t.Parallel()
	h := &hub{life: time.Hour, lends: Loan{Contents: wire.ContentsRead}}
	f := &flooder{done: make(chan struct{}), release: make(chan struct{})}
	m := &Machine{life: t.Context(), loans: loans{lender: h}}
	ended := make(chan struct{})
	go func() {
		m.serveGit(f, wire.Session{Repo: wire.Repo{CloneURL: "https://github.com/octo/app.git"}})
		close(ended)
	}()
	until := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.After(time.Minute); !ok(); {
			select {
			case <-tick.C:
			case <-end:
				t.Fatal("not within a minute: " + what)
			}
		}
	}
	until("as many answers at once as there may be", func() bool { return f.open.Load() == gitAtOnce })
	if n := f.listed.Load(); n > 32 {
		t.Errorf("%d questions were heard while no answer was taken", n)
	}
	close(f.release)
	until("more questions than a minute may have", func() bool { return f.listed.Load() > 10*gitAsks })
	close(f.done)
	<-ended
	if f.most.Load() > gitAtOnce || len(h.had) > gitAsks || h.made != 1 {
		t.Errorf("%d at once, the Hub was asked %d times and lent %d tokens", f.most.Load(), len(h.had), h.made)
	}
}

func TestALoanPrintsHidden(t *testing.T) {
	t.Parallel()
	l := Loan{Token: "ghs_canary"}
	if s := fmt.Sprintf("%v %+v %#v %s %q %v", l, l, l, l, l, &l); strings.Contains(s, "canary") {
		t.Error(s)
	}
}

func TestQuestionsAreCountedAMinuteAtATime(t *testing.T) {
	t.Parallel()
	l, now := &loans{}, time.Now()
	for range gitAsks {
		if !l.allowed(now) {
			t.Fatal("refused too early")
		}
	}
	if l.allowed(now) || !l.allowed(now.Add(gitWindow)) {
		t.Error("a minute's questions are not bounded, or for longer than that minute")
	}
}

func TestGitAsksForTheRepoUnderEachOfItsNames(t *testing.T) {
	t.Parallel()
	got := remotes("https://github.com/octo/old.git", "https://github.com/octo/app", "", "file:///srv/x.git", "git@github.com:octo/app.git", "https://u:p@github.com/octo/app.git")
	want := []string{"https://github.com/octo/old.git", "https://github.com/octo/old", "https://github.com/octo/app.git", "https://github.com/octo/app"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
