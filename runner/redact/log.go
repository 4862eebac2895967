package redact

import "io"

// Redactor redacts a text that is whole: a Set, or a Group of them.
type Redactor interface{ Text(v string) Text }

// LogWriter redacts what a logger writes: each Write is one whole entry, as zerolog's and the standard library's are. It answers as
// io.Writer asks, with the length it was given, and may be used from many goroutines if w may.
func LogWriter(r Redactor, w io.Writer) io.Writer { return logWriter{r, w} }

type logWriter struct {
	r Redactor
	w io.Writer
}

func (l logWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(l.w, l.r.Text(string(p)).String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
