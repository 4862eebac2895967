package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// nested is how deep values inside values are followed: a JSON document in a JSON string, the password in a URL.
const nested = 3

// forms are the ways a value is looked for (facts/reliability.md §1.4): itself, each longer line of it, each string in
// it when it is JSON, the password in it when it is a URL, and all of these as encoders and shells write them.
func forms(value []byte) [][]byte {
	seen := make(map[string]struct{})
	var all [][]byte
	add := func(f string) {
		if _, ok := seen[f]; !ok {
			seen[f] = struct{}{}
			all = append(all, []byte(f))
		}
	}
	gather(string(value), nested, add)
	return all
}

func gather(v string, depth int, add func(string)) {
	// What surrounds a value is often lost on the way: $(cat key) drops the newline. The forms of the trimmed value
	// are found inside those of the whole.
	trimmed := strings.TrimSpace(v)
	add(trimmed)
	if strings.Contains(trimmed, "\r\n") {
		encode(strings.ReplaceAll(trimmed, "\r\n", "\n"), add)
	}
	encode(trimmed, add)
	if lines := strings.FieldsFunc(trimmed, func(r rune) bool { return r == '\n' || r == '\r' }); len(lines) > 1 {
		for _, l := range lines {
			l = strings.TrimSpace(l)
			if c, _ := canonical([]byte(l)); len(c) >= MinLine && varied(c) {
				add(l)
				escapes(l, add)
			}
		}
	}
	if depth == 0 {
		return
	}
	for _, inner := range leaves(trimmed) {
		if Check([]byte(inner)) == nil {
			gather(inner, depth-1, add)
		}
	}
}

// varied refuses rules and fillers ("------------"): to mask each of them would spoil ordinary output and hide nothing.
func varied(b []byte) bool {
	for _, c := range b {
		if c != b[0] && c != b[len(b)-1] {
			return true
		}
	}
	return false
}

// leaves are the strings of a JSON document, and the password of a URL.
func leaves(v string) []string {
	var out []string
	if strings.HasPrefix(v, "{") || strings.HasPrefix(v, "[") || strings.HasPrefix(v, `"`) {
		var doc any
		d := json.NewDecoder(strings.NewReader(v))
		d.UseNumber()
		if d.Decode(&doc) == nil {
			walk(doc, &out)
		}
	}
	if strings.Contains(v, "://") && !strings.ContainsAny(v, " \n") {
		if u, err := url.Parse(v); err == nil && u.User != nil {
			if p, ok := u.User.Password(); ok {
				out = append(out, p)
			}
		}
	}
	return out
}

func walk(v any, out *[]string) {
	switch v := v.(type) {
	case string:
		*out = append(*out, v)
	case []any:
		for _, e := range v {
			walk(e, out)
		}
	case map[string]any:
		for _, e := range v {
			walk(e, out)
		}
	}
}

func encode(v string, add func(string)) {
	add(v)
	escapes(v, add)
	for _, f := range urlForms(v) {
		add(f)
	}
	h := hex.EncodeToString([]byte(v))
	add(h)
	add(strings.ToUpper(h))
	for shift := range 3 {
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			inside, ended := base64Inside(enc, v, shift)
			add(inside)
			add(ended)
		}
	}
}

// base64Inside is what of v's base64 depends on v alone when so many bytes (modulo 3) precede it. So it is found also
// as part of something longer, as in "user:password". The second result has the last character as well, as it is when
// the text or the line ends after v: it holds two or four bits of v's last byte.
func base64Inside(enc *base64.Encoding, v string, shift int) (inside, ended string) {
	s := enc.EncodeToString(append(make([]byte, shift), v...))
	first := (shift*8 + 5) / 6
	return s[first : (shift+len(v))*8/6], s[first:]
}

// escapes are the forms in which most bytes stay as they are.
func escapes(v string, add func(string)) {
	js := jsonString(v, false)
	add(js)
	add(jsonString(v, true))
	add(jsonASCII(js))
	add(strings.ReplaceAll(js, "/", `\/`))
	add(jsonString(js, false))
	add(jsonString(js, true))
	add(jsonString(jsonString(v, true), true))

	quoted := unquote(strconv.Quote(v))
	for _, q := range []string{quoted, unquote(strconv.QuoteToASCII(v)), hexEscapes(v)} {
		single := strings.ReplaceAll(strings.ReplaceAll(q, `\"`, `"`), `'`, `\'`)
		add(q)
		add(single)
		add(strings.ReplaceAll(q, `\"`, `"`))
	}
	add(strings.ReplaceAll(v, `"`, `\"`))
	add(strings.ReplaceAll(v, `'`, `\'`))
	add(strings.ReplaceAll(v, `"`, `""`))
	add(strings.ReplaceAll(v, `'`, `''`))

	add(strings.ReplaceAll(v, `'`, `'\''`))
	add(strings.ReplaceAll(v, `'`, `'"'"'`))
	add(backslashed(v, "\"$`\\"))
	add(backslashed(v, "\"$`\\!"))
	add(bashQuoted(v))
	add(ansiC(v, false))
	add(ansiC(v, true))
	add(traced(v, false))
	add(traced(v, true))
	add(ashTraced(v))
	add(strings.Trim(ashQuoted(v), "'\""))

	add(html.EscapeString(v))
	add(strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;", `"`, "&quot;", `'`, "&#39;").Replace(v))
	add(strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;", `"`, "&quot;", `'`, "&#x27;").Replace(v))
	add(strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;", `"`, "&quot;", `'`, "&apos;").Replace(v))
	add(strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;").Replace(v))
	add(strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;", `"`, "&quot;").Replace(v))
	var b bytes.Buffer
	if xml.EscapeText(&b, []byte(v)) == nil {
		add(b.String())
	}
}

func unquote(s string) string { return s[1 : len(s)-1] }

func jsonString(v string, escapeHTML bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(escapeHTML)
	if err := e.Encode(v); err != nil {
		return v
	}
	return unquote(strings.TrimSuffix(b.String(), "\n"))
}

// jsonASCII is JSON as encoders write it that keep to ASCII, Python's among them.
func jsonASCII(js string) string {
	var b strings.Builder
	for _, r := range js {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// hexEscapes is how Python and others write bytes that are not printable ASCII.
func hexEscapes(v string) string {
	var b strings.Builder
	for i := range len(v) {
		switch c := v[i]; {
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\\' || c == '"':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func backslashed(v, special string) string {
	var b strings.Builder
	for i := range len(v) {
		if strings.IndexByte(special, v[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(v[i])
	}
	return b.String()
}

// bashQuoted is bash's printf %q for a value without control bytes; '~' and '#' are special at the beginning only.
func bashQuoted(v string) string {
	q := backslashed(v, " \t!\"$&'()*,;<>?[\\]^`{|}")
	if strings.HasPrefix(v, "~") || strings.HasPrefix(v, "#") {
		return `\` + q
	}
	return q
}

// traced is how bash's set -x prints the words of a value that was not quoted.
func traced(v string, ascii bool) string {
	words := strings.Fields(v)
	for i, w := range words {
		switch {
		case strings.ContainsAny(w, "'\"\\|&;()<>!{}*[?]^$`") || w[0] == '~' || w[0] == '#' ||
			strings.Contains(w, "=~") || strings.Contains(w, ":~"):
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		default:
			if q := ansiC(w, ascii); q != w {
				words[i] = "$'" + q + "'"
			}
		}
	}
	return strings.Trim(strings.Join(words, " "), "$'")
}

// ansiC is the inside of bash's $'…', with which it quotes values that hold control bytes.
func ansiC(v string, ascii bool) string {
	var b strings.Builder
	for i := range len(v) {
		switch c := v[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == esc:
			b.WriteString(`\E`)
		case c >= '\a' && c <= '\r':
			b.WriteByte('\\')
			b.WriteByte("abtnvfr"[c-'\a'])
		case c < ' ' || c == 0x7f || ascii && c >= 0x80:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// urlForms are the percent-encodings in use. They differ in what they leave alone and in the case of the digits.
func urlForms(v string) []string {
	var out []string
	for _, leave := range []string{
		"-._~",                 // RFC 3986, Go's QueryEscape, Python's quote with safe=''
		"-._~/",                // Python's quote
		"-_.!~*'()",            // encodeURIComponent
		"-_.!~*'();/?:@&=+$,#", // encodeURI
		"-._~$&+=:@",           // Go's PathEscape
		"-._~$&+,;=",           // Go's Userinfo
		"*-._",                 // HTML forms, Java
	} {
		upper, lower := percent(v, leave, "0123456789ABCDEF"), percent(v, leave, "0123456789abcdef")
		out = append(out, upper, lower)
		if strings.Contains(v, " ") && !strings.Contains(leave, "+") {
			out = append(out, strings.ReplaceAll(upper, "%20", "+"), strings.ReplaceAll(lower, "%20", "+"))
		}
	}
	return out
}

func percent(v, leave, digits string) string {
	var b strings.Builder
	for i := range len(v) {
		c := v[i]
		if alnum(c) || strings.IndexByte(leave, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}
