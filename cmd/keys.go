package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/claude-hub/claude-hub/app/seal"
)

// keyFile is the key that dev makes, in the data folder.
const keyFile = "encryption.key"

// withKeyFile names the key file of the data folder where the config has no key, so that every command finds what dev made.
func withKeyFile(cfg fileConfig) (fileConfig, error) {
	if len(cfg.Hub.EncryptionKeys) > 0 || cfg.Hub.EncryptionKeyFile != "" {
		return cfg, nil
	}
	path := filepath.Join(cfg.Data, keyFile)
	switch _, err := os.Stat(path); {
	case err == nil:
		cfg.Hub.EncryptionKeyFile = path
	case !errors.Is(err, fs.ErrNotExist):
		return cfg, fmt.Errorf("look for an encryption key: %w", err)
	}
	return cfg, nil
}

// encryptionKeys are the keys of the config, checked.
func encryptionKeys(cfg fileConfig) (seal.Keys, error) {
	cfg, err := withKeyFile(cfg)
	if err != nil {
		return seal.Keys{}, err
	}
	found, err := cfg.Hub.Keys()
	if err != nil {
		return seal.Keys{}, usageError{err}
	}
	given := make([]seal.Given, len(found))
	for i, k := range found {
		given[i] = seal.Given{Text: k.Text.Reveal(), From: k.From}
	}
	keys, err := seal.ParseKeys(given...)
	if err != nil {
		return seal.Keys{}, usageError{err}
	}
	return keys, nil
}

// makeKey makes an encryption key in the data folder, readable by its owner only, unless there is one or the config has its
// own. A key that is there is whole, whenever its making was stopped. Where the database knows a key that was never given up,
// a new one would only hide that the old one's file is gone: then it makes nothing and fails with *keyFileError.
func makeKey(ctx context.Context, cfg fileConfig, out io.Writer) error {
	cfg, err := withKeyFile(cfg)
	if err != nil || len(cfg.Hub.EncryptionKeys) > 0 || cfg.Hub.EncryptionKeyFile != "" {
		return err
	}
	path := filepath.Join(cfg.Data, keyFile)
	if err := neededKey(ctx, cfg, path); err != nil {
		return err
	}
	if err := writeKey(path); errors.Is(err, fs.ErrExist) {
		return nil // somebody was quicker
	} else if err != nil {
		return fmt.Errorf("make an encryption key: %w", err)
	}
	_, err = fmt.Fprintf(out, "made an encryption key for Sensitive values, %s; without it they are lost, so keep a copy\n", path)
	return err
}

// writeKey writes a new key to path at once and durably; it fails with fs.ErrExist when there is one.
func writeKey(path string) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(folder, keyFile+"-") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = fmt.Fprintf(tmp, "# The key that Sensitive values in the database are encrypted with. Without it they are lost: keep a copy.\n%s\n", seal.NewKey())
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// neededKey fails with *keyFileError when the Hub's database, if there is one, has values or keys that no configured key is for.
func neededKey(ctx context.Context, cfg fileConfig, path string) error {
	if _, missing := missingDatabase(cfg); missing {
		return nil
	}
	db, err := openExisting(ctx, cfg)
	if err != nil {
		return err
	}
	lost, err := seal.New(db, seal.Keys{}, seal.Columns()).Reset(ctx, true, nil) // a dry run: it reads
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("look for keys in use: %w", err)
	}
	if lost.Nothing() {
		return nil
	}
	return &keyFileError{path, lost}
}

// keyFileError is that the key file of the data folder is gone, and its key is not.
type keyFileError struct {
	path string
	lost seal.Cleared
}

func (e *keyFileError) Error() string {
	has := "the database says that it was in use"
	if n := e.lost.Values(); n > 0 {
		has = fmt.Sprintf("the database has Sensitive values that only its key opens (%d)", n)
	}
	return fmt.Sprintf("the key file %s is missing, and %s; nothing was made or written. Either put the file back, or its key into hub.encryption_keys, "+
		"or give up what can't be opened without it with: claude-hub secrets-reset --dry-run, then claude-hub secrets-reset.", e.path, has)
}
