package web

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundlesAreMadeFromWhatIsCheckedIn fails when a source was changed and `make assets` was not run, or a bundle was edited.
func TestBundlesAreMadeFromWhatIsCheckedIn(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("island/built.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
	if len(lines) != 4 {
		t.Fatalf("built.sum speaks of %d files", len(lines))
	}
	for _, line := range lines {
		want, name, _ := strings.Cut(line, "  ")
		b, err := os.ReadFile(filepath.Join("island", name))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != want {
			t.Errorf("%s is another than when the bundles were made: run make assets", name)
		}
	}
	lock, err := os.ReadFile("island/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(lock), "://") && strings.Contains(string(lock), `"resolved"`) {
		t.Error("the lock file names where packages are downloaded from")
	}
}
