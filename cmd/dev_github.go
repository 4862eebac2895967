package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/setup"
)

// fakeGitHub is the GitHub that dev --fake-github runs beside the Hub: an Enterprise Server on loopback, in memory but for its
// repositories. It begins anew each time, with the same ids, so that what the Hub has of a Repo stays with it.
type fakeGitHub struct {
	*githubtest.Server
	ana, bob, org githubtest.Account
	repo          githubtest.Repo
	image         string
	proposing     sync.WaitGroup
}

// Close ends it after what still goes on in it.
func (gh *fakeGitHub) Close() {
	gh.proposing.Wait()
	gh.Server.Close()
}

// fakeListen is where it listens if that is free.
const fakeListen = "127.0.0.1:7781"

// startFakeGitHub starts one with its people; its Repos come with scene.
func startFakeGitHub(data string) (*fakeGitHub, error) {
	folder := filepath.Join(data, "fake-github")
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		return nil, fmt.Errorf("make the folder of the GitHub for development: %w", err)
	}
	s, err := githubtest.New(githubtest.Options{Folder: folder, GHES: true, Web: fakeListen})
	if err != nil {
		s, err = githubtest.New(githubtest.Options{Folder: folder, GHES: true})
	}
	if err != nil {
		return nil, fmt.Errorf("start the GitHub for development: %w", err)
	}
	gh := &fakeGitHub{Server: s, ana: s.Person("ana"), bob: s.Person("bob"), org: s.Org("octo")}
	gh.org.Admit(gh.ana, "admin")
	return gh, nil
}

// only makes the Hub a Hub of this GitHub: nobody comes by dev login, and no Repo by the config.
func (gh *fakeGitHub) only(cfg fileConfig) fileConfig {
	cfg.Dev = config.Dev{}
	cfg.GitHub = config.GitHub{URL: gh.URLs().Web}
	return cfg
}

const fakeRepo = "octo/wordcount"

// scene makes the Repo that there is to try: a private application with its Environment in the file. ana owns the
// organization; bob has no access.
func (gh *fakeGitHub) scene(image string) error {
	files := githubtest.Files{}
	for _, name := range []string{"app.py", "test_app.py", "README.md"} {
		b, err := exampleFiles.ReadFile("example/" + name)
		if err != nil {
			return err
		}
		files[name] = githubtest.Text(string(b))
	}
	for _, name := range []string{"bootstrap.sh", "start.sh"} {
		b, err := exampleFiles.ReadFile("example/" + name)
		if err != nil {
			return err
		}
		files[".claude-hub/"+name] = githubtest.Program(string(b))
	}
	gh.image = image
	files[".claude-hub/environment.yml"] = gh.document("")
	gh.repo = gh.Repo(fakeRepo, true, files)
	gh.repo.Allow(gh.ana, "admin")
	return nil
}

func (gh *fakeGitHub) document(more string) githubtest.File {
	return githubtest.Text("image: " + gh.image + "\nbootstrap:\n  file: .claude-hub/bootstrap.sh\nstart:\n  file: .claude-hub/start.sh\n" + more)
}

// propose opens a pull request that changes the Environment once the App is installed, so that it is answered at once. It waits
// for that until ctx ends.
func (gh *fakeGitHub) propose(ctx context.Context, s *setup.Service) {
	gh.proposing.Go(func() {
		for {
			changed := s.Changed()
			if all, err := s.Installations(ctx); err == nil && len(all) > 0 {
				gh.repo.Propose(gh.ana, "greeting", githubtest.Files{".claude-hub/environment.yml": gh.document("variables:\n  GREETING: hello\n")})
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	})
}

const fakeActor = "system: dev --fake-github"

// dropApp takes away the App of an earlier run: this GitHub doesn't know it.
func (gh *fakeGitHub) dropApp(ctx context.Context, cfg fileConfig) error {
	if _, missing := missingDatabase(cfg); missing {
		return nil
	}
	db, err := openExisting(ctx, cfg)
	if err != nil {
		return err
	}
	s := setup.New(db, seal.New(db, seal.Keys{}, seal.Columns()), github.NewHolder(nil), setup.Options{})
	return errors.Join(s.Drop(ctx, fakeActor), db.Close())
}

// ready says what to do, when Hub and Runner run.
func (gh *fakeGitHub) ready(ctx context.Context, h *hub, out io.Writer) error {
	gh.propose(ctx, h.setup)
	token, _, err := h.setup.NewToken(ctx, fakeActor, false)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, `
  claude-hub is ready: %s
  a GitHub for development: %s
    ana owns the organization octo and its Repo %s, which gets a pull request once the App is installed; bob has no access

  1. set the App up (the address works once):  %s
     as ana, for the organization octo
  2. install it, sign in as ana, and propose, test and merge on %s/%s
  Ctrl-C stops; the next start begins with a new GitHub, and without an App

`, h.url, gh.URLs().Web, fakeRepo, h.setup.URL(token), gh.URLs().Web, fakeRepo)
	return err
}
