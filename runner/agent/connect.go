package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// itself stands as a command's program for the agent's own, wherever the engine put that.
	itself = "claude-hub agent"
	// connectArg makes `<agent> agent connect PORT` a connection to a port of the Sandbox's own loopback.
	connectArg = "connect"
	// connectTime is how long that may take to be accepted.
	connectTime = 10 * time.Second
	// connectLinger is for how long input goes on after the peer has closed its side.
	connectLinger = 500 * time.Millisecond
)

// Connect is the Argv of a command that connects to a TCP port of the Sandbox's loopback, of either family: its input is sent,
// what comes is its output. It ends when the peer has closed its side, with 1 and a line on standard error when nobody listens there. An
// older agent answers ErrNotFound.
func Connect(port uint16) []string {
	return []string{itself, "agent", connectArg, strconv.Itoa(int(port))}
}

// program is argv with the agent's own path where itself stands.
func program(argv []string) []string {
	if argv[0] != itself {
		return argv
	}
	if path, err := os.Executable(); err == nil {
		return append([]string{path}, argv[1:]...)
	}
	return argv
}

// connect is one such command.
func connect(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(errs, "claude-hub: say which port to connect to")
		return 2
	}
	conn, err := dialPort(args[0])
	if err != nil {
		fmt.Fprintf(errs, "claude-hub: nothing in the Sandbox takes connections to port %s: %v\n", args[0], err)
		return 1
	}
	defer conn.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(conn, in); err != nil && !errors.Is(err, net.ErrClosed) {
			conn.Close() // the other direction must not wait for an answer to what never arrived
			return
		}
		conn.CloseWrite() //nolint:errcheck // the peer may have closed already
	}()
	_, err = io.Copy(out, conn)
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		fmt.Fprintf(errs, "claude-hub: the connection to port %s broke: %v\n", args[0], err)
		return 1
	}
	select { // who has said all may still read a little
	case <-sent:
	case <-time.After(connectLinger):
	}
	return 0
}

func dialPort(port string) (*net.TCPConn, error) {
	var failed error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), connectTime)
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if failed == nil {
			failed = err
		}
	}
	return nil, failed
}
