package agent

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A plan is what a survey of the Workspace found when everything in the Sandbox had ended. A boot takes it for its own survey, since
// nothing can have changed: with a disk that was mounted just now, looking through a large Workspace takes ten times as long as with one
// that is in memory. Each plan is used once; a Sandbox that was killed leaves none.
type plan struct {
	Patterns []Pattern
	Found    []planned
}

type planned struct {
	Rel              []byte
	Has, Match, Left bool
	Kept             string `json:",omitempty"`
}

const (
	maxPlan = 16 << 20
	// worthAPlan is how many folders a Workspace has that takes longer to look through than a plan is worth on the disk.
	worthAPlan = 64
)

func (s *store) leavePlan(patterns []Pattern, v survey) error {
	p := plan{Patterns: patterns}
	for _, x := range v.found {
		n := planned{Rel: []byte(x.rel), Has: x.has, Match: x.match, Left: x.left}
		if x.kept != nil {
			n.Kept = x.kept.id
		}
		p.Found = append(p.Found, n)
	}
	b, err := json.Marshal(p)
	if err != nil || len(b) > maxPlan {
		return errors.Join(err, unix.EFBIG)
	}
	const tmp = planName + ".new"
	fd, err := unix.Openat(s.keep, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), tmp)
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return unix.Renameat(s.keep, tmp, s.keep, planName)
}

// takePlan gives what the last boot left for these patterns, if it did.
func (s *store) takePlan(patterns []Pattern, all []*kept) (survey, bool) {
	fd, err := unix.Openat(s.keep, planName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return survey{}, false
	}
	f := os.NewFile(uintptr(fd), planName)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPlan))
	// From now on it may be wrong. The file system makes nothing durable that comes after this before this is.
	if err := errors.Join(err, unix.Unlinkat(s.keep, planName, 0)); err != nil {
		return survey{}, false
	}
	var p plan
	if json.Unmarshal(b, &p) != nil || !slices.Equal(p.Patterns, patterns) {
		return survey{}, false
	}
	byID := map[string]*kept{}
	for _, k := range all {
		byID[k.id] = k
	}
	var out survey
	for _, n := range p.Found {
		k := byID[n.Kept]
		if n.Kept != "" && k == nil {
			return survey{}, false // the disk was damaged, or made anew
		}
		out.found = append(out.found, found{rel: string(n.Rel), has: n.Has, match: n.Match, left: n.Left, kept: k})
	}
	return out, true
}
