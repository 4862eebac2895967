package build

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// User is an image's USER as ids inside the Sandbox.
type User struct {
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Name  string `json:"name,omitempty"`
	Shell string `json:"shell,omitempty"` // login shell of /etc/passwd
}

const accountFileMax = 4 << 20

// resolveUser finds user ("", "name", "uid", "name:group", "uid:gid") in the account files of a root filesystem. They
// were written by strangers. A uid needs no entry (facts/recipes.md B15).
func resolveUser(passwd, groups, user string) (User, error) {
	name, group, _ := strings.Cut(user, ":")
	if name == "" {
		name = "0"
	}
	u, found := User{}, false
	for _, f := range fields(passwd) {
		if len(f) < 4 || f[0] != name && f[2] != name || found {
			continue
		}
		uid, err1 := id(f[2])
		gid, err2 := id(f[3])
		if err1 != nil || err2 != nil {
			continue
		}
		u, found = User{UID: uid, GID: gid, Name: f[0]}, true
		if len(f) >= 7 {
			u.Shell = f[6]
		}
	}
	if !found {
		uid, err := id(name)
		if err != nil {
			return User{}, noUser("the image's user %q is not in its /etc/passwd", name)
		}
		u.UID = uid
	}
	if group == "" {
		return u, nil
	}
	if gid, err := id(group); err == nil {
		u.GID = gid
		return u, nil
	}
	for _, f := range fields(groups) {
		if len(f) >= 3 && f[0] == group {
			if gid, err := id(f[2]); err == nil {
				u.GID = gid
				return u, nil
			}
		}
	}
	return User{}, noUser("the image's group %q is not in its /etc/group", group)
}

func noUser(format string, a ...any) error {
	return &Failed{wire.Failure{Code: strings.ReplaceAll(string(agent.CodeUser), "_", "-"), Message: fmt.Sprintf(format, a...)}}
}

func id(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= sandbox.IDRange {
		return 0, errors.New("no id")
	}
	return n, nil
}

func fields(b string) [][]string {
	var all [][]string
	sc := bufio.NewScanner(strings.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		all = append(all, strings.Split(strings.TrimSpace(sc.Text()), ":"))
	}
	return all
}
