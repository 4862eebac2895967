package forms

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// What the table says is what the programs themselves print.
func TestFormsAreWhatProgramsPrint(t *testing.T) {
	t.Parallel()
	const value = "a-first/line+b=c&d<e>\"f\"'g' h%20\n\\b $HOME é😀 ~#;|x\nand [a] {last}*?!^ one"
	programs := map[string]string{
		"base64":             `printf '%s.' "$V" | base64 -w0`,
		"base64-after-1":     `printf ':%s.' "$V" | base64 -w0`,
		"base64-after-2":     `printf '::%s.' "$V" | base64 -w0`,
		"hex":                `printf '%s' "$V" | od -An -v -tx1 | tr -d ' \n'`,
		"crlf":               `printf '%s' "$V" | sed 's/$/\r/' | head -c -1`,
		"indented":           `printf '%s' "$V" | sed "s/^/$(printf '\t')    /"`,
		"sh-backslash-quote": `printf '%s' "$V" | sed "s/'/'\\\\''/g"`,
		"bash-dollar-quote":  `LC_ALL=C.UTF-8 bash -c 'printf "%q" "$V"' | sed "s/^\\$'//; s/'$//"`,
		"raw":                `printf '%s' "$V"`,
	}
	seen := map[string]bool{}
	for _, f := range Table {
		if seen[f.Name] {
			t.Errorf("two forms are named %s", f.Name)
		}
		seen[f.Name] = true
		for _, p := range f.Print(value) {
			if len(p.Secret()) < 20 {
				t.Errorf("%s has only %q of the value", f.Name, p.Secret())
			}
		}
		script, ok := programs[f.Name]
		if !ok {
			continue
		}
		delete(programs, f.Name)
		c := exec.Command("bash", "-c", script)
		c.Env = append(c.Environ(), "V="+value)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v %s", f.Name, err, stderr.String())
		}
		if want := f.Print(value)[0].Text; strings.TrimSuffix(string(out), "\r") != want {
			t.Errorf("%s: the program prints\n%q, the table has\n%q", f.Name, out, want)
		}
	}
	if len(Table) != 25 || len(programs) != 0 {
		t.Errorf("%d forms; not in the table: %v", len(Table), programs)
	}
}

func TestOnlyWhatDependsOnTheValueCountsAsSecret(t *testing.T) {
	t.Parallel()
	for _, f := range Table {
		if !strings.HasPrefix(f.Name, "base64") {
			continue
		}
		a, b := f.Print("the same value"), f.Print("the same value")
		for i := range a {
			if a[i].Secret() != b[i].Secret() || !strings.Contains(a[i].Text, a[i].Secret()) {
				t.Errorf("%s: %q and %q", f.Name, a[i], b[i])
			}
		}
	}
}
