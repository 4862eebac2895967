package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/claude-hub/claude-hub/runner/agent/stage"
)

const (
	nonblock   = syscall.O_NONBLOCK
	scriptsDir = "/run/claude-hub/scripts"
)

// interpreter says what runs a script: its shebang as the kernel would read it, or nothing.
func interpreter(body []byte) (argv []string, err error) {
	if !bytes.HasPrefix(body, []byte("#!")) {
		return nil, nil
	}
	line, _, _ := bytes.Cut(body[2:min(len(body), 256)], []byte("\n"))
	text := strings.Trim(string(line), " \t")
	if strings.HasSuffix(text, "\r") {
		return nil, fail(CodeInterpreter,
			"the script's interpreter %s was not found: its line endings are CRLF; save it with LF line endings", visible(text))
	}
	program, arg, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
	if program == "" {
		return nil, fail(CodeInterpreter, "the script's first line begins with #! but names no interpreter")
	}
	argv = []string{program}
	if arg = strings.TrimLeft(arg, " "); arg != "" {
		argv = append(argv, arg)
	}
	return argv, nil
}

// visible shows a carriage return as \r.
func visible(s string) string { return strings.ReplaceAll(clip(s, 256), "\r", `\r`) }

// writeScript makes the file. dir is the script's own folder, to be removed with removeScript.
func writeScript(s *Script, number int64) (file, dir string, err error) {
	if len(s.Body) > maxScript {
		return "", "", fail(CodeLimit, "the script has %d bytes, more than the %d allowed", len(s.Body), maxScript)
	}
	dir = fmt.Sprintf("%s/%d", scriptsDir, number)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", fail(CodeInternal, "the script can't be written in the Sandbox: %v", err)
	}
	file = filepath.Join(dir, scriptName(s.Name))
	// A child forked while the file is open for writing would make exec answer ETXTBSY.
	syscall.ForkLock.RLock()
	err = os.WriteFile(file, s.Body, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		os.RemoveAll(dir)
		return "", "", fail(CodeInternal, "the script can't be written in the Sandbox: %v", err)
	}
	return file, dir, nil
}

func scriptName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, clip(name, 64))
	if clean = strings.Trim(clean, "."); clean == "" {
		return "script"
	}
	return clean
}

// scriptRequest fills in what a stage must run. The interpreter is executed directly, with the arguments the kernel would
// give it, so that a /run mounted noexec is no obstacle.
func scriptRequest(rq *stage.Request, interp []string, file, path string) {
	if interp == nil {
		rq.Names = bytesOf([]string{"bash", "sh"})
		rq.Path = []byte(path + ":" + stage.DefaultPath)
		rq.Argv = bytesOf([]string{"", file})
		return
	}
	rq.Names = bytesOf(interp[:1])
	if !strings.Contains(interp[0], "/") {
		rq.Names = bytesOf([]string{"./" + interp[0]})
	}
	rq.Argv = bytesOf(append(append([]string{}, interp...), file))
}
