package redact

import "strings"

// ashTraced is how busybox's set -x prints the words of a value that was not quoted. Unlike bash it puts quotes around words with
// letters that are not ASCII, and has quotes of both kinds around quotes.
func ashTraced(v string) string {
	words := strings.Fields(v)
	for i, w := range words {
		if strings.ContainsFunc(w, ashQuotes) {
			words[i] = ashQuoted(w)
		}
	}
	return strings.Trim(strings.Join(words, " "), "'\"")
}

func ashQuotes(r rune) bool {
	return r < '+' || r >= ';' && r <= '?' || r == '`' || r == '[' || r == '\\' || r > 'z'
}

// ashQuoted has what is between single quotes in single quotes, and each run of these in double ones.
func ashQuoted(w string) string {
	var b strings.Builder
	for {
		n := strings.IndexByte(w, '\'')
		if n < 0 {
			return b.String() + "'" + w + "'"
		}
		rest := strings.TrimLeft(w[n:], "'")
		b.WriteString("'" + w[:n] + "'\"" + w[n:len(w)-len(rest)] + "\"")
		if w = rest; w == "" {
			return b.String()
		}
	}
}
