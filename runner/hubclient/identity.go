package hubclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Identity is what a Runner got for its registration token. The token gives all that a Runner may do.
type Identity struct {
	Hub    string `json:"hub"`    // URL
	Runner string `json:"runner"` // id
	Name   string `json:"name"`
	Token  string `json:"token"`
}

// ReadIdentity reads what WriteIdentity stored. os.ErrNotExist: the Runner was never registered.
func ReadIdentity(path string) (Identity, error) {
	var id Identity
	b, err := os.ReadFile(path)
	if err != nil {
		return id, fmt.Errorf("read the Runner's identity: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil || id.Token == "" || id.Hub == "" {
		return id, fmt.Errorf("the Runner's identity in %s is damaged: register the Runner again", path)
	}
	return id, nil
}

// WriteIdentity stores an identity, readable by its owner only. After a crash there is the old one or the new one.
func WriteIdentity(path string, id Identity) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".identity-") // its mode is 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
