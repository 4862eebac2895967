package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// brimEvery is how often the free space is looked at: a fast disk fills by half a GiB meanwhile.
const brimEvery = 250 * time.Millisecond

// brimLooks is for how many more looks, 16 s, there must be room at the rate of now. With more than that nobody is ended: the host
// stays almost full after its filler is gone, and those who write a little would be ended one after the other.
const brimLooks = 64

// brim ends writers before the host is full. Disks are sparse and promise more than there is; when the host can't give
// what one of them needs, the writes of every Sandbox fail, and their file systems are damaged (design.md §6). Ended is
// the Sandbox whose disk grows most, when all of them together would soon fill the host; its disk stays, and it isn't
// booted again before there is room.
type brim struct {
	e    *Engine
	last map[sandbox.ID]int64 // bytes of each disk at the last look, while space is low
}

func (b *brim) watch(ctx context.Context) {
	tick := time.NewTicker(brimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.look()
		}
	}
}

// look ends at most one Sandbox. From the low-water mark down it watches, from the half of it down it acts.
func (b *brim) look() {
	now := map[sandbox.ID]int64{}
	var worst *box
	var most, all, room int64
	for _, id := range b.e.running() {
		x := b.e.box(id)
		if x == nil {
			continue
		}
		free, err := freeBytes(x.boot.Spec.Disk.Path)
		if err != nil || free >= b.e.lowWater {
			continue
		}
		size, err := allocated(filepath.Join(x.boot.Spec.Disk.Path, diskImage))
		if err != nil {
			continue
		}
		now[id] = size
		before, known := b.last[id]
		if grown := size - before; known && grown > 0 && free < b.e.lowWater/2 {
			if all += grown; grown > most {
				worst, most, room = x, grown, free
			}
		}
	}
	b.last = now
	if worst == nil || all*brimLooks < room {
		return
	}
	fd, alive := worst.boot.Process.open()
	if !alive {
		return
	}
	defer unix.Close(fd)
	err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		b.e.cfg.Log.Error().Err(err).Str("sandbox", string(worst.id)).Msg("The host is almost full, and the Sandbox that fills it could not be ended.")
		return
	}
	b.e.cfg.Log.Error().Str("sandbox", string(worst.id)).Str("grew_by", bytesText(most)).
		Msg("The host is almost full: the Sandbox that was filling it has been ended, before the disks of all are damaged. Free space on the host.")
}

func freeBytes(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// allocated is what a sparse file takes of its file system.
func allocated(file string) (int64, error) {
	fi, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("no stat")
	}
	return st.Blocks * 512, nil
}
