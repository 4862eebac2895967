package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// What docs/isolation.md says is tried is worth nothing if the test was renamed or removed.
func TestEachTestThatADocumentNamesExists(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("docs/isolation.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("git", "grep", "-h", "^func Test", "--", "*_test.go").Output()
	if err != nil {
		t.Fatalf("git grep: %v", err)
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(doc), -1)
	if len(names) < 30 {
		t.Fatalf("only %d tests are named", len(names))
	}
	for _, n := range names {
		if !strings.Contains(string(out), "func "+n[1]+"(") {
			t.Errorf("docs/isolation.md names %s, and there is no such test", n[1])
		}
	}
}
