package agent

import (
	"os"

	"golang.org/x/sys/unix"
)

// openTTY makes a terminal: our end, which Go's poller serves, and the process's. creack/pty can't be used for it: its
// ioctls make the file blocking, so that each terminal pins one of the few threads and no read of one ever times out.
func openTTY(size Size) (ours, theirs *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			ours.Close()
		}
	}()
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	if err = setSize(ours, size); err != nil {
		return nil, nil, err
	}
	// By the master, not by name: /dev/pts may be anything in a Sandbox.
	peer, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return nil, nil, e
	}
	return ours, os.NewFile(peer, "terminal"), nil
}

func setSize(tty *os.File, s Size) error {
	sc, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = sc.Control(func(fd uintptr) {
		serr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
	if err != nil {
		return err
	}
	return serr
}
