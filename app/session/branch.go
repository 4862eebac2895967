package session

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/fault"
)

// branchMax is the longest name of a branch, in bytes: as a file below .git it has to fit with what git adds to it.
const branchMax = 200

// checkBranch refuses what git check-ref-format --branch does, and what nobody could read. Empty: git, or the Hub, chooses.
func checkBranch(field, name string) error {
	if name == "" || len(name) <= branchMax && isBranch(name) {
		return nil
	}
	return fault.Field(field, "%q is not a branch name that git takes: no spaces, none of ~ ^ : ? * [ \\, no .. or @{, no - in front; "+
		"no part between slashes is empty, begins with a dot or ends with .lock; at most %d bytes.", name, branchMax)
}

func isBranch(name string) bool {
	if !utf8.ValidString(name) || name == "HEAD" || name == "@" || name[0] == '-' || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	if strings.ContainsFunc(name, func(c rune) bool { return c == ' ' || !unicode.IsPrint(c) || strings.ContainsRune(`~^:?*[\`, c) }) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}
