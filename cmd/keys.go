package cmd

import (
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
// own. A key that is there is whole, whenever its making was stopped.
func makeKey(cfg fileConfig, out io.Writer) error {
	cfg, err := withKeyFile(cfg)
	if err != nil || len(cfg.Hub.EncryptionKeys) > 0 || cfg.Hub.EncryptionKeyFile != "" {
		return err
	}
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(cfg.Data, keyFile+"-") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = fmt.Fprintf(tmp, "# The key that Sensitive values in the database are encrypted with. Without it they are lost: keep a copy.\n%s\n", seal.NewKey())
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	path := filepath.Join(cfg.Data, keyFile)
	if err := os.Link(tmp.Name(), path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil // somebody was quicker
		}
		return err
	}
	dir, err := os.Open(cfg.Data)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "made an encryption key for Sensitive values, %s; without it they are lost, so keep a copy\n", path)
	return err
}
