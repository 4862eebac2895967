package agent

import (
	"errors"
	"strings"
	"testing"
)

func TestUsersAreResolvedAsAnImagesUSER(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	const line = `echo $(id -u) $(id -g) "$(id -G)" "$HOME" "${USER-unset}" "${LOGNAME-unset}" "$SHELL"`
	for user, want := range map[string]string{
		"":             "0 0 0 /root root root /bin/bash",
		"root":         "0 0 0 /root root root /bin/bash",
		"coder":        "1000 1000 1000 27 998 /home/coder coder coder /bin/sh",
		"1000":         "1000 1000 1000 27 998 /home/coder coder coder /bin/sh",
		"coder:docker": "1000 998 998 /home/coder coder coder /bin/sh",
		"coder:55":     "1000 55 55 /home/coder coder coder /bin/sh",
		"1000:1001":    "1000 1001 1001 /home/coder coder coder /bin/sh",
		"odd":          "1234 77 77 27 /opt/odd odd odd /bin/sh",
		"4242":         "4242 0 0 / unset unset /bin/sh",
		"4242:4343":    "4242 4343 4343 / unset unset /bin/sh",
		"70000":        "70000 0 0 / unset unset /bin/sh",
		"daemon":       "1 1 1 998 /usr/sbin daemon daemon /usr/sbin/nologin",
	} {
		out, exit := b.run(Cmd{Argv: []string{"/bin/sh", "-c", line}, User: user})
		if strings.TrimSpace(out) != want || exit.Code != 0 {
			t.Errorf("%q: %q %+v, want %q", user, out, exit, want)
		}
	}
	out, _ := b.run(Cmd{Argv: []string{"/bin/sh", "-c", line}, User: "coder", Env: []string{"HOME=/x", "USER=y", "SHELL="}})
	if strings.TrimSpace(out) != "1000 1000 1000 27 998 /x y coder" {
		t.Errorf("what Env says is not kept: %q", out)
	}
}

func TestUnknownUsersAreNamed(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	for user, says := range map[string]string{
		"nobody-here":   `user "nobody-here" is not in the image's /etc/passwd`,
		"coder:nogroup": `group "nogroup" is not in the image's /etc/group`,
		"-1":            `user "-1" is not in`,
		"4294967295":    `user "4294967295" is not in`,
		"2000000":       "can't run as uid 2000000 (uid 2000000, gid 0)",
	} {
		_, err := b.Start(ctx(t), Cmd{ID: "u", Argv: []string{"true"}, User: user})
		if !errors.Is(err, ErrUser) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func TestAPasswdThatIsNoFileIsNoTrap(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.sh("rm /etc/passwd /etc/group; mkfifo /etc/passwd; ln -s /dev/zero /etc/group")
	if out, exit := b.run(Cmd{Argv: []string{"/bin/sh", "-c", "echo $HOME"}, User: "1000"}); out != "/\n" || exit.Code != 0 {
		t.Errorf("%q %+v", out, exit)
	}
}

func TestAUserGainsNoRootByTheAgent(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	out, _ := b.run(Cmd{User: "coder", Argv: []string{"/bin/sh", "-c",
		"grep -E '^(Uid|Gid|CapEff|CapPrm|CapInh|CapAmb)' /proc/self/status; kill -9 1 2>/dev/null || echo refused"}})
	want := "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nCapInh:\t0000000000000000\n" +
		"CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\nrefused\n"
	if out != want {
		t.Errorf("%q", out)
	}
}
