package cmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/seal"
)

func TestDevMakesAKeyOfItsOwnOnce(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	cfg := keyHub(t, data, "")
	var out bytes.Buffer
	for range 2 {
		if err := makeKey(cfg, &out); err != nil {
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
	if err := makeKey(other, &out); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(other.Data, keyFile)); err == nil {
		t.Error("a key was made beside the config's")
	}
}
