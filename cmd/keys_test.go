package cmd

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/variable"
)

func TestDevMakesAKeyOfItsOwnOnce(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	cfg := keyHub(t, data, "")
	var out bytes.Buffer
	for range 2 {
		if err := makeKey(t.Context(), cfg, &out); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(data, keyFile)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, path) {
		t.Errorf("said %q", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v", left, err)
	}
	// Every command that is pointed at the folder finds it.
	found, err := encryptionKeys(cfg)
	if err != nil || found.Primary() == "" {
		t.Fatalf("%v, %v", found, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && strings.Contains(out.String(), line) {
			t.Error("the key was printed")
		}
	}
	// A key of the config stands alone.
	own := seal.NewKey()
	configured, err := encryptionKeys(keyHub(t, data, config.Secret(own)))
	if err != nil || len(configured.IDs()) != 1 || configured.Primary() == found.Primary() {
		t.Errorf("with a key in the config: %v, %v", configured, err)
	}
	other := keyHub(t, t.TempDir(), config.Secret(own))
	if err := makeKey(t.Context(), other, &out); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(other.Data, keyFile)); err == nil {
		t.Error("a key was made beside the config's")
	}
}

func TestDevMakesNoKeyInPlaceOfOneThatIsInUse(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"with values": true, "with a key that was never used": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			cfg, path := keyHub(t, data, ""), filepath.Join(data, keyFile)
			if err := makeKey(t.Context(), cfg, io.Discard); err != nil {
				t.Fatal(err)
			}
			sealing(t, cfg, sealed)
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			got := say(t, "", "dev", "--data", data)
			for _, want := range []string{"the key file " + path + " is missing", "put the file back", "claude-hub secrets-reset --data " + data + " --dry-run"} {
				if !strings.Contains(got.err, want) {
					t.Errorf("the refusal lacks %q: %+v", want, got)
				}
			}
			if got.code != exitFailed || got.out != "" || strings.Contains(got.err, "that only its key opens (1)") != sealed {
				t.Errorf("%+v", got)
			}
			if left := names(t, data); slices.ContainsFunc(left, func(n string) bool { return n == keyFile || strings.HasPrefix(n, "example") }) {
				t.Errorf("it wrote something: %q", left)
			}
			// Put back, all is well; given up, the next start makes a new one.
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}
			if err := makeKey(t.Context(), cfg, io.Discard); err != nil {
				t.Error(err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if got := say(t, "", "secrets-reset", "--yes", "--data", data); got.code != exitOK {
				t.Fatalf("%+v", got)
			}
			if err := makeKey(t.Context(), cfg, io.Discard); err != nil {
				t.Error(err)
			}
			sealing(t, cfg, false) // a Hub starts with it
		})
	}
}

func TestDevMakesAKeyForADatabaseThatHadNone(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	cfg := keyHub(t, data, "")
	sealing(t, cfg, false)
	if err := makeKey(t.Context(), cfg, io.Discard); err != nil || !slices.Contains(names(t, data), keyFile) {
		t.Errorf("%v, and the folder holds %q", err, names(t, data))
	}
	sealing(t, cfg, true)
}

// sealing is a Hub on cfg that ran once and, if value, was given a Sensitive value.
func sealing(t *testing.T, cfg fileConfig, value bool) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	h, err := openHub(ctx, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if value {
		who, _, err := h.gate.SignInDev(ctx, devPerson)
		if err == nil {
			_, err = h.vault.CreateShared(ctx, who, variable.NewShared{Name: "TOKEN", Sensitive: true, Value: []byte("token-value-1")})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := h.run(ctx); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, folder string) []string {
	t.Helper()
	all, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
