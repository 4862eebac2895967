package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Ranges of sub-ids: each disk and each snapshot has its own, so that Sandboxes can't touch or starve each other by
// kernel objects that count by id (facts/sandbox.md §2.4). They begin above what systemd-nspawn and the usual
// /etc/subuid give out, and a file in Dir/ids for each that is taken names the disk that has it.
const (
	firstID   = 0x8000_0000
	idRanges  = 2000
	idsFolder = "ids"
)

func idBase(n int) int { return firstID + n*sandbox.IDRange }

// takeIDs claims a free range for a disk. A claim whose disk is gone is taken over.
func (e *Engine) takeIDs(diskPath string) (int, error) {
	e.idsMu.Lock()
	defer e.idsMu.Unlock()
	dir := filepath.Join(e.cfg.Dir, idsFolder)
	for _, reclaim := range []bool{false, true} {
		for i := range idRanges {
			n := (e.nextID + i) % idRanges
			file := filepath.Join(dir, strconv.Itoa(n))
			if reclaim {
				owner, err := os.ReadFile(file)
				if err != nil || exists(strings.TrimSpace(string(owner))) {
					continue
				}
				e.cfg.Log.Info().Int("range", n).Str("disk", string(owner)).Msg("The ids of a disk that is gone are given out again.")
				if err := os.Remove(file); err != nil {
					return 0, err
				}
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				continue
			}
			if err != nil {
				return 0, err
			}
			_, err = f.WriteString(diskPath)
			if err := errors.Join(err, f.Sync(), f.Close(), syncPath(dir)); err != nil {
				return 0, err
			}
			e.nextID = n + 1
			return idBase(n), nil
		}
	}
	return 0, fmt.Errorf("all %d ranges of ids are taken by disks and snapshots: delete some Sessions or builds on this Runner", idRanges)
}

func (e *Engine) idsFile(base int) string {
	return filepath.Join(e.cfg.Dir, idsFolder, strconv.Itoa((base-firstID)/sandbox.IDRange))
}

// moveIDs records that a range's disk is now found at another path.
func (e *Engine) moveIDs(base int, diskPath string) error {
	e.idsMu.Lock()
	defer e.idsMu.Unlock()
	file := e.idsFile(base)
	if err := os.WriteFile(file+".new", []byte(diskPath), 0o600); err != nil {
		return err
	}
	if err := syncPath(file + ".new"); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func (e *Engine) freeIDs(base int) error {
	e.idsMu.Lock()
	defer e.idsMu.Unlock()
	if err := os.Remove(e.idsFile(base)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
