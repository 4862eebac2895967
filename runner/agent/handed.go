package agent

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// takeListener makes a listener of the descriptor that the engine handed over: a listening socket, or, under gVisor, whose kernel
// accepts nothing on a socket of the host, one of datagrams that each bring a connection.
func takeListener(fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), "agent")
	defer f.Close()
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, err
	}
	if kind != unix.SOCK_DGRAM {
		return net.FileListener(f)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("it is a socket of %s", c.LocalAddr().Network()), c.Close())
	}
	return handOver{u}, nil
}

// handOver is a listener whose connections arrive as descriptors.
type handOver struct{ *net.UnixConn }

// handed is such a connection. Who can send one has the host's path of the socket, so that its peer need not be asked for.
type handed struct{ net.Conn }

func (h handOver) Accept() (net.Conn, error) {
	const most = 4 // who sends more gets nothing; the kernel closes what has no room
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4*most))
	_, n, _, _, err := h.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors(oob[:n])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("a datagram has %d descriptors and not one", len(fds))
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return handed{c}, nil
}

func (h handOver) Addr() net.Addr { return h.LocalAddr() }

// descriptors are those that came with a message.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range messages {
		part, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // of another kind
		}
		fds = append(fds, part...)
	}
	return fds, nil
}
