package agent

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// entry is one name of a folder, as the kernel lists it: what it is and its inode's number, without looking at it.
type entry struct {
	number uint64
	kind   byte   // DT_DIR and so on
	name   []byte // good until each returns
}

// readFolder lists an open folder, without "." and "..", until each says that it has enough. It gives what it listed.
func readFolder(fd int, buf []byte, each func(entry) bool) (n int, err error) {
	for {
		got, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return n, err
		}
		for b := buf[:got]; len(b) > 19; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < 20 || size > len(b) {
				return n, unix.EIO
			}
			e := entry{number: binary.NativeEndian.Uint64(b), kind: b[18], name: b[19:size]}
			if end := bytes.IndexByte(e.name, 0); end >= 0 {
				e.name = e.name[:end]
			}
			b = b[size:]
			if s := string(e.name); s == "." || s == ".." {
				continue
			}
			n++
			if !each(e) {
				return n, nil
			}
		}
	}
}
