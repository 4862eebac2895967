// Package embedded is the small agent binary that `make build` puts into claude-hub, so that it stays one file.
package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

const prefix = "claude-hub-agent-"

// File writes the agent into the folder dir, which is its own, unless it is there, and gives its path; "" when this claude-hub was built without it,
// as by a plain `go build`. Agents of other versions are deleted: Sandboxes that run keep theirs.
func File(dir string) (string, error) {
	if len(binary) == 0 {
		return "", nil
	}
	sum := sha256.Sum256(binary)
	path := filepath.Join(dir, prefix+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, f := range old {
		if p := filepath.Join(dir, f.Name()); strings.HasPrefix(f.Name(), prefix) && p != path {
			if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", err
			}
		}
	}
	if b, err := os.ReadFile(path); err == nil && sha256.Sum256(b) == sum {
		return path, os.Chmod(path, 0o755)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, binary, 0o600); err != nil {
		return "", err
	}
	return path, errors.Join(os.Chmod(tmp, 0o755), os.Rename(tmp, path))
}
