package build

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/clone"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Why a context ended, as its cause. The first leaves everything as it is for the next process of the Runner; the
// others end the work and clean up.
var (
	ErrShutdown  = errors.New("the Runner is stopping")
	ErrCancelled = errors.New("cancelled")
	ErrDeadline  = errors.New("the deadline passed")
)

// Failed is a failure in words for a person.
type Failed struct{ wire.Failure }

func (f *Failed) Error() string { return f.Message }

// Codes of failures that come from here. Others come from image, clone and agent.
const (
	CodeExit     = "exit"
	CodeSignal   = "signal"
	CodeOOM      = "oom"
	CodeTimeout  = "timeout"
	CodeNoShell  = "no-shell"
	CodeHostFull = "host-full"
	CodeEnded    = "sandbox-ended"
	CodeSpec     = "bad-spec"
	CodeValues   = "values"
	CodeToken    = "no-token" // nothing to clone with
	CodeInternal = "internal"
)

// Explain turns any error of a phase into a Failure.
func Explain(phase string, err error) wire.Failure {
	var (
		failed *Failed
		img    *image.Error
		cl     *clone.Error
		ag     *agent.Error
		sb     *sandbox.Error
	)
	f := wire.Failure{Phase: phase, Code: CodeInternal, Message: err.Error()}
	switch {
	case errors.As(err, &failed):
		f = failed.Failure
		if f.Phase == "" {
			f.Phase = phase
		}
	case errors.Is(err, ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Message = CodeTimeout, fmt.Sprintf("the deadline passed during %s", phaseWords(phase))
	case errors.As(err, &img):
		f.Code = "image-" + strings.TrimPrefix(strings.ReplaceAll(string(img.Code), "_", "-"), "image-")
	case errors.As(err, &cl):
		f.Code, f.LastLines = cl.Code, cl.Output
	case errors.As(err, &ag):
		f.Code = strings.ReplaceAll(string(ag.Code), "_", "-")
	case errors.As(err, &sb):
		switch {
		case errors.Is(err, sandbox.ErrHostFull):
			f.Code = CodeHostFull
		case errors.Is(err, sandbox.ErrDiskDamaged):
			f.Code = "disk-damaged"
		}
	}
	return f
}

func phaseWords(phase string) string {
	switch phase {
	case wire.PhaseImage:
		return "the pull of the image"
	case wire.PhaseDocker:
		return "the installation of Docker"
	case wire.PhaseBootstrap:
		return "the bootstrap script"
	case wire.PhaseSnapshot:
		return "the snapshot"
	case wire.PhaseClone:
		return "the clone"
	case wire.PhaseBoot:
		return "the boot of the Sandbox"
	case wire.PhaseStart:
		return "the start script"
	}
	return "the work"
}

// ExitFailure says how a script ended badly; nil when it ended well.
func ExitFailure(phase string, exit agent.Exit, memory int64, tail string) *Failed {
	if exit.Code == 0 && exit.Signal == "" {
		return nil
	}
	words := phaseWords(phase)
	code := exit.Code
	f := wire.Failure{Phase: phase, Code: CodeExit, Signal: exit.Signal, LastLines: tail, ExitCode: &code,
		Message: fmt.Sprintf("%s ended with exit code %d", words, exit.Code)}
	switch {
	case exit.OOM:
		f.Code = CodeOOM
		f.Message = fmt.Sprintf("%s ran out of memory (the Sandbox has %s) and ended with exit code %d", words, Bytes(memory), exit.Code)
	case exit.Signal != "":
		f.Code = CodeSignal
		f.Message = fmt.Sprintf("%s was ended by %s", words, exit.Signal)
	case exit.Code == 126 || exit.Code == 127:
		f.Message += ": a command was not found or can't be run; the last lines name it"
	}
	return &Failed{f}
}

// Bytes writes a size as people do.
func Bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			s := fmt.Sprintf("%.1f", float64(n)/float64(u.size))
			return strings.TrimSuffix(s, ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
