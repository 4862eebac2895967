package redact

import (
	"os/exec"
	"strings"
	"testing"
)

func TestWhatBusyboxTracesIsMasked(t *testing.T) {
	t.Parallel()
	const busybox = "/bin/busybox"
	for _, v := range []string{
		"QWERTYUIOP \\b $HOME é😀 ~#;|x",
		"it's 'all' ''here'' now'",
		"'begins and ends'",
		"k-1/a+b=c&d<e>\"f\"'g' h%20\nend [a] WORD {b}*?!^ z",
		"plain-words only: with,some.marks@here_",
	} {
		var set Set
		if err := set.Add("V", []byte(v)); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(busybox, "sh", "-fxc", `: $V "$V"`)
		c.Env = []string{"V=" + v}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s\n%s needs the Debian package busybox-static", err, out, busybox)
		}
		got := set.Text(string(out)).String()
		if left := strings.Trim(strings.ReplaceAll(got, Mask, ""), "+: '\"\n"); left != "" || strings.Count(got, Mask) != 2 {
			t.Errorf("of %q is left: %q (printed %q)", v, got, out)
		}
	}
}
