package access_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
)

var forgets = map[string]func(r *rig) error{
	"repo":         func(r *rig) error { return r.ForgetRepo(r.t.Context(), github.RepoID(r.other.ID)) },
	"installation": func(r *rig) error { return r.ForgetInstallation(r.t.Context(), r.inst.ID) },
	"account":      func(r *rig) error { return r.ForgetAccount(r.t.Context(), r.org.ID) },
}

// asks waits until GitHub was asked for the Repos of n installations since.
func (r *rig) asks(since, n int) {
	r.t.Helper()
	eventually(r.t, "GitHub is asked for the Repos", func() bool {
		got := 0
		for _, q := range r.gh.Requests()[since:] {
			if strings.HasSuffix(q.Path, "/repositories") {
				got++
			}
		}
		return got >= n
	})
}

// A webhook that names a Repo, an installation or an organization drops whose access is stored, and must also reach who is just
// being asked about and isn't stored yet: else what GitHub said before stays for a whole Age.
func TestWhatIsToldOfARepoWhileGitHubFirstListsItIsNotLost(t *testing.T) {
	for name, forget := range forgets {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, r *rig) {
				r.inst.Add(r.other)
				r.repo.Allow(r.ana, "")
				r.other.Allow(r.ana, "")
				own := r.gh.Repo("ana/own", true, githubtest.Files{"README.md": githubtest.Text("own\n")})
				r.gh.Install(r.cred.ID, r.ana, r.ana, own)
				ana, _ := r.in(r.ana)
				r.mayNot(ana, r.other)
				r.advance(6 * time.Minute)
				r.other.Allow(r.ana, "read")
				since := len(r.gh.Requests())
				r.gh.Break(githubtest.Fault{Path: "/repositories", Delay: 500 * time.Millisecond, Times: 4}) // the answer is made before the delay
				first := make(chan error, 1)
				go func() {
					_, err := r.Repo(t.Context(), ana, github.RepoID(r.other.ID))
					first <- err
				}()
				r.asks(since, 2) // that about octo's is made
				r.other.Allow(r.ana, "")
				if err := forget(r); err != nil {
					t.Fatal(err)
				}
				<-first
				r.mayNot(ana, r.other)
			})
		})
	}
}

// The same, where the person signs in for the first time.
func TestWhatIsToldWhileSomebodySignsInFirstIsNotLost(t *testing.T) {
	forgets := map[string]func(r *rig) error{
		"person": func(r *rig) error { return r.ForgetPerson(r.t.Context(), r.ana.ID) },
		"repo":   forgets["repo"],
	}
	for name, forget := range forgets {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, r *rig) {
				r.inst.Add(r.other)
				own := r.gh.Repo("ana/own", true, githubtest.Files{"README.md": githubtest.Text("own\n")})
				r.gh.Install(r.cred.ID, r.ana, r.ana, own)
				since := len(r.gh.Requests())
				r.gh.Break(githubtest.Fault{Path: "/repositories", Delay: 500 * time.Millisecond, Times: 2})
				to, browser, err := r.BeginSignIn(t.Context(), "/")
				if err != nil {
					t.Fatal(err)
				}
				q := r.back(to, r.ana)
				done := make(chan error, 1)
				go func() {
					_, _, _, err := r.FinishSignIn(t.Context(), browser, q.Get("state"), q.Get("code"))
					done <- err
				}()
				r.asks(since, 2)
				r.other.Allow(r.ana, "")
				if err := forget(r); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if _, err := r.Sender(t.Context(), r.ana.ID, github.RepoID(r.other.ID)); err == nil {
					t.Fatal("ana has access to what she lost before she was in")
				}
			})
		})
	}
}

func TestWhoWasForgottenSignsInAgain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.repo.Allow(r.ana, "write")
		for range 2 {
			ana, _ := r.in(r.ana)
			if _, err := r.Repo(t.Context(), ana, github.RepoID(r.repo.ID)); err != nil {
				t.Fatal(err)
			}
			if err := r.ForgetPerson(t.Context(), r.ana.ID); err != nil {
				t.Fatal(err)
			}
			if err := r.ForgetRepo(t.Context(), github.RepoID(r.repo.ID)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
