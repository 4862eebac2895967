package cmd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/store"
)

// keygen is what the command prints.
func keygen(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs([]string{"keygen"})
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func keyHub(t *testing.T, data string, key config.Secret) fileConfig {
	t.Helper()
	cfg := fileConfig{Data: data, Hub: config.DefaultHub(), Runner: runner.DefaultConfig()}
	cfg.Dev.Login, cfg.Hub.Listen = true, "127.0.0.1:0"
	if key != "" {
		cfg.Hub.EncryptionKeys = config.Secrets{key}
	}
	return cfg
}

func TestKeygenPrintsKeysThatAHubTakes(t *testing.T) {
	t.Parallel()
	first, second := keygen(t), keygen(t)
	if first == second {
		t.Fatal("two keys are the same")
	}
	data := t.TempDir()
	file := filepath.Join(data, "keys")
	if err := os.WriteFile(file, []byte(second+first), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := keyHub(t, data, "")
	cfg.Hub.EncryptionKeyFile = file
	h, err := openHub(t.Context(), cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.listener.Close(), h.db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestAHubSaysWhichKeyIsWrong(t *testing.T) {
	t.Parallel()
	cfg := keyHub(t, t.TempDir(), "c2hvcnQ=")
	_, err := openHub(t.Context(), cfg, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), "hub.encryption_keys, entry 1 has 5 bytes") || exitCode(err) != exitUsage {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.Data, "hub.db")); err == nil {
		t.Error("a database was made nevertheless")
	}
}

// P12, as far as a Hub goes while nothing of it is sealed yet: the check value stands for every value.
func TestAHubWhoseKeyIsDamagedDoesNotStart(t *testing.T) {
	t.Parallel()
	key := config.Secret(strings.TrimSpace(keygen(t)))
	cfg := keyHub(t, t.TempDir(), key)
	ctx, stop := context.WithCancel(t.Context())
	h, err := openHub(ctx, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), filepath.Join(cfg.Data, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	var hubs, keys int64
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		if err := tx.Row(`SELECT count(*) FROM encryption_hubs`).Scan(&hubs); err != nil {
			return err
		}
		keys, err = tx.Exec(`UPDATE encryption_keys SET check_blob = $1`, []byte("x"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if hubs != 0 || keys != 1 {
		t.Errorf("after the Hub stopped %d Hubs and %d keys are known, want none and 1", hubs, keys)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openHub(t.Context(), cfg, zerolog.Nop()); !errors.As(err, new(*seal.LostError)) || strings.Contains(err.Error(), key.Reveal()) {
		t.Errorf("got %v", err)
	}
}
