package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// One reaper owns every wait (facts/sandbox.md §2.9), so nothing in the agent may start or wait in another way.
func TestNothingButTheReaperWaits(t *testing.T) {
	t.Parallel()
	waits := map[string]string{}
	for _, dir := range []string{".", "stage"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), dir+"/"+e.Name(), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, im := range f.Imports {
				if im.Path.Value == `"os/exec"` {
					t.Errorf("%s/%s imports os/exec", dir, e.Name())
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					switch s.Sel.Name {
					case "Wait4", "Waitid", "StartProcess", "FindProcess", "ForkExec":
						waits[s.Sel.Name] = e.Name()
						if e.Name() != "reaper.go" {
							t.Errorf("%s/%s uses %s", dir, e.Name(), s.Sel.Name)
						}
					}
				}
				return true
			})
		}
	}
	if waits["Wait4"] == "" || waits["ForkExec"] == "" {
		t.Errorf("the reaper was not found: %v", waits)
	}
}
