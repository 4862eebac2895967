package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/app/config"
)

const (
	keyA = "bm90IGEga2V5LCBvbmx5IGEgdGV4dCBmb3IgdGVzdHM="
	keyB = "0000000000000000000000000000000000000000000000000000000000001234"
)

func keysOf(t *testing.T, h config.Hub) (all []string) {
	t.Helper()
	keys, err := h.Keys()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		all = append(all, k.From+" "+k.Text.Reveal())
	}
	return all
}

func TestKeysComeFromTheListThenFromTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("# newest first\n\n  third # of 2026\r\nfourth"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := file{Hub: config.DefaultHub()}
	if err := config.Load(write(t, "hub:\n  encryption_keys: ["+keyA+", "+keyB+"]\n  encryption_key_file: "+path+"\n"), &f); err != nil {
		t.Fatal(err)
	}
	want := []string{"hub.encryption_keys, entry 1 " + keyA, "hub.encryption_keys, entry 2 " + keyB, path + ":3 third", path + ":4 fourth"}
	if got := keysOf(t, f.Hub); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := keysOf(t, config.DefaultHub()); len(got) != 0 {
		t.Errorf("by default: %q", got)
	}
	for says, text := range map[string]string{"has no key": "# nothing\n", "is no list of keys": strings.Repeat("x", 1<<17)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Hub.Keys(); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	f.Hub.EncryptionKeyFile = path + ".gone"
	if _, err := f.Hub.Keys(); err == nil || !strings.Contains(err.Error(), "hub.encryption_key_file") {
		t.Errorf("a file that isn't there: %v", err)
	}
}

func TestKeysComeFromTheEnvironment(t *testing.T) {
	for value, want := range map[string][]string{keyA: {keyA}, keyB: {keyB}, "[" + keyB + ", " + keyA + "]": {keyB, keyA}, "- " + keyA: {keyA}, "[]": nil} {
		t.Setenv("CLAUDE_HUB_HUB_ENCRYPTION_KEYS", value)
		f := file{Hub: config.DefaultHub()}
		if err := config.Load(write(t, "hub:\n  encryption_keys: [of-the-file]\n"), &f); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range f.Hub.EncryptionKeys {
			got = append(got, k.Reveal())
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: got %q", value, got)
		}
	}
}

func TestNoErrorQuotesAKey(t *testing.T) {
	for says, text := range map[string]string{
		"as a list":            keyA + ", " + keyB,
		"must be a text":       "{" + keyA + ": " + keyB + "}",
		"or a list of texts":   "[[" + keyA + "]]",
		"line 2: write severa": keyA + "\n    " + keyB,
	} {
		err := config.Load(write(t, "hub:\n  encryption_keys: "+text+"\n"), &file{})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: want %q, got %v", text, says, err)
		}
		t.Setenv("CLAUDE_HUB_HUB_ENCRYPTION_KEYS", text)
		env := config.Load("", &file{})
		if env == nil || !strings.Contains(env.Error(), "CLAUDE_HUB_HUB_ENCRYPTION_KEYS") {
			t.Errorf("%q in the environment: %v", text, env)
		}
		if err := os.Unsetenv("CLAUDE_HUB_HUB_ENCRYPTION_KEYS"); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{keyA[:6], keyB[:6]} {
			if strings.Contains(fmt.Sprint(err, env), key) {
				t.Errorf("%q is quoted: %v, %v", key, err, env)
			}
		}
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	t.Parallel()
	f := file{Hub: config.DefaultHub()}
	f.Hub.EncryptionKeys = config.Secrets{keyA, keyB}
	keys, err := f.Hub.Keys()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, v := range []any{f, &f, f.Hub, f.Hub.EncryptionKeys, f.Hub.EncryptionKeys[0], &f.Hub.EncryptionKeys[0], keys, keys[0], &keys[0]} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
			b, err := marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(b)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		log := zerolog.New(&out)
		log.Info().Interface("v", v).Any("w", v).Msg("x")
	}
	if !strings.Contains(out.String(), "[hidden]") || !strings.Contains(out.String(), "127.0.0.1:7780") {
		t.Fatal("nothing is printed, so this test looks at nothing")
	}
	for _, form := range []string{keyA[:6], keyB[:20], fmt.Sprintf("%x", keyA)[:12]} {
		if strings.Contains(out.String(), form) {
			t.Errorf("%q is printed", form)
		}
	}
}
