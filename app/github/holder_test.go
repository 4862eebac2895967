package github_test

import (
	"testing"

	"github.com/claude-hub/claude-hub/app/github"
)

func TestAHolderSaysThatThereIsNoAppUntilOneIsSet(t *testing.T) {
	t.Parallel()
	h := github.NewHolder(nil)
	if app, err := h.App(); app != nil || !github.NoApp.Is(err) {
		t.Fatalf("want no App, got %v, %v", app, err)
	}
	app := &github.App{}
	h.Set(app)
	if got, err := h.App(); got != app || err != nil {
		t.Fatalf("want the App that was set, got %v, %v", got, err)
	}
	h.Set(nil)
	if _, err := h.App(); !github.NoApp.Is(err) {
		t.Fatalf("want no App again, got %v", err)
	}
}
