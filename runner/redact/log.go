package redact

import "io"

// Process is every Sensitive value that this process has learned, whatever assignment it belongs to: for its own log, which
// belongs to none.
var Process = new(Set)

// LogWriter redacts what a logger writes: each Write is one whole entry, as zerolog's and the standard library's are. It answers as
// io.Writer asks, with the length it was given, and may be used from many goroutines if w may.
func LogWriter(set *Set, w io.Writer) io.Writer { return logWriter{set, w} }

type logWriter struct {
	set *Set
	w   io.Writer
}

func (l logWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(l.w, l.set.Text(string(p)).String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
