package session

import (
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// own has the Workspace and what is beside it on the disk belong to the image's user, who may be another one than at the boot before.
// That it can't be is said and stops no boot; the next one tries again. What the person gave to others stays theirs.
func (m *Machine) own(mounted sandbox.Mounted, folder string, user build.User) error {
	to := build.Owner{UID: user.UID, GID: user.GID}
	var from build.Owner
	if had := m.State().Owner; had != nil {
		from = *had
	} else {
		var err error
		if from, err = build.OwnerOf(mounted, folder); err != nil {
			return err
		}
	}
	if from != to {
		if err := build.HandOver(mounted, from, to); err != nil {
			m.log().Mark("disk: what belonged to the image's user before, %d:%d, can't be given to %d:%d: %v", from.UID, from.GID, to.UID, to.GID, err)
			m.track.Note(m.log().Text("the image's user is another one than before, and does not own all of the Workspace: " + err.Error()))
			return nil
		}
		m.log().Mark("disk: the image's user is %d:%d now and was %d:%d; Workspace, dependency folders and caches were given to it", to.UID, to.GID, from.UID, from.GID)
	} else if m.State().Owner != nil {
		return nil
	}
	return m.edit(func(st *State) { st.Owner = &to })
}
