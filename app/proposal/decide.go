package proposal

import (
	"github.com/claude-hub/claude-hub/app/github"
)

// facts are what GitHub says of a pull request, read one after another after its row was.
type facts struct {
	repo github.Repository
	pull github.PullRequest
	// head is what its head has; base what there was where it began. Of a merged one head is what its merge commit has, and
	// branch what the default branch has now.
	head, base, branch document
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
		d.outcome, d.reason = merged(f, d.file)
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

// merged decides about what is on the default branch already. That it is still there is asked of the branch, since pull requests
// are merged and events arrive in any order.
func merged(f facts, file File) (Outcome, string) {
	switch {
	case f.pull.Base.Ref != f.repo.DefaultBranch:
		return Elsewhere, "merged into " + f.pull.Base.Ref + ", which is not the default branch"
	case file == None || file == Unchanged:
		return Nothing, "merged without touching the Environment's file"
	case f.branch.absent != f.head.absent || f.branch.blobs != f.head.blobs:
		return Superseded, "merged, and changed since by somebody else"
	case file == Deleted:
		return Kept, "merged, which deletes the Environment's file: the Environment stays"
	case file == Invalid:
		return Wrong, "merged although it is invalid"
	}
	return Needs, "merged"
}
