package githubtest_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
)

func TestListensWhereItIsTold(t *testing.T) {
	t.Parallel()
	first := checked.New(t, githubtest.Options{})
	taken := strings.TrimPrefix(first.URLs().Web, "http://")
	for name, o := range map[string]githubtest.Options{
		"a taken address":            {Folder: t.TempDir(), Web: taken},
		"a taken address of the API": {Folder: t.TempDir(), API: taken},
		"no folder":                  {},
	} {
		if s, err := githubtest.New(o); err == nil {
			s.Close()
			t.Errorf("%s: it started", name)
		}
	}
	first.Close()
	again, err := githubtest.New(githubtest.Options{Folder: t.TempDir(), Web: taken, GHES: true})
	for tries := 0; errors.Is(err, syscall.EADDRINUSE) && tries < 20; tries++ { // something else on this host took it meanwhile
		first = checked.New(t, githubtest.Options{})
		taken = strings.TrimPrefix(first.URLs().Web, "http://")
		first.Close()
		again, err = githubtest.New(githubtest.Options{Folder: t.TempDir(), Web: taken, GHES: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if u := again.URLs(); u.Web != "http://"+taken || u.API != u.Web+"/api/v3" || u.GraphQL != u.Web+"/api/graphql" {
		t.Errorf("got %+v", u)
	}
}
