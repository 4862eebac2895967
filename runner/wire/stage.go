package wire

import (
	"fmt"
	"strings"
	"time"
)

// Stages of a start or wake, one after the other, as the Runner's clock has them. Those that a boot doesn't have are left out.
const (
	StageBuild   = "build"   // looked for, and made if this Runner lacks it
	StageDisk    = "disk"    // mounted, and its folders looked at
	StageClone   = "clone"   // at the first start
	StageSandbox = "sandbox" // root filesystem, processes, limits and network
	StageAgent   = "agent"   // until it answered
	StageFolders = "folders" // dependency folders matched and bound
	StageDocker  = "docker"  // until it was healthy
	StageStart   = "start"   // the start script, once it has ended
)

// Stage is one of them with how long it took.
type Stage struct {
	Name string `json:"name"`
	US   int64  `json:"us"` // microseconds
}

// Took is how long it took.
func (s Stage) Took() time.Duration { return time.Duration(s.US) * time.Microsecond }

// Title is what people read for it. One that isn't known, of a newer Runner, is called as that calls it.
func (s Stage) Title() string {
	switch s.Name {
	case StageSandbox:
		return "Sandbox"
	case StageFolders:
		return "dependency folders"
	case StageDocker:
		return "Docker"
	case StageStart:
		return "start script"
	}
	return s.Name
}

// String is its title and time: "Sandbox 41 ms".
func (s Stage) String() string { return s.Title() + " " + brief(s.Took()) }

func brief(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

// BootText says in a line how long a boot took, and each of its stages. The start script has no part in the sum: a Session is up
// before it.
func BootText(all []Stage) string {
	var up time.Duration
	var parts []string
	script := ""
	for _, s := range all {
		if s.Name == StageStart {
			script = "; then " + s.String()
			continue
		}
		up += s.Took()
		parts = append(parts, s.String())
	}
	return "up after " + brief(up) + ": " + strings.Join(parts, ", ") + script
}
