package redact

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

var rounds = flag.Int("rounds", 20_000, "how many random streams the property test goes through")

// The oracle below is the rule of the package written a second time, the slow and obvious way, with nothing shared:
// the whole stream at once, every needle looked for at every place.

// oracleText gives the places of the bytes that are text. It reads escape sequences as whole pieces.
func oracleText(s string, strip bool) (places []int) {
	for i := 0; i < len(s); {
		if strip && s[i] == '\x1b' {
			i = oracleEscape(s, i)
			continue
		}
		if !strings.ContainsRune("\x00\x01\x02\x03\x04\x05\x06\a\b\t\n\v\f\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17"+
			"\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f \x7f", rune(s[i])) || s[i] >= 0x80 {
			places = append(places, i)
		}
		i++
	}
	return places
}

// oracleEscape is the end of the escape sequence at i.
func oracleEscape(s string, i int) int {
	cut := func(c byte) bool { return c == '\x18' || c == '\x1a' }
	silent := func(c byte) bool { return (c < ' ' || c == '\x7f') && !cut(c) && c != '\x1b' }
	i++
	for i < len(s) && silent(s[i]) {
		i++
	}
	if i == len(s) || s[i] >= 0x80 || s[i] == '\x1b' {
		return i
	}
	if cut(s[i]) {
		return i + 1
	}
	kind := s[i]
	i++
	middle := ""
	switch {
	case strings.IndexByte("]PX^_", kind) >= 0:
		for ; i < len(s) && s[i] != '\x1b'; i++ {
			if s[i] == '\a' || s[i] == '\n' || cut(s[i]) {
				return i + 1
			}
		}
		return i
	case kind == '[':
		middle = " !\"#$%&'()*+,-./0123456789:;<=>?"
	case kind < '0':
		middle = " !\"#$%&'()*+,-./"
	default:
		return i
	}
	for ; i < len(s); i++ {
		switch {
		case cut(s[i]):
			return i + 1
		case s[i] == '\x1b' || s[i] >= 0x80:
			return i
		case !silent(s[i]) && strings.IndexByte(middle, s[i]) < 0:
			return i + 1
		}
	}
	return i
}

func oraclePick(s string, places []int) string {
	var b strings.Builder
	for _, p := range places {
		b.WriteByte(s[p])
	}
	return b.String()
}

// oracle redacts s for needles that are text already.
func oracle(s string, needles []string) string {
	type span struct{ from, to int }
	var spans []span
	for _, strip := range []bool{false, true} {
		places := oracleText(s, strip)
		t := oraclePick(s, places)
		for _, n := range needles {
			for from := 0; ; {
				i := strings.Index(t[from:], n)
				if i < 0 {
					break
				}
				i += from
				spans = append(spans, span{places[i], places[i+len(n)-1] + 1})
				from = i + 1
			}
		}
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].from < spans[j].from })
	var out strings.Builder
	at := 0
	for i := 0; i < len(spans); {
		u := spans[i]
		for i++; i < len(spans) && spans[i].from < u.to; i++ {
			u.to = max(u.to, spans[i].to)
		}
		out.WriteString(s[at:u.from])
		out.WriteString("***")
		at = u.to
	}
	return out.String() + s[at:]
}

// cut writes s in random pieces and returns what came out.
func cut(tb testing.TB, set *Set, r *rand.Rand, s string, most int) string {
	var out strings.Builder
	w := set.Writer(func(t Text) error {
		if t.Len() == 0 {
			tb.Error("the sink got an empty text")
		}
		out.WriteString(t.String())
		return nil
	})
	for rest := s; rest != ""; {
		n := min(len(rest), 1+r.IntN(most))
		if _, err := w.Write([]byte(rest[:n])); err != nil {
			tb.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if w.Held() != 0 {
		tb.Errorf("%d bytes are still held after Close", w.Held())
	}
	return out.String()
}

// randomStream is made to be difficult: pieces of values and of their forms, cut short, run together, stretched by
// white space and escape sequences.
func randomStream(r *rand.Rand, values []string, needles []string, alphabet string) string {
	var b strings.Builder
	for range 1 + r.IntN(12) {
		var piece string
		switch r.IntN(4) {
		case 0:
			for range r.IntN(12) {
				piece += string(alphabet[r.IntN(len(alphabet))])
			}
		case 1:
			piece = needles[r.IntN(len(needles))]
		default:
			piece = values[r.IntN(len(values))]
		}
		if len(piece) > 0 && r.IntN(3) == 0 {
			from := r.IntN(len(piece))
			piece = piece[from : from+r.IntN(len(piece)-from+1)]
		}
		noise := r.IntN(4)
		for i := range len(piece) {
			b.WriteByte(piece[i])
			if noise == 0 && r.IntN(4) == 0 {
				noises := []string{"\n", " ", "\r\n\t", "\x00", "\x1b[31m", "\x1b[0m", "\x1b]0;t\a", "\x1b(B", "\x1b", "\x1b[",
					"\x1b]", "\x7f", "\x1b[3\x18", "\x1bPq\x1b\\", "\u00e9"}
				b.WriteString(noises[r.IntN(len(noises))])
			}
		}
	}
	return b.String()
}

func needlesOf(set *Set) (all []string) {
	for _, n := range set.needles {
		if n.shape == nil {
			all = append(all, string(n.b))
		}
	}
	return all
}

func TestRandomStreamsComeOutAsTheOracleSaysHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	alphabets := []string{"ab", "abc", "aA1", `x"\`, "k&'", "e/+ ", "é\nz"}
	masked := 0
	for round := 0; round < *rounds; {
		r := rand.New(rand.NewPCG(7, uint64(round)))
		alphabet := alphabets[r.IntN(len(alphabets))]
		var set Set
		var values []string
		for range 1 + r.IntN(4) {
			var b strings.Builder
			for range 8 + r.IntN(30) {
				b.WriteByte(alphabet[r.IntN(len(alphabet))])
			}
			if set.Add("V", []byte(b.String())) == nil {
				values = append(values, b.String())
			}
		}
		if len(values) == 0 {
			round++
			continue
		}
		needles := needlesOf(&set)
		for range 20 {
			round++
			s := randomStream(r, values, needles, alphabet)
			want := oracle(s, needles)
			got := cut(t, &set, r, s, 1+r.IntN(20))
			if got != want {
				t.Fatalf("round %d:\nvalues %q\nstream %q\ngot    %q\nwant   %q", round, values, s, got, want)
			}
			if whole := set.Text(s).String(); whole != want {
				t.Fatalf("round %d: in one piece\nvalues %q\nstream %q\ngot    %q\nwant   %q", round, values, s, whole, want)
			}
			left := oraclePick(got, oracleText(got, false))
			for _, n := range needles {
				if strings.Contains(left, n) {
					t.Fatalf("round %d: %q is left in %q", round, n, got)
				}
			}
			if got != s {
				masked++
			}
		}
	}
	if masked < *rounds/3 {
		t.Errorf("only %d of %d streams held a value: the test tests little", masked, *rounds)
	}
}

func TestOracleFindsWhatIsThere(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"x secretvalue y":                  "x *** y",
		"se\ncr\x1b[31met\x1b[0mva lue":    "***",
		"\x1b]0;secretvalue\a.":            "\x1b]0;***\a.",
		"secretvaluesecretvalue":           "******",
		"secretvalu":                       "secretvalu",
		"\x1b[secretvalue":                 "\x1b[***",
		"secretvaluecretvalue.secretvalue": "***cretvalue.***",
	} {
		if got := oracle(in, []string{"secretvalue"}); got != want {
			t.Errorf("oracle(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzRedact looks for a stream whose result depends on how it was cut, or lets a value through.
func FuzzRedact(f *testing.F) {
	f.Add("secretvalue", "x secretvalue y\x1b[1mse\x1b[0mcretvalue", uint64(1))
	f.Add("aaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaa", uint64(2))
	f.Add(`{"a":"b c d e f g h i"}`, `b c d e f g h i`, uint64(3))
	f.Add("-----BEGIN PRIVATE KEY"+dashes+"\nMIIE\n-----END PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY"+dashes+"\nMIIExy\n", uint64(4))
	f.Add("p@ss:w/rd \xff\x00x1", "ghp_"+"0123456789012345678901234567890123456789 github_pat_", uint64(5))
	f.Add("\x1b[31mred\x1b[0m value", "\x1b[31mred\x1b[0m value", uint64(6))
	f.Fuzz(func(t *testing.T, value, stream string, seed uint64) {
		if len(value) > 1000 || len(stream) > 5000 {
			return
		}
		var set Set
		if set.Add("V", []byte(value)) != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 9))
		for _, s := range []string{stream, stream + value, value[:len(value)/2] + stream + value[len(value)/2:], stream + value + stream} {
			whole := set.Text(s).String()
			if got := cut(t, &set, r, s, 7); got != whole {
				t.Fatalf("the result depends on the cuts:\nstream %q\nwhole  %q\ncut    %q", s, whole, got)
			}
			if strings.ContainsRune(value, '*') {
				continue
			}
			for _, n := range needlesOf(&set) {
				if left := oraclePick(whole, oracleText(whole, false)); strings.Contains(left, n) {
					t.Fatalf("%q is left in %q", n, whole)
				}
			}
		}
	})
}

func ExampleSet() {
	var set Set
	if err := set.Add("DB_PASSWORD", []byte("correct horse")); err != nil {
		fmt.Println(err)
	}
	w := set.Writer(func(t Text) error {
		fmt.Print(t)
		return nil
	})
	for _, part := range []string{"connecting with correct ho", "rse as root\n", "Y29ycmVjdCBob3JzZQ==\n"} {
		if _, err := w.Write([]byte(part)); err != nil {
			fmt.Println(err)
		}
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(w.Found())
	// Output:
	// connecting with *** as root
	// ***==
	// [DB_PASSWORD]
}
