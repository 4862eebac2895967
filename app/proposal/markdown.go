package proposal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/runner/redact"
)

// markdown is text for a check run. What others wrote goes into it by escape, codeSpan or block only.
type markdown struct{ b strings.Builder }

func (m *markdown) heading(s string)   { m.b.WriteString("### " + s + "\n\n") }
func (m *markdown) paragraph(s string) { m.b.WriteString(s + "\n\n") }
func (m *markdown) item(s string)      { m.b.WriteString("- " + s + "\n") }
func (m *markdown) end()               { m.b.WriteString("\n") }

// block shows text as it is: its fence is longer than any in it.
func (m *markdown) block(language, text string) {
	text = strings.TrimRight(plain(text), "\n") // before it is measured: what is taken out may have kept backticks apart
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	m.b.WriteString(fence + language + "\n" + text + "\n" + fence + "\n\n")
}

func (m *markdown) String() string { return strings.TrimSpace(m.b.String()) }

// escape makes text of others mean nothing in Markdown: no link, no mention, no HTML, one line.
func escape(s string) string {
	var b strings.Builder
	s = unlinked.ReplaceAllString(strings.Join(strings.Fields(plain(s)), " "), "$1\u200b")
	for _, r := range s {
		switch {
		case r == '@': // GitHub looks for mentions after Markdown
			b.WriteString("@\u200b")
			continue
		case strings.ContainsRune("\\`*_{}[]<>#|~&!$", r):
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unlinked is what GitHub makes links of by itself.
var unlinked = regexp.MustCompile(`(?i)(https?:|ftp:|www|mailto:|xmpp:)`)

// codeSpan is text between backticks.
func codeSpan(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(plain(s)), " "), "`", "'")
}

var ansi = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\-_])")

// plain is text without what only a terminal understands.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) || r == utf8.RuneError {
			return -1
		}
		return r
	}, ansi.ReplaceAllString(s, ""))
}

// shapes masks what is shaped like a token or a key. Values are masked where they are known, on the Runner.
var shapes redact.Set

func masked(s string) redact.Text { return shapes.Text(s) }

// fit shortens s to so many characters.
func fit(s string, runes int) string {
	if utf8.RuneCountInString(s) <= runes {
		return s
	}
	return string([]rune(s)[:runes-1]) + "…"
}

// clip shortens s to so many bytes.
func clip(s string, bytes int) string {
	if len(s) <= bytes {
		return s
	}
	for bytes > 0 && !utf8.RuneStart(s[bytes]) {
		bytes--
	}
	return s[:bytes]
}

func sentence(s string) string {
	if s == "" || strings.ContainsAny(s[len(s)-1:], ".!?") {
		return s
	}
	return s + "."
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// buttonOf names a Runner in the 20 characters that GitHub has for it.
func buttonOf(r fleet.Runner) string {
	h := sha256.Sum256([]byte(r.ID))
	return "test-" + hex.EncodeToString(h[:])[:15]
}
