package session

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Loan is what the Hub lends git in the Sandbox. It prints as [hidden].
type Loan struct {
	Token    string
	Expires  time.Time
	Contents string // wire.ContentsRead, wire.ContentsWrite
	ReadOnly string // why it can't push, in a sentence for a person
	Keep     bool   // nothing new: what was lent before is still right
	Refused  string // there is none, and nothing that was lent before may be used: why, in a sentence for a person
}

// Format keeps the token out of everything that fmt makes.
func (Loan) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[hidden]")) }

// Lender asks the Hub. Its methods may be called from many goroutines.
type Lender interface {
	// Lend asks for what the Session's person may do at this moment; have is Loan.Contents of what was lent before, or empty. The Log's
	// Set knows the token by then. An error is a sentence for a person: what was lent before may or may not be right.
	Lend(ctx context.Context, have string) (Loan, error)
	// Return ends a token, as far as that is possible now: none lives longer than an hour.
	Return(ctx context.Context, token string)
}

const (
	// gitAsks within gitWindow are brought to the Hub; a Sandbox that asks more often is told to wait.
	gitAsks   = 60
	gitWindow = time.Minute
	// gitAtOnce bounds what an agent, which may be hostile, can have the Runner do at once for it; gitPace how fast it is listened to.
	gitAtOnce = 8
	gitPace   = 20 * time.Millisecond
	gitRetry  = time.Second
	// spare is how long a token must live on to be handed out: a push may take a while.
	spare = 10 * time.Minute
	// returnTime bounds how long the end of a Sandbox's loans is tried.
	returnTime = 10 * time.Second
)

// loans are the tokens that git in the running Sandbox was lent. They are in memory only: those that a killed Runner had end
// by themselves within the hour.
type loans struct {
	lender Lender

	asking sync.Mutex // one asks the Hub at a time, so that those who ask at once share what it lends

	mu      sync.Mutex
	now     Loan
	earlier []Loan // that a git may still use
	since   time.Time
	asked   int
}

// allowed counts one more question.
func (l *loans) allowed(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= gitWindow {
		l.since, l.asked = now, 0
	}
	l.asked++
	return l.asked <= gitAsks
}

// get is what the Hub lends now.
func (l *loans) get(ctx context.Context) (Loan, error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	l.mu.Lock()
	had := l.now
	l.mu.Unlock()
	have := had.Contents
	if time.Until(had.Expires) < spare {
		have = ""
	}
	got, err := l.lender.Lend(ctx, have)
	if err != nil {
		return Loan{}, err
	}
	if got.Keep {
		had.ReadOnly = got.ReadOnly
		got = had
	}
	l.mu.Lock()
	l.now = got
	var over []Loan
	switch {
	case got.Refused != "":
		over, l.earlier = append(l.earlier, had), nil
	case got.Token == had.Token:
	case got.Contents == wire.ContentsRead && had.Contents == wire.ContentsWrite:
		over, l.earlier = append(l.earlier, had), nil
	case had.Token != "":
		l.earlier = append(l.living(), had)
	}
	l.mu.Unlock()
	l.giveBack(ctx, over)
	return got, nil
}

// living are the earlier ones that have not ended by themselves. Called with the lock.
func (l *loans) living() (all []Loan) {
	for _, e := range l.earlier {
		if time.Now().Before(e.Expires) {
			all = append(all, e)
		}
	}
	return all
}

// rejected forgets a token that the other side did not accept, so that the next one who asks gets another.
func (l *loans) rejected(ctx context.Context, sum string) {
	l.mu.Lock()
	had := l.now
	if had.Token == "" || agent.Sum(had.Token) != sum {
		l.mu.Unlock()
		return
	}
	l.now = Loan{}
	l.mu.Unlock()
	l.giveBack(ctx, []Loan{had})
}

// take is all of them, for giveBack: the Sandbox they were lent to has ended.
func (l *loans) take() []Loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append(l.living(), l.now)
	l.now, l.earlier = Loan{}, nil
	return all
}

func (l *loans) giveBack(ctx context.Context, all []Loan) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTime)
	defer cancel()
	for _, o := range all {
		if o.Token != "" {
			l.lender.Return(ctx, o.Token)
		}
	}
}

// remotes are the URLs of the Repo as git may know it: as it was cloned, and as it is called now, each with and without its
// ending.
func remotes(urls ...string) (all []string) {
	known := map[string]bool{}
	for _, r := range urls {
		u, err := url.Parse(r)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
			continue // of a file, for example: nobody asks for credentials
		}
		bare := strings.TrimSuffix(strings.TrimSuffix(r, "/"), ".git")
		for _, v := range []string{bare + ".git", bare} {
			if !known[v] {
				known[v] = true
				all = append(all, v)
			}
		}
	}
	return all
}

// setUpGit tells git in the Sandbox who its person is and where credentials come from. It answers whether it listens for questions.
func (m *Machine) setUpGit(ctx context.Context, box sandbox.Sandbox, p wire.Session) bool {
	urls := remotes(m.State().Remote, p.Repo.CloneURL)
	err := build.Dial(box).Git(ctx, agent.Git{Remotes: urls, Name: p.Person.Name, Email: p.Person.Email})
	switch {
	case errors.Is(err, agent.ErrVersion):
		return false // it was booted by a Runner of the version before, and gets it at its next wake
	case err != nil && ctx.Err() == nil:
		m.log().Mark("boot: %v", err)
	}
	return len(urls) > 0 && m.loans.lender != nil
}

// serveGit answers what git in the Sandbox asks, until the Sandbox or the Runner's life ends.
func (m *Machine) serveGit(box sandbox.Sandbox, p wire.Session) {
	ctx, cancel := context.WithCancel(m.life)
	defer cancel()
	go func() {
		select {
		case <-box.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	hosts := map[string]bool{}
	for _, r := range remotes(m.State().Remote, p.Repo.CloneURL) {
		if u, err := url.Parse(r); err == nil {
			hosts[u.Scheme+"://"+u.Host] = true
		}
	}
	c := build.Dial(box)
	slots := make(chan struct{}, gitAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	for seen := int64(0); ctx.Err() == nil; {
		list, err := c.Asked(ctx, seen)
		pause := gitPace
		if err != nil {
			pause = gitRetry
		}
		for _, q := range list {
			seen = max(seen, q.ID)
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			all.Go(func() {
				defer func() { <-slots }()
				c.Answer(ctx, q.ID, m.gitReply(ctx, q, hosts)) //nolint:errcheck // who asks sees it
			})
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// gitReply answers one question. For another host than the Repo's it says nothing: git asks the person.
func (m *Machine) gitReply(ctx context.Context, q agent.Question, hosts map[string]bool) agent.Reply {
	if q.Rejected != "" {
		m.loans.rejected(ctx, q.Rejected)
		return agent.Reply{}
	}
	if !hosts[q.Protocol+"://"+q.Host] {
		return agent.Reply{}
	}
	if !m.loans.allowed(time.Now()) {
		return agent.Reply{Says: fmt.Sprintf("git here asks for credentials more than %d times in %s; try again in a minute.", gitAsks, gitWindow)}
	}
	l, err := m.loans.get(ctx)
	switch {
	case err != nil:
		return agent.Reply{Says: m.log().Text("no credentials from the Hub at the moment: " + err.Error())}
	case l.Refused != "":
		return agent.Reply{Says: l.Refused}
	}
	return agent.Reply{Username: build.TokenUser, Password: l.Token, Expires: l.Expires, ReadOnly: l.ReadOnly}
}
