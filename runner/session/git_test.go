package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
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
