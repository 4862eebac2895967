package redact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
)

type collector struct{ strings.Builder }

func (c *collector) sink(t Text) error { c.WriteString(t.String()); return nil }

func write(tb testing.TB, w *Writer, s string) {
	tb.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		tb.Fatal(err)
	}
}

func shut(tb testing.TB, w *Writer) {
	tb.Helper()
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
}

func TestShapesAreMaskedWithoutBeingAdded(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("aB3", 12)
	jwt := "eyJhbGciOiJSUzI1NiJ9.eyJpYXQiOjE3NjQ1MDAwMDAsImlzcyI6IjEyMyJ9.c2ln-bmF0_dXJl" + strings.Repeat("x", 300)
	key := "-----BEGIN RSA PRIVATE KEY" + dashes + "\nProc-Type: 4,ENCRYPTED\n\nMIIEpAIBAAKCAQEA7bq\nq+/x==\n-----END RSA PRIVATE KEY-----"
	for in, want := range map[string]string{
		"ghp_" + body:                               "***",
		"gho_" + body + " ghu_" + body:              "*** ***",
		"ghr_" + body + "\nnext line":               "***\nnext line",
		"x-access-token:ghs_" + body + "@github":    "x-access-token:***@github",
		"token ghs_123456_" + jwt + " end":          "token *** end",
		"github_pat_" + body + "_" + body + ".":     "***.",
		"\x1b[01;31mghp_\x1b[m\x1b[K" + body + " x": "\x1b[01;31m*** x",
		"ghp_tooshort":                              "ghp_tooshort",
		"ghp _" + body:                              "ghp _" + body,
		"ghx_" + body:                               "ghx_" + body,
		"github_path_of_the_repository_is_unknown":  "github_path_of_the_repository_is_unknown",
		key:                 "***",
		"a\n" + key + "\nb": "a\n***\nb",
		`{"k":"` + strings.ReplaceAll(key, "\n", `\n`) + `"}`:             `{"k":"***"}`,
		strings.ReplaceAll("\n"+key, "\n", "\n    "):                      "\n    ***",
		strings.ReplaceAll("\n"+key, "\n", "\napp_1  | "):                 "\napp_1  | ***",
		strings.ReplaceAll(key, "\n", "\x1b[0m\r\n\x1b[32m"):              "***",
		"-----BEGIN OPENSSH PRIVATE KEY" + dashes + "\nb3BlbnNzaC1rZXk\n": "***\n",
		"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-":        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-",
		"-----BEGIN":     "-----BEGIN",
		"-----BEGIN it!": "-----BEGIN it!",
	} {
		t.Run(fmt.Sprintf("%.40q", in), func(t *testing.T) {
			t.Parallel()
			var set Set
			if got := set.Text(in).String(); got != want {
				t.Errorf("%q came out as %q, want %q", in, got, want)
			}
			r := rand.New(rand.NewPCG(1, 1))
			for _, most := range []int{1, 2, 5, 40} {
				if got := cut(t, &set, r, in, most); got != want {
					t.Errorf("in pieces of up to %d bytes %q came out as %q, want %q", most, in, got, want)
				}
			}
		})
	}
}

func TestAShapeThatNeverEndsDoesNotHideTheRest(t *testing.T) {
	t.Parallel()
	var set Set
	for _, begin := range []string{"ghs_", "-----BEGIN PRIVATE KEY" + dashes + "\n"} {
		var c collector
		w := set.Writer(c.sink)
		write(t, w, begin)
		for range 100 {
			write(t, w, strings.Repeat("abcdefg ", 4)+strings.Repeat("0123456789", 100))
		}
		write(t, w, "\nthe end.\n")
		if held := w.Held(); held > 1 {
			t.Errorf("after %q %d bytes are held", begin, held)
		}
		if out := c.String(); !strings.Contains(out, "the end.") || len(out) < 80_000 {
			t.Errorf("after %q only %d bytes came out", begin, len(out))
		}
	}
}

func TestOnlyTheBeginningOfAValueIsHeld(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	var c collector
	w := set.Writer(c.sink)
	for _, step := range []struct {
		in, out string
		held    int
	}{
		{"hello ", "hello ", 0},
		{"listening\n", "listening\n", 0}, // a token has no white space after its first letter
		{"a Zec", "a ", 3},
		{"ret", "", 6},
		{" \x1b[1mval", "", 14},
		{"ve and", "Zecret \x1b[1mvalve and", 0},
		{"\nZecretvalue", "\n***", 0},
		{" Zecretvalu", " ", 10},
	} {
		c.Reset()
		write(t, w, step.in)
		if c.String() != step.out || w.Held() != step.held {
			t.Errorf("after %q: %q came out and %d bytes are held, want %q and %d", step.in, c.String(), w.Held(), step.out, step.held)
		}
	}
	c.Reset()
	if err := w.Flush(); err != nil || c.String() != "Zecretvalu" || w.Held() != 0 {
		t.Errorf("Flush: %v, %q came out, %d bytes are held", err, c.String(), w.Held())
	}
	if got := w.Found(); len(got) != 1 || got[0] != "V" {
		t.Errorf("Found() = %v", got)
	}
}

func TestAValueAddedWhileItsBeginningIsHeldIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, value, after, want string }{
		{"x Zecret", "cretother", "other y", "x Ze*** y"},      // its beginning lies in what is held
		{"x Zecretva", "retva1234", "1234 y", "x Zec*** y"},    // with less than a window of it there
		{"x Zecret\x1b[1m", "ecretx99", "x99", "x Z***"},       // across a colour change
		{"x Zecretvalu", "Zecretva", "", "x ***lu"},            // all of it is held
		{"x Zecret", "completely different", "value", "x ***"}, // and the first value is not forgotten
	} {
		var set Set
		addTo(t, &set, "FIRST", "Zecretvalue")
		var out collector
		w := set.Writer(out.sink)
		write(t, w, c.before)
		addTo(t, &set, "LATE", c.value)
		write(t, w, c.after)
		shut(t, w)
		if out.String() != c.want {
			t.Errorf("%q, then %q added, then %q: got %q, want %q", c.before, c.value, c.after, out.String(), c.want)
		}
	}
	var set Set
	var out collector
	w := set.Writer(out.sink)
	write(t, w, "nothing yet ")
	addTo(t, &set, "TOKEN", "tokentoken")
	write(t, w, "tokentoken")
	shut(t, w)
	if out.String() != "nothing yet ***" {
		t.Errorf("a value added to an empty set: %q", out.String())
	}
}

func TestReleaseShowsThreeCharactersOfAValueAtMost(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	release := func(w *Writer) {
		if err := w.Release(); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("typed one by one", func(t *testing.T) {
		t.Parallel()
		var c collector
		w := set.Writer(c.sink)
		for _, b := range "Zecretvalue" {
			write(t, w, string(b))
			release(w)
			release(w)
		}
		write(t, w, "!")
		if got := c.String(); got != "Zec***!" {
			t.Errorf("%q came out", got)
		}
	})
	t.Run("an ordinary word", func(t *testing.T) {
		t.Parallel()
		var c collector
		w := set.Writer(c.sink)
		write(t, w, "Z")
		release(w)
		if got := c.String(); got != "Z" || w.Held() != 0 {
			t.Errorf("%q came out, %d held", got, w.Held())
		}
		write(t, w, "ebra!")
		if got := c.String(); got != "Zebra!" {
			t.Errorf("%q came out", got)
		}
	})
	t.Run("with the colours a shell prints", func(t *testing.T) {
		t.Parallel()
		var c collector
		w := set.Writer(c.sink)
		write(t, w, "\x1b[32mZ\x1b[0m\x1b[K")
		release(w)
		if got := c.String(); got != "\x1b[32mZ\x1b[0m\x1b[K" {
			t.Errorf("%q came out", got)
		}
	})
	t.Run("in one go", func(t *testing.T) {
		t.Parallel()
		var c collector
		w := set.Writer(c.sink)
		write(t, w, "a Zecretval")
		release(w)
		release(w)
		if got := c.String(); got != "a Zec" {
			t.Errorf("%q came out", got)
		}
		write(t, w, "ue b")
		if got := c.String(); got != "a Zec*** b" {
			t.Errorf("%q came out", got)
		}
	})
	t.Run("in a window title", func(t *testing.T) {
		t.Parallel()
		var c collector
		w := set.Writer(c.sink)
		write(t, w, "\x1b]0;Zecretval")
		release(w)
		if got := c.String(); got != "\x1b]0;Zec" {
			t.Errorf("%q came out", got)
		}
	})
}

func TestAnotherWriterGoesOnWhereHeldSays(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "A", "aabaabaab")
	addTo(t, &set, "B", "baabcaab")
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		s := randomStream(r, []string{"aabaabaab", "baabcaab"}, needlesOf(&set), "abc ")
		want := set.Text(s).String()
		var c collector
		w := set.Writer(c.sink)
		stop := r.IntN(len(s) + 1)
		write(t, w, s[:stop])
		again := set.Writer(c.sink)
		write(t, again, s[stop-w.Held():])
		shut(t, again)
		// A stop inside an escape sequence forgets that it was one, which random streams of this test don't hold.
		if !strings.Contains(s, "\x1b") && c.String() != want {
			t.Fatalf("stopped after %d bytes of %q with %d held:\ngot  %q\nwant %q", stop, s, w.Held(), c.String(), want)
		}
	}
}

// A value added in the middle is looked for in all that is still held: it comes out as if another Writer, which knew it
// from the beginning, had taken the stream from there.
func TestAValueAddedAnywhereIsFoundInAllThatIsHeld(t *testing.T) {
	t.Parallel()
	changed := 0
	for round := range 3000 {
		r := rand.New(rand.NewPCG(11, uint64(round)))
		values := []string{"aabaabaab", "baabcaab", "ccabaabac"}
		var both Set
		for _, v := range values {
			addTo(t, &both, "V", v)
		}
		s := strings.ReplaceAll(randomStream(r, values, needlesOf(&both), "abc "), "\x1b", "")
		var set Set
		addTo(t, &set, "A", values[0])
		addTo(t, &set, "B", values[1])
		var c collector
		w := set.Writer(c.sink)
		stop := r.IntN(len(s) + 1)
		for rest := s[:stop]; rest != ""; {
			n := 1 + r.IntN(len(rest))
			write(t, w, rest[:n])
			rest = rest[n:]
		}
		want := c.String() + both.Text(s[stop-w.Held():]).String()
		if want != c.String()+set.Text(s[stop-w.Held():]).String() && w.Held() > 0 {
			changed++
		}
		addTo(t, &set, "C", values[2])
		write(t, w, s[stop:])
		shut(t, w)
		if c.String() != want {
			t.Fatalf("round %d: after %d bytes of %q:\ngot  %q\nwant %q", round, stop, s, c.String(), want)
		}
	}
	if changed < 50 {
		t.Errorf("the added value mattered in %d rounds only: the test tests little", changed)
	}
}

func TestHostileOutputIsBoundedInMemoryAndHidesNothingElse(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	addTo(t, &set, "A", strings.Repeat("a", 64<<10))
	for name, piece := range map[string]string{
		"white space":        strings.Repeat(" \n\x00", 3000),
		"a repeated value":   strings.Repeat("a", 9000),
		"colours":            strings.Repeat("\x1b[31m", 2000),
		"an endless title":   "\x1b]0;" + strings.Repeat("t", 5000),
		"beginnings":         strings.Repeat("Zecretvalu", 900),
		"beginnings, spaced": strings.Repeat("Z\x00\x00\x00\x00\x00\x00", 1300),
		"dashes":             strings.Repeat("-", 9000),
		"PEM headers":        strings.Repeat("-----BEGIN RSA PRIVATE KEY"+dashes+"\n", 300),
		"tokens":             strings.Repeat("ghp_", 2000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, most int
			last := ""
			w := set.Writer(func(t Text) error {
				out += t.Len()
				last = t.Tail(1, 100).String()
				return nil
			})
			write(t, w, "Zecret")
			for range 100 {
				for i := 0; i < len(piece); i += 100 {
					write(t, w, piece[i:min(i+100, len(piece))])
					most = max(most, w.Held())
				}
			}
			write(t, w, "\a\nvalue; and more.\n")
			shut(t, w)
			if most > 330<<10 {
				t.Errorf("%d bytes were held", most)
			}
			views := 2 * (len(w.plain.b) + 4*len(w.plain.place))
			if got := views + cap(w.held) + cap(w.text) + 40*(cap(w.plain.live)+cap(w.stripped.live)) + 16*cap(w.hits); got > 1<<20 {
				t.Errorf("the Writer uses %d bytes", got)
			}
			if !strings.Contains(last, "; and more.") {
				t.Errorf("the last that came out is %q", last)
			}
		})
	}
}

func TestAValueStretchedBeyondTheSpanIsMaskedInParts(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	r := rand.New(rand.NewPCG(8, 8))
	for _, at := range []int{1, 3, 5, 6, 8, 10} {
		s := "x " + "Zecretvalue"[:at] + strings.Repeat("\n", span+span/2) + "Zecretvalue"[at:] + " y"
		got := set.Text(s).String()
		if left := strings.Join(strings.Fields(got), ""); left != "x******y" && left != "x***y" {
			t.Errorf("stretched after %d bytes it came out as %q", at, left)
		}
		for _, most := range []int{100, 5000, 100_000} {
			if again := cut(t, &set, r, s, most); again != got {
				t.Errorf("in pieces of up to %d bytes it came out otherwise: %q", most, strings.Fields(again))
			}
		}
	}
	plain := "x Z" + strings.Repeat("\n", 2*span)
	var empty Set
	if got := empty.Text("x g" + plain).String(); got != "x g"+plain {
		t.Error("an empty set masked something")
	}
}

func TestASinkThatFailsStopsTheStream(t *testing.T) {
	t.Parallel()
	full := errors.New("the disk is full")
	var set Set
	calls := 0
	w := set.Writer(func(Text) error { calls++; return full })
	if n, err := w.Write([]byte("hello\n")); !errors.Is(err, full) || n != 0 {
		t.Errorf("Write = %d, %v", n, err)
	}
	for _, err := range []error{w.Flush(), w.Release(), w.Close()} {
		if !errors.Is(err, full) {
			t.Errorf("afterwards: %v", err)
		}
	}
	if calls != 1 {
		t.Errorf("the sink was called %d times", calls)
	}
}

func TestAClosedStreamTakesNothing(t *testing.T) {
	t.Parallel()
	var set Set
	var c collector
	w := set.Writer(c.sink)
	write(t, w, "gh")
	shut(t, w)
	shut(t, w)
	if _, err := w.Write([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if c.String() != "gh" {
		t.Errorf("%q came out", c.String())
	}
}

func TestManyStreamsRunWhileValuesAreAdded(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var c collector
			w := set.Writer(c.sink)
			for range 500 {
				write(t, w, "a Zecret")
				runtime.Gosched()
				write(t, w, "value b ")
				w.Held()
				if err := w.Release(); err != nil {
					t.Error(err)
				}
			}
			shut(t, w)
			if got := c.String(); strings.Contains(got, "Zecretv") || strings.Count(got, " b ") != 500 {
				t.Errorf("a stream lost or showed something: %.200q", got)
			}
		})
	}
	for i := range 200 {
		addTo(t, &set, "MORE", fmt.Sprintf("another value %d of many", i))
	}
	wg.Wait()
}

func TestTextIsMadeOfConstantsAndRedactedStrings(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", "Zecretvalue")
	got := Concat(Static("phase "), set.Textf("%s: %v at %q", "start", errors.New("bad Zecretvalue"), "/x"), Text{})
	if want := `phase start: bad *** at "/x"`; got.String() != want || got.Len() != len(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	b, err := json.Marshal(map[string]Text{"t": got})
	if err != nil || string(b) != `{"t":"phase start: bad *** at \"/x\""}` {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}

func TestTailKeepsLastLinesWithinBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in           string
		lines, bytes int
		want         string
	}{
		{"a\nb\nc\n", 2, 100, "b\nc\n"},
		{"a\nb\nc", 2, 100, "b\nc"},
		{"a\nb\nc\n", 9, 100, "a\nb\nc\n"},
		{"a\nb\nc\n", 9, 4, "b\nc\n"},
		{"a\nbb\nc\n", 9, 4, "c\n"},
		{"abcdef\n", 9, 4, "def\n"},
		{"aé€", 9, 3, "€"},
		{"aé€", 9, 4, "€"},
		{"\xff\xfe\xfd\xfc\xfb\xfa", 9, 3, "\xfc\xfb\xfa"},
		{"", 9, 3, ""},
		{"\n\n\n", 2, 9, "\n\n"},
		{"a\n", 0, 9, ""},
		{"a\n", 9, 0, ""},
	} {
		if got := (Text{c.in}).Tail(c.lines, c.bytes).String(); got != c.want {
			t.Errorf("Tail(%d, %d) of %q = %q, want %q", c.lines, c.bytes, c.in, got, c.want)
		}
		k := NewTail(c.lines, c.bytes)
		for _, b := range []byte(c.in) {
			if err := k.Add(Text{string([]byte{b})}); err != nil {
				t.Fatal(err)
			}
		}
		if got := k.Text().String(); got != c.want {
			t.Errorf("a Tail of %d lines, %d bytes after %q has %q, want %q", c.lines, c.bytes, c.in, got, c.want)
		}
	}
	k := NewTail(3, 50)
	for i := range 100_000 {
		if err := k.Add(Text{fmt.Sprintln("line", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := k.Text().String(); got != "line 99997\nline 99998\nline 99999\n" {
		t.Errorf("a long stream's tail is %q", got)
	}
	for in, want := range map[string]string{"abc": "abc", "abcdef": "abcd", "abc€": "abc", "ab€": "ab", "€€": "€"} {
		if got := (Text{in}).Head(4).String(); got != want {
			t.Errorf("Head(4) of %q = %q, want %q", in, got, want)
		}
	}
}

// dashes end a PEM header. They stand apart so that no scanner takes the headers in these tests for keys.
const dashes = "-----"

func TestKeptLengthHidesTheSameBytesHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	var set Set
	for name, v := range map[string]string{"A": "correct horse battery", "B": "battery staple\nline two of it"} {
		if err := set.Add(name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	in := "a correct horse battery staple\nline two of it z\r\n\x1b[31mcorrect\x1b[0m horse battery, tail\n" + strings.Repeat("plain ", 900) + "correct horse battery"
	whole := []byte(in)
	spans, _ := set.Find(whole)
	if len(spans) != 3 {
		t.Fatalf("found %v", spans)
	}
	for _, s := range spans {
		for i := s.From; i < s.To; i++ {
			if whole[i] != '\n' {
				whole[i] = '*'
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		var got collector
		w := set.Writer(got.sink).KeepLength()
		for rest := in; rest != ""; {
			n := min(len(rest), 1+rng.IntN(1+round*40))
			write(t, w, rest[:n])
			rest = rest[n:]
		}
		shut(t, w)
		if got.String() != string(whole) {
			t.Fatalf("round %d: got\n%q\nwant\n%q", round, got.String(), whole)
		}
	}
}
