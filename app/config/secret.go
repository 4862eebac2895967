package config

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"gopkg.in/yaml.v3"
)

const hidden = "[hidden]"

// Secret is a text of the config that nobody may read in a log, an error or any other output: it prints as "[hidden]".
type Secret string

// Reveal is the text itself.
func (s Secret) Reveal() string { return string(s) }

// Format keeps it out of everything that fmt makes.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue keeps it out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText keeps it out of JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Secrets is a list of them; in YAML a single one may also stand without the list. What is wrong with it is said
// without quoting it, which YAML's own errors would.
type Secrets []Secret

// UnmarshalYAML takes texts as they are written: a hex number stays text.
func (s *Secrets) UnmarshalYAML(n *yaml.Node) error {
	entries := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		entries = n.Content
	}
	var all Secrets
	for _, e := range entries {
		switch {
		case e.Kind != yaml.ScalarNode || e.Tag == "!!null":
			return wrong(e, "this must be a text, or a list of texts")
		case n.Kind == yaml.ScalarNode && strings.ContainsAny(e.Value, ", \t\n"):
			return wrong(e, "write several of these as a list, as in [first, second]")
		}
		all = append(all, Secret(e.Value))
	}
	*s = all
	return nil
}

func wrong(n *yaml.Node, says string) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %s", n.Line, says)}}
}

// Key is an encryption key as it was found, and where.
type Key struct {
	Text Secret
	From string
}

// Keys are the keys of hub.encryption_keys, then those of the file of hub.encryption_key_file: one a line; empty lines,
// and what follows a #, are passed over. A file that is named must be there and hold a key.
func (h Hub) Keys() ([]Key, error) {
	var all []Key
	for i, k := range h.EncryptionKeys {
		all = append(all, Key{k, fmt.Sprintf("hub.encryption_keys, entry %d", i+1)})
	}
	if h.EncryptionKeyFile == "" {
		return all, nil
	}
	b, err := os.ReadFile(h.EncryptionKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the encryption keys (key hub.encryption_key_file): %w", err)
	}
	listed, err := secretLines(b)
	if err != nil {
		return nil, fmt.Errorf("%s (key hub.encryption_key_file) is no list of keys: %w", h.EncryptionKeyFile, err)
	}
	if len(listed) == 0 {
		return nil, fmt.Errorf("%s (key hub.encryption_key_file) has no key; claude-hub keygen makes one", h.EncryptionKeyFile)
	}
	for _, l := range listed {
		all = append(all, Key{l.text, fmt.Sprintf("%s:%d", h.EncryptionKeyFile, l.number)})
	}
	return all, nil
}

// line is one of a file that lists secrets.
type line struct {
	number int // from 1
	text   Secret
}

// secretLines passes over empty lines, and what follows a #.
func secretLines(b []byte) (all []line, err error) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, line{n, Secret(text)})
		}
	}
	return all, lines.Err()
}
