package proposal

import (
	"strings"
	"testing"
)

// What a terminal alone understands is taken out of a block: it must not make a fence of what was none.
func TestABlockIsNotLeftByWhatIsTakenOutOfIt(t *testing.T) {
	t.Parallel()
	for _, between := range []string{"\x00", "\x1b[m", "\x1b[0;31m", "\u202e", "\ufffd"} {
		var m markdown
		m.block("", "last line\n``"+between+"`\n# heading [click](http://evil.example) @ana\n")
		lines := strings.Split(m.String(), "\n")
		fence := lines[0]
		for i, l := range lines[1 : len(lines)-1] {
			if strings.HasPrefix(strings.TrimSpace(l), fence) {
				t.Errorf("%q: line %d %q ends the block that %q began, and what follows is Markdown:\n%s", between, i+1, l, fence, m.String())
			}
		}
	}
}
