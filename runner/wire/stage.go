package wire

import (
	"fmt"
	"strings"
	"time"
)

// Stages of a start or wake, in their order, as the Runner's clock has them. Those that a boot doesn't have are left out.
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
func (s Stage) String() string {
	switch d := s.Took(); {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%s %.1f ms", s.Title(), float64(s.US)/1000)
	case d < time.Second:
		return fmt.Sprintf("%s %d ms", s.Title(), d.Milliseconds())
	default:
		return fmt.Sprintf("%s %.1f s", s.Title(), d.Seconds())
	}
}

// StagesText says all of them in a line.
func StagesText(all []Stage) string {
	parts := make([]string, len(all))
	for i, s := range all {
		parts[i] = s.String()
	}
	return strings.Join(parts, ", ")
}
