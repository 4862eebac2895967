package oci

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tryMain is what the tests run inside a Sandbox, from the image (/bin/try, /bin/try-setuid, /bin/try-caps): it tries
// one thing and says "done", or what the kernel answered. Its exit code is 0 if the thing was done.
func tryMain(args []string) int {
	err := try(args[0], args[1:])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("done")
	return 0
}

func try(what string, args []string) error {
	sys := func(nr uintptr, a ...uintptr) error {
		a = append(a, 0, 0, 0, 0, 0, 0)
		if _, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
	switch what {
	case "euid":
		fmt.Println(os.Geteuid())
		return nil
	case "caps":
		b, err := os.ReadFile("/proc/self/status")
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(l, "CapEff") {
				fmt.Println(strings.Fields(l)[1])
			}
		}
		return err
	case "tcp":
		c, err := net.DialTimeout("tcp", args[0], time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	case "unix":
		c, err := net.DialTimeout("unix", args[0], time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	case "calls": // numbers: the errno of each, called with zeros
		for _, a := range args {
			var nr uintptr
			if _, err := fmt.Sscan(a, &nr); err != nil {
				return err
			}
			_, _, errno := unix.Syscall6(nr, 0, 0, 0, 0, 0, 0)
			fmt.Println(int(errno))
		}
		return nil
	case "tcp-from": // local address, remote address
		d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(args[0])}}
		c, err := d.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		return c.Close()
	case "flood": // address, number: how many connections stay open at a time
		var n, open int
		fmt.Sscan(args[1], &n)
		var conns []net.Conn
		for range n {
			c, err := net.DialTimeout("tcp", args[0], 300*time.Millisecond)
			if err != nil {
				break
			}
			conns = append(conns, c)
			open++
		}
		fmt.Println(open)
		for _, c := range conns {
			c.Close()
		}
		return nil
	case "serve":
		l, err := net.Listen("tcp4", args[0])
		if err != nil {
			return err
		}
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			c.Close()
		}
	case "lookup":
		ips, err := net.LookupHost(args[0])
		fmt.Println(ips)
		return err
	case "userns":
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return cmd.Run()
	case "mount":
		return unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "")
	case "mount-ext4":
		return unix.Mount("/dev/vda", "/mnt", "ext4", 0, "")
	case "mount-debugfs":
		return unix.Mount("debugfs", "/mnt", "debugfs", 0, "")
	case "mknod":
		return unix.Mknod("/root/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))
	case "kexec":
		return sys(unix.SYS_KEXEC_LOAD)
	case "bpf":
		var attr [64]byte
		return sys(unix.SYS_BPF, 0, 0, uintptr(len(attr)))
	case "keyctl":
		return sys(unix.SYS_KEYCTL, 0, ^uintptr(0))
	case "add_key":
		return sys(unix.SYS_ADD_KEY)
	case "io_uring":
		return sys(unix.SYS_IO_URING_SETUP, 1)
	case "userfaultfd":
		return sys(unix.SYS_USERFAULTFD)
	case "perf":
		return sys(unix.SYS_PERF_EVENT_OPEN)
	case "swapon":
		return sys(unix.SYS_SWAPON)
	case "settime":
		return unix.Settimeofday(&unix.Timeval{Sec: 1})
	case "module":
		return sys(unix.SYS_FINIT_MODULE, 0)
	case "iopl":
		return sys(172, 3)
	case "handle":
		return sys(unix.SYS_OPEN_BY_HANDLE_AT)
	case "quotactl":
		return sys(unix.SYS_QUOTACTL)
	case "pivot_root":
		return sys(unix.SYS_PIVOT_ROOT)
	case "files": // folder, number
		var n int
		fmt.Sscan(args[1], &n)
		for i := range n {
			dir := fmt.Sprintf("%s/%d", args[0], i/100)
			if i%100 == 0 {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
			if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), make([]byte, 3000), 0o644); err != nil {
				return err
			}
		}
		return nil
	case "deep": // folder, depth
		var n int
		fmt.Sscan(args[1], &n)
		if err := os.Chdir(args[0]); err != nil {
			return err
		}
		for range n {
			if err := unix.Mkdir("d", 0o755); err != nil {
				return err
			}
			if err := unix.Chdir("d"); err != nil {
				return err
			}
		}
		return nil
	case "eat": // MiB
		var n int
		fmt.Sscan(args[0], &n)
		var keep [][]byte
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			keep = append(keep, b)
		}
		fmt.Println(len(keep))
		return nil
	}
	return fmt.Errorf("the test knows no %q", what)
}
