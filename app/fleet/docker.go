package fleet

import "slices"

// dockerCapability is what a Runner says it can do whose engine runs containers in Sandboxes.
const dockerCapability = "docker"

// CantRunDocker says why r can't have Docker in its Sandboxes, in words that go on after its name, or "" if it can: a Filter.Only for an
// Environment with Docker.
func (f *Fleet) CantRunDocker(r Runner) string {
	if slices.Contains(r.Capabilities, dockerCapability) {
		return ""
	}
	return "has no Docker in its Sandboxes: choose another Runner, or update this one; “claude-hub doctor” on its host says what it lacks"
}
