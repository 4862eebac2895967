package agent

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// account is who a process runs as.
type account struct {
	uid, gid    int
	groups      []int
	name        string // empty without an entry in /etc/passwd
	home, shell string
}

const maxIDNumber = 1<<32 - 2 // (uid_t)-1 means "leave it" to the kernel

// lookupUser resolves what an image's USER may say, with the rules of Docker: a name before a number, a number without
// an entry has group 0, and an explicit group stands alone.
func lookupUser(spec string) (account, error) {
	who, group, hasGroup := strings.Cut(spec, ":")
	if who == "" {
		who = "0"
	}
	a := account{home: "/", shell: "/bin/sh"}
	number, numErr := strconv.ParseUint(who, 10, 32)
	isNumber := numErr == nil && number <= maxIDNumber
	entry := find("/etc/passwd", 7, func(f []string) bool { return f[0] == who })
	if entry == nil && isNumber {
		entry = find("/etc/passwd", 7, func(f []string) bool { return f[2] == strconv.FormatUint(number, 10) })
	}
	switch {
	case entry != nil:
		uid, err := strconv.ParseUint(entry[2], 10, 32)
		gid, gerr := strconv.ParseUint(entry[3], 10, 32)
		if err != nil || gerr != nil || uid > maxIDNumber || gid > maxIDNumber {
			return a, fail(CodeUser, "the image's /etc/passwd has no valid ids for user %q", who)
		}
		a.uid, a.gid, a.name = int(uid), int(gid), entry[0]
		if entry[5] != "" {
			a.home = entry[5]
		}
		if entry[6] != "" {
			a.shell = entry[6]
		}
	case isNumber:
		a.uid = int(number)
	default:
		return a, fail(CodeUser, "user %q is not in the image's /etc/passwd", who)
	}
	if hasGroup && group != "" {
		gid, err := lookupGroup(group)
		if err != nil {
			return a, err
		}
		a.gid, a.groups = gid, []int{gid}
		return a, nil
	}
	a.groups = supplementary(a.name, a.gid)
	return a, nil
}

func lookupGroup(group string) (int, error) {
	entry := find("/etc/group", 4, func(f []string) bool { return f[0] == group })
	text := group
	if entry != nil {
		text = entry[2]
	}
	if gid, err := strconv.ParseUint(text, 10, 32); err == nil && gid <= maxIDNumber {
		return int(gid), nil
	}
	return 0, fail(CodeUser, "group %q is not in the image's /etc/group", group)
}

func supplementary(name string, gid int) []int {
	groups := []int{gid}
	if name == "" {
		return groups
	}
	find("/etc/group", 4, func(f []string) bool {
		id, err := strconv.ParseUint(f[2], 10, 32)
		if err == nil && id <= maxIDNumber && len(groups) < 1024 && slices.Contains(strings.Split(f[3], ","), name) &&
			!slices.Contains(groups, int(id)) {
			groups = append(groups, int(id))
		}
		return false
	})
	return groups
}

// find returns the first line of a colon separated file that matches. The image may have made the file anything:
// what is no regular file has no lines, and no more than 4 MiB is read.
func find(file string, fields int, match func([]string) bool) []string {
	f, err := os.OpenFile(file, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	sc := bufio.NewScanner(io.LimitReader(f, 4<<20))
	sc.Buffer(nil, 256<<10)
	for sc.Scan() {
		l := strings.Split(strings.TrimRight(sc.Text(), "\r"), ":")
		if len(l) >= fields && match(l) {
			return l
		}
	}
	return nil
}

func userName(uid int) string {
	text := strconv.Itoa(uid)
	if e := find("/etc/passwd", 7, func(f []string) bool { return f[2] == text }); e != nil {
		return clip(e[0], 64)
	}
	return text
}

// environment completes env for a: of doubles the last counts, and what it lacks of HOME, USER, LOGNAME, SHELL and TERM
// is added.
func environment(env []string, a account, tty bool) []string {
	seen := map[string]int{}
	var out []string
	set := func(key, entry string) {
		if i, ok := seen[key]; ok {
			out[i] = entry
			return
		}
		seen[key] = len(out)
		out = append(out, entry)
	}
	for _, e := range env {
		key, _, _ := strings.Cut(e, "=")
		set(key, e)
	}
	lacking := func(key, value string) {
		if _, ok := seen[key]; !ok && value != "" {
			set(key, key+"="+value)
		}
	}
	lacking("HOME", a.home)
	lacking("USER", a.name)
	lacking("LOGNAME", a.name)
	lacking("SHELL", a.shell)
	if tty {
		lacking("TERM", "xterm-256color")
	} else {
		lacking("TERM", "dumb")
	}
	return out
}

// value is what env says of key.
func value(env []string, key string) (string, bool) {
	for _, e := range env {
		if k, v, _ := strings.Cut(e, "="); k == key {
			return v, true
		}
	}
	return "", false
}
