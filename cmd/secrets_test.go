package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

// secrets runs a command on the data folder with a list of keys.
func secrets(t *testing.T, data, keys, stdin string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yml")
	if err := os.WriteFile(file, []byte("hub:\n  encryption_keys: ["+keys+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs(append(args, "--config", file, "--data", data))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	for _, k := range strings.Split(keys, ", ") {
		if k != "" && strings.Contains(out.String()+fmt.Sprint(err), k) {
			t.Errorf("the output has a key: %s%v", out.String(), err)
		}
	}
	return out.String(), err
}

// ran is a Hub with key that ran once on the data folder and stopped.
func ran(t *testing.T, data, key string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	h, err := openHub(ctx, keyHub(t, data, config.Secret(key)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := h.run(ctx); err != nil {
		t.Fatal(err)
	}
}

// query opens the database beside nobody else, for one statement.
func query(t *testing.T, data string, f func(*store.Tx) error) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(data, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Write(t.Context(), f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func idOf(t *testing.T, key string) string {
	t.Helper()
	k, err := seal.ParseKeys(seal.Given{Text: key})
	if err != nil {
		t.Fatal(err)
	}
	return k.Primary()
}

func TestSecretsRotateRetiresTheOldKey(t *testing.T) {
	t.Parallel()
	data, old, young := t.TempDir(), seal.NewKey(), seal.NewKey()
	ran(t, data, old)
	if out, err := secrets(t, data, "", "", "secrets-rotate"); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("without a key: %s%v", out, err)
	}
	out, err := secrets(t, data, young+", "+old, "", "secrets-rotate")
	if err != nil || !strings.Contains(out, "retired: key "+idOf(t, old)) || !strings.Contains(out, "encrypted with key "+idOf(t, young)) {
		t.Fatalf("%s%v", out, err)
	}
	ran(t, data, young)
	out, err = secrets(t, data, young, "", "secrets-reset")
	if err != nil || !strings.Contains(out, "can be opened") {
		t.Errorf("reset with nothing lost: %s%v", out, err)
	}
}

func TestSecretsResetMendsAndIsAudited(t *testing.T) {
	t.Parallel()
	data, key := t.TempDir(), seal.NewKey()
	ran(t, data, key)
	query(t, data, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE encryption_keys SET check_blob = $1`, []byte("x"))
		return err
	})
	audits := func() (n int) {
		query(t, data, func(tx *store.Tx) error {
			return tx.Row(`SELECT count(*) FROM audit_log WHERE action = 'secrets.reset'`).Scan(&n)
		})
		return n
	}
	for range 2 {
		out, err := secrets(t, data, key, "", "secrets-reset", "--dry-run")
		if err != nil || !strings.Contains(out, "damaged: the check value of key "+idOf(t, key)) || audits() != 0 {
			t.Fatalf("dry run: %s%v", out, err)
		}
	}
	if out, err := secrets(t, data, key, "", "secrets-reset"); err != nil || !strings.Contains(out, "cleared 0 values") || audits() != 1 {
		t.Fatalf("%s%v", out, err)
	}
	ran(t, data, key)
}

// A table of this test stands for those that have sealed values.
func TestSecretsResetAsksBeforeItClears(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hub.db")
	db, err := store.Open(t.Context(), path, store.Exclusive())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	columns := []seal.Column{{Table: "pins", Column: "pin", KeyColumn: "pin_key_id", ID: "id"}}
	lost, err := seal.ParseKeys(seal.Given{Text: seal.NewKey()})
	if err != nil {
		t.Fatal(err)
	}
	s := seal.New(db, lost, columns)
	if err := s.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		sealed, key, err := s.Seal(tx, seal.Place{Table: "pins", Column: "pin", Row: "1"}, []byte("1234"))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`CREATE TABLE pins (id TEXT PRIMARY KEY, pin BYTEA, pin_key_id TEXT REFERENCES encryption_keys (key_id))`); err != nil {
			return err
		}
		_, err = tx.Exec(`INSERT INTO pins VALUES ('1', $1, $2)`, sealed, key)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s = seal.New(db, seal.Keys{}, columns)
	left := func() (n int) {
		if err := db.Read(t.Context(), func(tx *store.Tx) error { return tx.Row(`SELECT count(pin) FROM pins`).Scan(&n) }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, answer := range []string{"", "\n", "y\n", "yes\n", "RESET\n"} {
		var out bytes.Buffer
		err := resetSecrets(t.Context(), s, false, false, strings.NewReader(answer), &out)
		if err == nil || err.Error() != "nothing was cleared" || left() != 1 || !strings.Contains(out.String(), "to clear: pins.pin: 1 whose key is missing, 0 damaged") {
			t.Errorf("answer %q: %v, %d values left\n%s", answer, err, left(), out.String())
		}
	}
	if err := resetSecrets(t.Context(), s, false, false, strings.NewReader("reset\n"), &bytes.Buffer{}); err != nil || left() != 0 {
		t.Errorf("answer reset: %v, %d values left", err, left())
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE pins SET pin = $1, pin_key_id = $2`, []byte("x"), lost.Primary())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := resetSecrets(t.Context(), s, true, true, strings.NewReader(""), &bytes.Buffer{}); err != nil || left() != 1 {
		t.Errorf("--dry-run --yes: %v, %d values left", err, left())
	}
	if err := resetSecrets(t.Context(), s, false, true, strings.NewReader(""), &bytes.Buffer{}); err != nil || left() != 0 {
		t.Errorf("--yes: %v, %d values left", err, left())
	}
}

// P14, with the Hub in this process: the lock is the handle's, not the process's. It waits 15 s for the Hub to go.
func TestSecretsResetIsRefusedWhileAHubRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	t.Parallel()
	data, key := t.TempDir(), seal.NewKey()
	h, err := openHub(t.Context(), keyHub(t, data, config.Secret(key)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	out, err := secrets(t, data, key, "reset\n", "secrets-reset")
	if !errors.Is(err, store.ErrInUse) || out != "" {
		t.Errorf("beside a Hub: %s%v", out, err)
	}
	if err := errors.Join(h.listener.Close(), h.db.Close()); err != nil {
		t.Fatal(err)
	}
	if out, err := secrets(t, data, key, "", "secrets-reset"); err != nil {
		t.Errorf("without it: %s%v", out, err)
	}
}

func TestASecretsCommandNeedsTheDatabaseOfAHub(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"secrets-reset", "--dry-run"}, {"secrets-reset", "--yes"}, {"secrets-rotate"}, {"token", "--login", "ana"}} {
		data := t.TempDir()
		out, err := secrets(t, data, seal.NewKey(), "", args...)
		if want := "there is no database of a Hub at " + filepath.Join(data, "hub.db"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s%v, want %q", args, out, err, want)
		}
		if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
			t.Errorf("%v made something in the data folder: %v %v", args, left, err)
		}
	}
}

func TestAHubThatLacksAKeyNamesTheRemedyWithItsOwnFlags(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("start: %w", &seal.LostError{Missing: []seal.InUse{{ID: "a"}}})
	err := withRemedy(lost, configFlags{file: "hub.yml", data: "/srv/hub"})
	if !errors.Is(err, lost) || !strings.Contains(err.Error(), "claude-hub secrets-reset --config hub.yml --data /srv/hub --dry-run") {
		t.Errorf("the remedy can't be typed as it is: %v", err)
	}
	other := errors.New("the disk is full")
	if withRemedy(lost, configFlags{}) != lost || withRemedy(other, configFlags{data: "/srv/hub"}) != other {
		t.Error("a remedy is said where there is none, or none is needed")
	}
}
