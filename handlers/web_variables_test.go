package handlers_test

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestTheFormKeepsWhatItDoesNotShow(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	ana := s.Grant("ana")
	none := []envspec.Folder{}
	before := spec()
	before.Docker, before.Folders = true, &none
	before.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true, Build: true}, {Name: "REGION", Value: "eu-1"}}
	saved, err := s.Environments.Save(t.Context(), ana, 0, before, map[string][]byte{"NPM": []byte("npm-token-1")})
	if err != nil {
		t.Fatal(err)
	}
	s.as("ana").posted(repoPath+"/environment", draft(1, "debian:12", "echo changed", "", "2", ""))
	env, err := s.Environments.Get(t.Context(), ana)
	if err != nil {
		t.Fatal(err)
	}
	got := env.Draft.Spec
	if got.Image != "debian:12" || got.Bootstrap != "echo changed" || got.CPU != 2 {
		t.Errorf("what was typed isn't there: %+v", got)
	}
	if !got.Docker || got.Folders == nil || len(got.Variables) != 2 || got.Variables[0] != saved.Spec.Variables[0] || got.Variables[1].Value != "eu-1" {
		t.Errorf("what the form doesn't show is gone: %+v", got)
	}
}
