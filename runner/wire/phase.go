package wire

// PhaseTitle is what people read for a phase, on pages and in check runs. A phase that isn't known, of a newer Runner, is
// called as that calls it: a Runner's own word.
func PhaseTitle(name string) string {
	switch name {
	case PhaseImage:
		return "Image"
	case PhaseDocker:
		return "Docker"
	case PhaseBootstrap:
		return "Bootstrap script"
	case PhaseSnapshot:
		return "Snapshot"
	case PhaseClone:
		return "Clone"
	case PhaseBoot:
		return "Boot"
	case PhaseStart:
		return "Start script"
	}
	return name
}
