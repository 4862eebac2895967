package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Chromium is a real browser, with JavaScript, steered by its DevTools protocol.
type Chromium struct {
	t    testing.TB
	conn *websocket.Conn

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	wrong   []string // errors of pages, their policy's refusals among them
}

type answer struct {
	result json.RawMessage
	err    error
}

// Tab is one of its tabs.
type Tab struct {
	c       *Chromium
	session string
}

// Chromium starts one in which nobody is signed in. The test fails when a page has an error that Wrong didn't take.
func (w *World) Chromium() *Chromium {
	w.t.Helper()
	path, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		if path, err = exec.LookPath("chromium"); err != nil {
			w.t.Fatal("there is no chromium: scripts/packages test installs it")
		}
	}
	profile := filepath.Join(w.Dir, "chromium")
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--user-data-dir="+profile, blank)
	cmd.Env = append(os.Environ(), "HOME="+w.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	c := &Chromium{t: w.t, waiting: map[int]chan answer{}}
	w.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // killed
		for _, text := range c.Wrong() {
			w.t.Errorf("a page says: %s", text)
		}
	})
	w.Eventually(60*time.Second, "chromium listens", func() error {
		b, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		port, path, ok := strings.Cut(strings.TrimSpace(string(b)), "\n")
		if !ok {
			return fmt.Errorf("it wrote %q so far", b)
		}
		c.conn, _, err = websocket.Dial(w.t.Context(), "ws://127.0.0.1:"+port+path, nil)
		return err
	})
	c.conn.SetReadLimit(64 << 20)
	go c.read()
	return c
}

func (c *Chromium) read() {
	for {
		_, b, err := c.conn.Read(context.Background())
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, ch := range c.waiting {
				ch <- answer{err: err}
			}
			clear(c.waiting)
			return
		}
		var m struct {
			ID     int             `json:"id"`
			Method string          `json:"method"`
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
			Params struct {
				Entry struct {
					Level, Text, URL string
				} `json:"entry"`
				ExceptionDetails json.RawMessage `json:"exceptionDetails"`
			} `json:"params"`
		}
		if json.Unmarshal(b, &m) != nil {
			continue
		}
		c.mu.Lock()
		switch {
		case m.ID > 0 && c.waiting[m.ID] != nil:
			a := answer{result: m.Result}
			if m.Error != nil {
				a.err = fmt.Errorf("%s", m.Error.Message)
			}
			c.waiting[m.ID] <- a
			delete(c.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown":
			c.wrong = append(c.wrong, string(m.Params.ExceptionDetails))
		case m.Method == "Log.entryAdded" && m.Params.Entry.Level == "error":
			c.wrong = append(c.wrong, m.Params.Entry.Text+" ("+m.Params.Entry.URL+")")
		}
		c.mu.Unlock()
	}
}

// Wrong takes the errors that pages had so far.
func (c *Chromium) Wrong() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrong := c.wrong
	c.wrong = nil
	return wrong
}

func (c *Chromium) call(session, method string, params any, into any) error {
	c.mu.Lock()
	c.last++
	id, ch := c.last, make(chan answer, 1)
	c.waiting[id] = ch
	c.mu.Unlock()
	b, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": session})
	if session == "" {
		b, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	if err := c.conn.Write(ctx, websocket.MessageText, b); err != nil {
		return err
	}
	select {
	case a := <-ch:
		if a.err == nil && into != nil {
			a.err = json.Unmarshal(a.result, into)
		}
		if a.err != nil {
			return fmt.Errorf("%s: %w", method, a.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer: %w", method, ctx.Err())
	}
}

const blank = "about:blank"

// Tab opens one at an address.
func (c *Chromium) Tab(address string) *Tab {
	c.t.Helper()
	var target struct{ TargetID string }
	if err := c.call("", "Target.createTarget", map[string]any{"url": blank}, &target); err != nil {
		c.t.Fatal(err)
	}
	var attached struct{ SessionID string }
	if err := c.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		c.t.Fatal(err)
	}
	tab := &Tab{c, attached.SessionID}
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		tab.must(domain+".enable", nil, nil)
	}
	// Each tab takes itself for the one that somebody is in.
	tab.must("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	if address != blank {
		tab.Go(address)
	}
	return tab
}

func (t *Tab) must(method string, params any, into any) {
	t.c.t.Helper()
	if params == nil {
		params = struct{}{}
	}
	if err := t.c.call(t.session, method, params, into); err != nil {
		t.c.t.Fatal(err)
	}
}

// Go has the tab at an address.
func (t *Tab) Go(address string) {
	t.c.t.Helper()
	t.leave("Page.navigate", map[string]any{"url": address})
}

// Reload loads the page again.
func (t *Tab) Reload() {
	t.c.t.Helper()
	t.leave("Page.reload", nil)
}

// leave returns when the page that was there is gone, and can't be taken for the next one any more.
func (t *Tab) leave(method string, params any) {
	t.c.t.Helper()
	if err := t.Eval(`window.isLeft = true`, nil); err != nil {
		t.c.t.Fatal(err)
	}
	t.must(method, params, nil)
	t.Until("the page is another one", `!window.isLeft`)
}

// Eval runs an expression in the page, whose value comes as into.
func (t *Tab) Eval(expression string, into any) error {
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := t.c.call(t.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true}, &got)
	if err != nil {
		return err
	}
	if d := got.ExceptionDetails; d != nil {
		return fmt.Errorf("%s: %s", d.Text, d.Exception.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(got.Result.Value, into)
}

// Press clicks what a CSS selector finds, once it is there.
func (t *Tab) Press(selector string) {
	t.c.t.Helper()
	t.Until("there is "+selector, fmt.Sprintf(`(() => { const e = document.querySelector(%q); if (e) e.click(); return !!e; })()`, selector))
}

// Until waits until an expression is true. On a loaded machine Chromium has shown its own page of errors in place of one that the Hub
// had answered, and whose WebSocket was open: it is loaded again, and the test's log says so.
func (t *Tab) Until(what, expression string) {
	t.c.t.Helper()
	errBroken := errors.New("the page could not be loaded")
	err := Poll(t.c.t.Context(), 2*time.Minute, func() error {
		var yes, broken bool
		if err := t.Eval(`location.protocol === 'chrome-error:' && !window.isLeft && (window.isLeft = true)`, &broken); err != nil {
			return err
		}
		if broken {
			t.c.t.Logf("%v, and is loaded again, while it was waited that %s", errBroken, what)
			return errors.Join(errBroken, t.c.call(t.session, "Page.reload", struct{}{}, nil))
		}
		if err := t.Eval(expression, &yes); err != nil {
			return err
		}
		if !yes {
			return fmt.Errorf("not so")
		}
		return nil
	})
	if err != nil {
		var shows string
		_ = t.Eval(`location.href + "\n" + document.body.innerText`, &shows) // for the message only
		t.c.t.Fatalf("%s: %v; the page shows\n%s", what, err, shows)
	}
}

// Keys types text, key by key; "\r" is Enter.
func (t *Tab) Keys(text string) {
	t.c.t.Helper()
	for _, r := range text {
		key := map[string]any{"type": "keyDown", "text": string(r), "key": string(r)}
		switch {
		case r == '\r':
			key["key"], key["code"], key["windowsVirtualKeyCode"] = "Enter", "Enter", 13
		case r < ' ':
			letter := string(r + 'A' - 1)
			key = map[string]any{"type": "keyDown", "key": strings.ToLower(letter), "code": "Key" + letter, "windowsVirtualKeyCode": int(letter[0]), "modifiers": 2}
		}
		t.must("Input.dispatchKeyEvent", key, nil)
		key["type"] = "keyUp"
		delete(key, "text")
		t.must("Input.dispatchKeyEvent", key, nil)
	}
}

// SignIn signs a person in by dev login, and leaves the tab at the Hub's first page.
func (t *Tab) SignIn(hub, login string) {
	t.c.t.Helper()
	t.Go(hub + "/sign-in")
	t.Until("the sign-in page", fmt.Sprintf(`(() => { const e = document.querySelector('input[name=login]'); if (e) { e.value = %q; e.form.requestSubmit(); } return !!e; })()`, login))
	t.Until("somebody is signed in", `location.pathname === '/' && !!document.querySelector('form.who')`)
}
