package cmd

import (
	"strings"
	"testing"
)

func TestRegisteringSaysWhetherTheURLIsWrongOrTheHubAway(t *testing.T) {
	t.Parallel()
	for hub, want := range map[string]struct {
		code int
		says string
	}{
		"":                   {exitUsage, "say which Hub"},
		"127.0.0.1:7780":     {exitUsage, "must look like https://hub.example.com"},
		"http://127.0.0.1:1": {exitUnreachable, "can't reach the Hub at http://127.0.0.1:1"},
	} {
		root := rootCommand()
		root.SetIn(strings.NewReader("token"))
		root.SetArgs([]string{"runner", "register", "--data", t.TempDir(), "--name", "r1", "--hub", hub})
		err := root.Execute()
		if err == nil || exitCode(err) != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("--hub %q: got %v, want exit code %d and %q", hub, err, want.code, want.says)
		}
	}
}
