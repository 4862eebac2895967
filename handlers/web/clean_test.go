package web

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/fleet"
)

func TestALineIsCleanedForAPage(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\ttext":                              "plain\ttext",
		"windows\r":                                "windows",
		" 10%\r 20%\r 30%":                         " 30%",
		" 10%\r 20%\r\r":                           " 20%",
		"a\x00b\x07c\x08d\x7f":                     "abcd",
		"\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue":   "red blue",
		"\x1b[2Kerased\x1b[1A":                     "erased",
		"\x1b]0;title\x07text":                     "text",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b]52;c;aGVsbG8=\x07clipboard":          "clipboard",
		"\x1bP+q544e\x1b\\dcs":                     "dcs",
		"\x1b(Bcharset\x1b=keypad\x1bcreset":       "charsetkeypadreset",
		"broken \x1b[12":                           "broken ",
		"broken \x1b[1\u00e9tail":                  "broken \u00e9tail",
		"alone \x1b":                               "alone ",
		"\u009b31mc1":                              "31mc1",
		"latin \xe9 and \xff\xfe":                  "latin \ufffd and \ufffd\ufffd",
		"ümlaut 日本 🚀":                              "ümlaut 日本 🚀",
	} {
		if got := clean([]byte(in)); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b[0m\r\n\x1b]0;x\x07\xff\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text, took := lines(b)
		if took > len(b) || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\x00\r\x08\u009b") {
			t.Fatalf("%q took %d of %q", text, took, b)
		}
		if rest := clean(b[took:]); !utf8.ValidString(rest) || strings.ContainsAny(rest, "\x1b\x00\r\x08\n\u009b") && !strings.Contains(string(b[took:]), "\n") {
			t.Fatalf("rest %q of %q", rest, b)
		}
	})
}

func TestALineThatNeverEndsIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", maxLine) // two bytes each
	s := stream{}
	var text strings.Builder
	for at := 0; at < len(long); at += 1001 {
		end := min(at+1001, len(long))
		text.WriteString(s.take(fleet.LogPart{Chunks: []fleet.LogChunk{{Offset: int64(at), Data: []byte(long[at:end])}}, Next: int64(end)}))
		if len(s.rest) > maxLine+1001 {
			t.Fatalf("%d bytes wait for a newline", len(s.rest))
		}
	}
	text.WriteString(clean(s.rest))
	if got := strings.ReplaceAll(text.String(), "\n", ""); got != long {
		t.Fatalf("%d bytes of %d, or other ones", len(got), len(long))
	}
	if s.read() != int64(len(long)) {
		t.Fatalf("came to %d", s.read())
	}
}

func TestHowALogIsCutDoesNotMatter(t *testing.T) {
	t.Parallel()
	log := "one\r\n10%\r99%\ntw\xc3\xa9\x1b[31m red\x1b[0m\nlast"
	want := "one\n99%\ntw\u00e9 red\n|last"
	for size := 1; size <= len(log); size++ {
		s := stream{}
		var text strings.Builder
		for at := 0; at < len(log); at += size {
			end := min(at+size, len(log))
			text.WriteString(s.take(fleet.LogPart{Chunks: []fleet.LogChunk{{Offset: int64(at), Data: []byte(log[at:end])}}, Next: int64(end)}))
		}
		if got := text.String() + "|" + clean(s.rest); got != want {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
}

func TestAGapInALogIsSaid(t *testing.T) {
	t.Parallel()
	s := stream{}
	text := s.take(fleet.LogPart{Chunks: []fleet.LogChunk{{Offset: 0, Data: []byte("head\nhal")}, {Offset: 2056, Data: []byte("tail\n")}}, Next: 2061})
	if text != "head\nhal\n[claude-hub: 2 KiB of this log were not kept]\ntail\n" || s.read() != 2061 {
		t.Fatalf("%q to %d", text, s.read())
	}
}
