package proposal

import (
	"github.com/claude-hub/claude-hub/app/github"
)

// facts are what GitHub says of a pull request, read one after another after its row was.
type facts struct {
	repo github.Repository
	pull github.PullRequest
	// head is what its head has; base what there was where it began. Of a merged one, merged is what the merge made of it, with what
	// others had merged before, and branch what the default branch has now.
	head, base, merged, branch document
}

// says is the document that its draft is made of.
func (f facts) says() document {
	if f.pull.Merged {
		return f.merged
	}
	return f.head
}

// decision is what follows from facts, with the reason for the log. Deciding changes nothing (facts/github.md §2, bulldozer).
type decision struct {
	state  State
	file   File
	reason string
	// outcome of a merged one: Needs stands for "apply it if it may be".
	outcome Outcome
}

// drafts says that the pull request has a draft of what it proposes.
func (d decision) drafts() bool {
	return d.file == Valid && (d.state == Open || d.outcome == Needs)
}

func decide(f facts) decision {
	d := decision{state: Open, file: fileOf(f.head, f.base)}
	switch {
	case f.pull.Merged:
		d.state = Merged
		d.file, d.outcome, d.reason = merged(f, d.file)
	case !f.pull.Open:
		d.state, d.reason = Closed, "closed without being merged"
	default:
		d.reason = map[File]string{
			None: "proposes no Environment", Deleted: "deletes the Environment's file", Unchanged: "leaves the Environment's file as it was",
			Invalid: "proposes an Environment that is invalid", Valid: "proposes an Environment",
		}[d.file]
	}
	return d
}

func fileOf(head, base document) File {
	switch {
	case head.absent && base.absent:
		return None
	case head.absent:
		return Deleted
	case !base.absent && head.blobs == base.blobs:
		return Unchanged
	case !head.valid():
		return Invalid
	}
	return Valid
}

// merged decides about what is on the default branch already. Only what the pull request itself changed is its own: what others
// left there unapplied isn't applied in the name of who merged something else. That it is still there is asked of the branch, since
// pull requests are merged, and events arrive, in any order.
func merged(f facts, file File) (File, Outcome, string) {
	switch {
	case f.pull.Base.Ref != f.repo.DefaultBranch:
		return None, Elsewhere, "merged into " + f.pull.Base.Ref + ", which is not the default branch"
	case file == None || file == Unchanged:
		return file, Nothing, "merged without touching the Environment's file"
	case f.branch.absent != f.merged.absent || f.branch.blobs != f.merged.blobs:
		return file, Superseded, "merged, and changed since by somebody else"
	case f.merged.absent:
		return Deleted, Kept, "merged, which deletes the Environment's file: the Environment stays"
	case !f.merged.valid():
		return Invalid, Wrong, "merged although it is invalid"
	}
	return Valid, Needs, "merged"
}
