package cmd

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
)

func TestDocumentsInTheDocsAreRight(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../README.md", "../docs/environments.md"} {
		found := 0
		for _, block := range strings.Split(read(t, file), "```yaml\n")[1:] {
			document, _, _ := strings.Cut(block, "```")
			found++
			if _, problems := envspec.Check(file, []byte(document), func(string) ([]byte, error) { return []byte("true\n"), nil }); len(problems) > 0 {
				t.Errorf("%v in\n%s", problems, document)
			}
		}
		if found == 0 {
			t.Errorf("%s has no document", file)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Hidden || !c.HasParent() || c.Name() == "help" || c.Name() == "completion" || c.Parent().Name() == "completion" {
			return
		}
		seen++
		if c.Short == "" || c.Example == "" || !strings.Contains(c.Example, "claude-hub "+strings.TrimPrefix(c.CommandPath(), "claude-hub ")) {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
	}
	walk(rootCommand())
	if seen < 40 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// TestCommandsInTheDocsExist follows what the docs tell people to type down to a command.
func TestCommandsInTheDocsExist(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, file := range []string{"../README.md", "../docs/environments.md", "../docs/access.md", "../docs/github-app.md", "../docs/sessions.md"} {
		code := false
		for _, line := range strings.Split(read(t, file), "\n") {
			_, typed, ok := strings.Cut(line, "claude-hub ")
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if !ok || !code && !strings.HasPrefix(line, "    ") {
				continue
			}
			typed, _, _ = strings.Cut(typed, "#")
			typed = strings.ReplaceAll(typed, ")", "") // of a substitution
			seen++
			c, rest, err := rootCommand().Find(strings.Fields(typed))
			if err != nil || !c.HasParent() || c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %s: %v", file, line, err)
				continue
			}
			for _, word := range rest {
				if name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "="); strings.HasPrefix(word, "--") && name != "" && c.Flags().Lookup(name) == nil {
					t.Errorf("%s: %s has no flag %s", file, c.CommandPath(), word)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d commands were seen", seen)
	}
}
