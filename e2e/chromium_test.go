package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// screen waits until a tab's terminal shows a line with text.
func screen(tab *world.Tab, text string) {
	quoted, _ := json.Marshal(text) // a string always has JSON
	tab.Until("the terminal shows "+text, `[...document.querySelectorAll('.xterm-rows > div')].some((row) => row.textContent.includes(`+string(quoted)+`))`)
}

func TestTheTerminalPageInChromium(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{}), t}
	s.applied(s.Push("chromium:1", imagetest.Busybox(t, nil)), "true", "")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	s.OK("session", "exec", id, "--", "true") // it is up

	c := s.Chromium()
	tab := c.Tab("about:blank")
	tab.SignIn(s.URL, "ana")
	tab.Go(s.URL + "/repos/7/sessions/" + id)
	tab.Press("#open-terminal")
	tab.Until("the terminal's page", `location.pathname.includes('/terminals/') && !!document.querySelector('.xterm-rows')`)
	tab.Keys("echo typed-$((20+3)) é\r")
	screen(tab, "typed-23 é")

	tab.Reload()
	screen(tab, "typed-23 é") // the scrollback
	tab.Keys("echo after-$((30+4))\r")
	screen(tab, "after-34")

	var at string
	if err := tab.Eval(`location.href`, &at); err != nil {
		t.Fatal(err)
	}
	other := c.Tab(at)
	screen(other, "after-34")
	other.Keys("echo other-$((40+5))\r")
	screen(other, "other-45")
	screen(tab, "other-45")
	tab.Keys("echo first-$((50+6))\r")
	screen(other, "first-56")

	pastes(s, tab, id, 1<<20)

	// Hub and Runner end in good order and are killed: it goes on by itself, with what is typed before the new Hub has said a word.
	if err := tab.Eval(`(() => { const Socket = WebSocket; window.WebSocket = class extends Socket { constructor(...of) {
super(...of);
this.addEventListener('message', () => {
const data = new DataTransfer(); data.setData('text/plain', 'echo between-$((1+1))\n');
document.querySelector('.xterm-helper-textarea').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
}, { once: true }); } }; })()`, nil); err != nil {
		t.Fatal(err)
	}
	s.Hub.Stop()
	s.Runner.Kill()
	s.Restart()
	screen(tab, "first-56")
	screen(tab, "between-2")
	tab.Keys("echo again-$((60+7))\r")
	screen(tab, "again-67")
	screen(other, "again-67")
	c.Wrong() // connections that were refused
}

// pastes puts so many bytes into the terminal at once, and looks that all of them arrived.
func pastes(s *story, tab *world.Tab, id string, size int) {
	s.t.Helper()
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "line %06d of what is pasted, with an é\n", i)
	}
	tab.Keys("stty -echo; echo reads-$((70+8)); cat >/tmp/pasted; stty echo; echo done-$((80+9))\r")
	screen(tab, "reads-78")
	text, _ := json.Marshal(b.String()) // a string always has JSON
	if err := tab.Eval(`(() => { const data = new DataTransfer(); data.setData('text/plain', `+string(text)+`);
document.querySelector('.xterm-helper-textarea').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); })()`, nil); err != nil {
		s.t.Fatal(err)
	}
	want := fmt.Sprintf("%x  /tmp/pasted\n", sha256.Sum256([]byte(b.String())))
	s.Eventually(2*time.Minute, "what was pasted is all there", func() error {
		if r := s.CLI("session", "exec", id, "--", "sh", "-c", "wc -c </tmp/pasted; sha256sum /tmp/pasted"); r.Stdout != fmt.Sprintf("%d\n%s", b.Len(), want) {
			return fmt.Errorf("%s; want %d bytes, %s", r, b.Len(), want)
		}
		return nil
	})
	tab.Keys("\x04")
	screen(tab, "done-89")
}

func TestAPortOpensInChromium(t *testing.T) {
	t.Parallel()
	s := &story{world.New(t, world.Options{Hub: map[string]string{"ports_domain": "ports.localhost"}}), t}
	s.applied(s.Push("chromium:2", imagetest.Busybox(t, nil)), "mkdir -p /srv/www", "httpd -p 127.0.0.1:8000 -h /srv/www")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))
	if r := s.CLIWith(`<title>theirs</title><script>
document.cookie = 'mine=1';
fetch('/data').then((r) => r.text()).then((text) => { document.title = text.trim() + ' ' + document.cookie; });
</script>`, "session", "exec", "-i", id, "--", "sh", "-c", "cat >/srv/www/index.html; echo fetched >/srv/www/data"); r.Code != 0 {
		t.Fatal(r)
	}

	c := s.Chromium()
	tab := c.Tab("about:blank")
	tab.SignIn(s.URL, "ana")
	tab.Go(s.URL + "/repos/7/sessions/" + id)
	tab.Until("the port's form is sent", `(() => { const e = document.getElementById('port'); if (e) { e.value = '8000'; e.form.requestSubmit(); } return !!e; })()`)
	origin := strings.Replace(s.URL, "127.0.0.1", id+"-8000.ports.localhost", 1)
	tab.Until("the port's page runs at its own origin, and sees no cookie of the Hub's", fmt.Sprintf(`location.href === %q && document.title === 'fetched mine=1'`, origin+"/"))
	// From there, nobody gets at the Hub.
	var got string
	if err := tab.Eval(fmt.Sprintf(`fetch(%q, { method: 'POST', credentials: 'include', mode: 'no-cors' }).then((r) => r.type, (e) => 'refused')`, s.URL+"/repos/7/sessions/"+id+"/sleep"), &got); err != nil {
		t.Fatal(err)
	}
	s.contains(s.OK("session", "ls"), "running")
	c.Wrong() // that the Hub refused, and that there is no favicon

	// Signed out of the Hub, and in again by a port's address alone.
	tab.Go(s.URL + "/account")
	tab.Press("form.who button")
	tab.Until("somebody is signed out", `location.pathname === '/sign-in'`)
	tab.Go(origin + "/index.html?x=1")
	tab.Until("the sign-in page", `(() => { const e = document.querySelector('input[name=login]'); if (e) { e.value = 'ana'; e.form.requestSubmit(); } return !!e; })()`)
	tab.Until("the page that was wanted", fmt.Sprintf(`location.href === %q && document.title === 'fetched mine=1'`, origin+"/index.html?x=1"))
	c.Wrong() // there is no favicon
}
