// Package storm lets GitHub deliver as on its worst day: every webhook many times, late and in any order, while Hubs are ended
// by SIGKILL. Each change that a pull request proposes has to be tested exactly once, and no check may stay in progress
// (facts/reliability.md §5, P29 and P30).
//
// make storm N=10000. The Hubs are the real binary, on one PostgreSQL database; GitHub is githubtest, and the Runner passes
// every Test build at once.
package storm

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var (
	deliveries = flag.Int("n", 300, "how many deliveries")
	seed       = flag.Uint64("seed", 1, "of their order and fate")
)

// stuckAfter is how long after its Test build's end a check may be in progress.
const stuckAfter = 60 * time.Second

// result is what the last line says.
var result struct{ deliveries, changes, tests, stuck int }

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	fmt.Printf("deliveries=%d changes=%d test_builds=%d check_runs_stuck=%d\n", result.deliveries, result.changes, result.tests, result.stuck)
	os.Exit(code)
}

// storm is two Hubs on one database. GitHub delivers to the first.
type storm struct {
	*world.World
	t      *testing.T
	gh     *githubtest.Server
	app    githubtest.App
	ana    githubtest.Account
	db     *store.DB
	runner *quick
	second *world.Process
	repos  []githubtest.Repo
	pulls  []githubtest.Pull

	mu      sync.Mutex
	rand    *rand.Rand
	sent    int // of what people do, with copies: echoes of the Hub's own writing and second attempts come on top
	target  int
	copies  int
	reached chan struct{} // closed when sent is at target
	commits map[githubtest.Repo][]string
}

func TestStorm(t *testing.T) {
	pulls := pullCount()
	s := begin(t, pulls)
	rounds := 2
	for round := range rounds {
		s.round(round, (round+1)**deliveries/rounds)
		result.changes += pulls
		s.tested(result.changes)
	}
	s.atRest()
}

func begin(t *testing.T, pulls int) *storm {
	gh, err := githubtest.New(githubtest.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gh.Close)
	s := &storm{t: t, gh: gh, ana: gh.Person("ana"), rand: rand.New(rand.NewPCG(*seed, 1)), commits: map[githubtest.Repo][]string{}} //nolint:gosec // to be replayed
	// Check runs are written at a pace for each installation: many of them, so that it isn't the pace that is measured.
	for i := range min(pulls, 25) {
		gh.Org(fmt.Sprint("org", i))
		repo := gh.Repo(fmt.Sprintf("org%d/app", i), true, githubtest.Files{"README.md": githubtest.Text("app\n")})
		repo.Allow(s.ana, "write")
		s.repos = append(s.repos, repo)
	}
	database := storetest.PostgreSQL(t)
	key := filepath.Join(t.TempDir(), "key.pem")
	s.World = world.Empty(t, world.Options{Database: database, NoDev: true, Hub: map[string]string{
		"encryption_keys": "[" + seal.NewKey() + "]", "auto_test": "true",
	}})
	s.app = gh.App(githubtest.AppOptions{HookURL: s.URL + "/webhook/github", Callbacks: []string{s.URL + "/auth/github/callback"}})
	if err := os.WriteFile(key, []byte(s.app.PrivateKey), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Options.GitHub = map[string]string{
		"url": gh.URLs().Web, "api_url": gh.URLs().API, "app_id": fmt.Sprint(s.app.ID), "client_id": s.app.ClientID, "client_secret": s.app.ClientSecret,
		"private_key_file": key, "webhook_secrets": "[" + s.app.WebhookSecret + "]",
	}
	s.WriteConfig()
	for _, r := range s.repos {
		gh.Install(s.app.ID, gh.Org(strings.TrimSuffix(r.FullName(), "/app")), s.ana, r)
	}
	gh.Senders(7)
	s.StartHub()
	s.startSecond()
	t.Cleanup(func() { s.second.Kill() })
	s.db = storetest.Open(t, database)

	b := s.Browser()
	back, err := gh.Authorize(b.Follow(b.Open("/sign-in"), "Sign in with GitHub").Away, s.ana)
	if err != nil {
		t.Fatal(err)
	}
	if page := b.Open(back); page.Status != 200 {
		t.Fatalf("ana can't sign in: %d %s", page.Status, page.Text)
	}
	page := b.Press(b.Open("/account/tokens"), "Make the token", url.Values{"name": {"storm"}, "scope": {"read", "runners"}})
	if s.Token = regexp.MustCompile(`[A-Za-z0-9_-]{43}`).FindString(page.Text); s.Token == "" {
		t.Fatalf("no token is shown: %d %s", page.Status, page.Text)
	}
	s.runner = newQuick(t, s.URL, strings.TrimSpace(s.OK("runner", "token")), "r1")
	gh.Deliver(s.fate)
	return s
}

// startSecond starts a Hub at another address, with the first one's database and keys.
func (s *storm) startSecond() {
	s.t.Helper()
	b, err := os.ReadFile(s.Config)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.Replace(string(b), strings.TrimPrefix(s.URL, "http://"), "127.0.0.1:0", 1)
	text = strings.Replace(text, "hub:\n", "hub:\n  url: "+s.URL+"\n", 1)
	path := filepath.Join(s.Dir, "second.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.second = s.Start("second Hub", "serve", "--config", path)
	s.Eventually(30*time.Second, "the second Hub serves", func() error {
		if !strings.Contains(s.second.Log(), "the Hub serves") {
			return errors.New(s.second.Log())
		}
		return nil
	})
}

// fate has what people do arrive many times, some of it late.
func (s *storm) fate(d githubtest.Delivery) githubtest.Fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Redelivery || d.Event == "check_run" || d.Event == "check_suite" || s.sent >= s.target {
		return githubtest.Fate{}
	}
	f := githubtest.Fate{Copies: min(s.copies, s.target-s.sent-1)}
	if s.rand.IntN(4) == 0 {
		f.Delay = time.Duration(s.rand.IntN(2000)) * time.Millisecond
	}
	s.sent += 1 + f.Copies
	if s.sent == s.target {
		close(s.reached)
	}
	return f
}

// round proposes one change in each pull request, and lets GitHub deliver until target was sent. In the middle a Hub is killed:
// the one that GitHub delivers to, or the other one.
func (s *storm) round(round, target int) {
	s.mu.Lock()
	s.target, s.reached = target, make(chan struct{})
	half := s.sent + (target-s.sent)/2
	// A push and a pull request event come of each change by themselves.
	s.copies = max(1, (target-s.sent)/(2*pullCount())-1)
	s.mu.Unlock()

	s.gh.Hold()
	for i := range pullCount() {
		repo := s.repos[i%len(s.repos)]
		branch := fmt.Sprint("change-", i)
		files := githubtest.Files{".claude-hub/environment.yml": githubtest.Text(fmt.Sprintf("image: debian:12\nbootstrap: echo %d of %d\n", round, i))}
		if round == 0 {
			pull := repo.Propose(s.ana, branch, files)
			s.pulls = append(s.pulls, pull)
		} else {
			repo.Push(s.ana, branch, "Another one", files)
		}
		s.commits[repo] = append(s.commits[repo], s.pulls[i].SHA())
	}
	s.gh.Release(s.rand)
	s.Eventually(5*time.Minute, "half of the deliveries left", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sent < half {
			return fmt.Errorf("%d of %d", s.sent, half)
		}
		return nil
	})
	if round%2 == 0 {
		s.Hub.Kill()
		s.Eventually(time.Minute, "GitHub has missed it", func() error {
			log := s.gh.Delivered()
			if log[len(log)-1].Status != 0 {
				return errors.New("the last attempt was taken")
			}
			return nil
		})
		s.StartHub()
	} else {
		s.second.Kill()
		s.startSecond()
	}
	for i := 0; ; i++ { // what is lacking
		s.mu.Lock()
		left := s.target - s.sent
		s.mu.Unlock()
		if left <= 0 {
			break
		}
		p := s.pulls[i%len(s.pulls)]
		s.gh.Send(s.app.ID, "pull_request", fmt.Appendf(nil, `{"action":"synchronize","repository":{"id":%d},"pull_request":{"number":%d}}`, p.Repo.ID, p.Number))
		s.settle()
	}
	<-s.reached
	s.settle()
	result.deliveries = s.sent
}

// pullCount is how many pull requests there are: each has a change in each round.
func pullCount() int { return max(3, *deliveries/200) }

func (s *storm) settle() {
	s.t.Helper()
	if err := s.gh.Settle(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// count is one number of the database.
func (s *storm) count(query string) (n int) {
	s.t.Helper()
	if err := s.db.Read(s.t.Context(), func(tx *store.Tx) error { return tx.Row(query).Scan(&n) }); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// tested waits until so many changes have passed their Test builds.
func (s *storm) tested(changes int) {
	s.t.Helper()
	if err := world.Poll(s.t.Context(), 4*time.Minute, func() error {
		if n := s.count(`SELECT COUNT(DISTINCT test_key) FROM test_builds WHERE state = 'passed'`); n != changes {
			return fmt.Errorf("%d of %d changes passed; %d Test builds, %d deliveries wait", n, changes,
				s.count(`SELECT COUNT(*) FROM test_builds`), s.count(`SELECT COUNT(*) FROM deliveries WHERE state = 'waiting'`))
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
}

// faults are what is wrong with the checks of a commit whose Test build has passed.
func faults(repo githubtest.Repo, sha string) (all []string) {
	byName, ids := map[string][]githubtest.Check{}, map[string]bool{}
	for _, c := range repo.Checks(sha) {
		if c.Status != "completed" {
			all = append(all, fmt.Sprintf("%s of %s at %s is %s", c.Name, repo.FullName(), sha, c.Status))
		}
		if ids[c.ExternalID] {
			all = append(all, fmt.Sprintf("%s of %s at %s is there twice as %s", c.Name, repo.FullName(), sha, c.ExternalID))
		}
		ids[c.ExternalID] = true
		byName[c.Name] = append(byName[c.Name], c)
	}
	for _, name := range []string{"Environment", "Environment / Test build"} {
		n := len(byName[name])
		if n == 0 || byName[name][n-1].Conclusion != "success" {
			all = append(all, fmt.Sprintf("%s of %s at %s doesn't say at last that it succeeded: %+v", name, repo.FullName(), sha, byName[name]))
		}
	}
	if n := len(byName["Environment / Test build"]); n > 1 {
		all = append(all, fmt.Sprintf("the one Test build of %s at %s has %d check runs", repo.FullName(), sha, n))
	}
	return all
}

// atRest looks at what is left when all was delivered.
func (s *storm) atRest() {
	s.t.Helper()
	var open []string
	_ = world.Poll(s.t.Context(), stuckAfter, func() error { // what is open then is stuck
		open = nil
		for repo, commits := range s.commits {
			for _, sha := range commits {
				open = append(open, faults(repo, sha)...)
			}
		}
		if len(open) > 0 {
			return errors.New(open[0])
		}
		return nil
	})
	result.stuck = len(open)
	slices.Sort(open)
	for _, what := range open {
		s.t.Errorf("%s after all ended: %s", stuckAfter, what)
	}
	s.Eventually(time.Minute, "no delivery waits", func() error {
		if n := s.count(`SELECT COUNT(*) FROM deliveries WHERE state = 'waiting'`); n > 0 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	result.tests = s.count(`SELECT COUNT(*) FROM test_builds`)
	if result.tests != result.changes || s.runner.ran() != result.changes {
		s.t.Errorf("%d changes had %d Test builds, and the Runner ran %d", result.changes, result.tests, s.runner.ran())
	}
	if n := s.count(`SELECT COUNT(*) FROM deliveries WHERE state = 'aside'`); n != 0 {
		s.t.Errorf("%d deliveries were set aside", n)
	}
	s.Hub.Stop()
	s.second.Stop()
}
