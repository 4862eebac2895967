package clone

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// reasons maps git's words (under LC_ALL=C) to what a person is told. The first that fits is taken, so what is more
// exact stands first.
var reasons = []struct {
	code    string
	needles []string
	message func(url, host string) string
}{
	{CodeNoBranch, []string{"Remote branch "}, func(url, _ string) string {
		return fmt.Sprintf("the branch to clone doesn't exist in %s", url)
	}},
	{CodeDiskFull, []string{"No space left on device", "Disk quota exceeded"}, func(url, _ string) string {
		return fmt.Sprintf("the disk was full while cloning %s; give the Session a larger disk", url)
	}},
	{CodeRefused, []string{
		"Authentication failed", "could not read Username", "could not read Password", "terminal prompts disabled",
		"The requested URL returned error: 401", "The requested URL returned error: 403", "Permission denied",
		"access denied", "Write access to repository not granted",
	}, func(url, host string) string {
		if host == "" {
			return fmt.Sprintf("clone refused: %s can't be read by the Workspace's user", url)
		}
		return fmt.Sprintf("clone refused: %s needs credentials that give access to it, and %s accepted none", url, host)
	}},
	{CodeNotFound, []string{
		"Repository not found", "repository not found", "The requested URL returned error: 404", "not found",
		"does not appear to be a git repository", "does not exist", "not valid: is this a git repository?",
	}, func(url, _ string) string {
		return fmt.Sprintf("there is no repository at %s, or these credentials may not see it", url)
	}},
	{CodeUnreachable, []string{
		"Could not resolve host", "Could not resolve proxy", "Failed to connect", "Couldn't connect", "Connection refused",
		"Connection timed out", "Connection reset", "Operation timed out", "Operation too slow", "Network is unreachable",
		"No route to host", "SSL certificate problem", "server certificate verification failed", "gnutls_handshake",
		"The requested URL returned error: 5", "early EOF", "RPC failed", "unable to access", "hung up unexpectedly",
	}, func(url, host string) string {
		return fmt.Sprintf("%s could not be reached from this Runner to clone %s", host, url)
	}},
}

func explain(url string, r remote, output string, exit *exec.ExitError) *Error {
	for _, reason := range reasons {
		for _, n := range reason.needles {
			if strings.Contains(output, n) {
				return &Error{Code: reason.code, Message: reason.message(url, r.host), Output: output}
			}
		}
	}
	how := fmt.Sprintf("exit code %d", exit.ExitCode())
	if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		how = "signal " + st.Signal().String()
	}
	return &Error{Code: CodeFailed, Message: fmt.Sprintf("git could not clone %s (%s)", url, how), Output: output}
}
