package kill

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// numbered is a part of a script: it prints numbered lines, every seventh of them long. A line names the script, the round, and
// the boot it was printed in, so that a log says itself what it should hold.
func numbered(name string, round, burst, slow int) string {
	return fmt.Sprintf(`boot=$(sed 's/.*) //' /proc/1/stat | cut -d' ' -f20)
i=0
while [ $i -lt %[3]d ]; do
  pad=
  [ $((i %% 7)) -eq 3 ] && pad=$(head -c $((i * 97 %% 30000)) /dev/zero | tr '\0' x)
  echo "KILL %[1]s %[2]d $boot $i $pad"
  i=$((i + 1))
  [ $i -le %[4]d ] || sleep 0.05
done
`, name, round, burst+slow, burst)
}

func padding(i int) int {
	if i%7 == 3 {
		return i * 97 % 30000
	}
	return 0
}

var numberedLine = regexp.MustCompile(`^KILL (\S+) (-?\d+) (\d+) (\d+) (x*)$`)

// output is what a log holds of one run of one script.
type output struct {
	name        string
	round       int
	boot        string
	next        int // lines it has, without a gap
	lost, twice int
}

// readLines finds the numbered lines of a log, in the order of their first. broken are lines that are none any more.
func readLines(log []byte) (runs []*output, broken []string) {
	byKey := map[string]*output{}
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte("KILL ")) {
			if bytes.Contains(line, []byte("xx")) {
				broken = append(broken, short(line))
			}
			continue
		}
		m := numberedLine.FindSubmatch(bytes.TrimSuffix(line, []byte("\n")))
		if m == nil {
			broken = append(broken, short(line))
			continue
		}
		key := fmt.Sprintf("%s %s %s", m[1], m[2], m[3])
		o := byKey[key]
		if o == nil {
			round, _ := strconv.Atoi(string(m[2])) // digits, by the expression
			o = &output{name: string(m[1]), round: round, boot: string(m[3])}
			byKey[key] = o
			runs = append(runs, o)
		}
		i, err := strconv.Atoi(string(m[4]))
		if err != nil || len(m[5]) != padding(i) {
			broken = append(broken, short(line))
		}
		switch {
		case i < o.next:
			o.twice++
		default:
			o.lost += i - o.next
			o.next = i + 1
		}
	}
	return runs, broken
}

func short(line []byte) string {
	if len(line) > 80 {
		return fmt.Sprintf("%.40q…%.40q (%d bytes)", line[:40], line[len(line)-40:], len(line))
	}
	return fmt.Sprintf("%q", line)
}

// The checks of this test have to be able to fail.
func TestMissingRepeatedAndBrokenLinesAreFound(t *testing.T) {
	t.Parallel()
	line := func(i int) string {
		return fmt.Sprintf("KILL boot 1 77 %d %s\n", i, strings.Repeat("x", padding(i)))
	}
	for name, c := range map[string]struct {
		log                       string
		next, lost, twice, broken int
	}{
		"whole":     {"==> x\n" + line(0) + line(1) + line(2) + line(3), 4, 0, 0, 0},
		"missing":   {line(0) + line(2) + line(3), 4, 1, 0, 0},
		"no first":  {line(1), 2, 1, 0, 0},
		"twice":     {line(0) + line(1) + line(1) + line(2), 3, 0, 1, 0},
		"disorder":  {line(1) + line(0), 2, 1, 1, 0},
		"cut":       {line(0) + line(1) + line(2) + strings.TrimSuffix(line(3), "xx\n") + "\n", 4, 0, 0, 1},
		"torn":      {line(0) + "KILL boot 1 7\n7 1 \n", 1, 0, 0, 1},
		"torn tail": {line(0) + line(1) + line(2) + line(3) + "==> a mark\nxxx\n", 4, 0, 0, 1},
	} {
		runs, broken := readLines([]byte(c.log))
		if len(runs) != 1 || len(broken) != c.broken {
			t.Errorf("%s: %d runs, broken: %q", name, len(runs), broken)
			continue
		}
		if o := runs[0]; o.next != c.next || o.lost != c.lost || o.twice != c.twice || o.name != "boot" || o.round != 1 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
