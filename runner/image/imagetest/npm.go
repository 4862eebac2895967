package imagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The package managers of the npm registry that are tried, at versions that were tried.
const (
	pnpmVersion = "10.34.9"
	bunVersion  = "1.4.5"
)

// NPMTools gives a folder with pnpm and bun in node_modules, which npm fetches once for a machine.
func NPMTools(t testing.TB) string {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "npm-pnpm-"+pnpmVersion+"-bun-"+bunVersion)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for err = unix.EINTR; err == unix.EINTR; err = unix.Flock(int(lock.Fd()), unix.LOCK_EX) {
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	tmp := dir + ".new"
	out, err := exec.Command("npm", "install", "--prefix", tmp, "--no-audit", "--no-fund", "pnpm@"+pnpmVersion, "bun@"+bunVersion).CombinedOutput()
	if err != nil {
		t.Fatalf("this needs pnpm and bun, and npm (of Node) couldn't get them: %v\n%s", err, out)
	}
	if err := os.Rename(tmp, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
