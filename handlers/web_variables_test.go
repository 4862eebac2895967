package handlers_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const environmentPath = repoPath + "/environment"

// fill is what a browser would send of the form with that action on a page, with some fields filled in otherwise; an empty
// text takes a field away. Text goes through what browsers do to it: each line break is sent as CR LF.
func (b *browser) fill(p page, action string, changes url.Values) url.Values {
	b.t.Helper()
	begin := strings.Index(p.body, `action="`+action+`"`)
	if begin < 0 {
		b.t.Fatalf("no form leads to %s:\n%s", action, p.body)
	}
	form := p.body[begin:]
	form = form[:strings.Index(form, "</form>")]
	out := url.Values{}
	attribute := func(tag, name string) string {
		m := regexp.MustCompile(`\s` + name + `="([^"]*)"`).FindStringSubmatch(tag)
		if m == nil {
			return ""
		}
		return unescape(m[1])
	}
	for _, tag := range regexp.MustCompile(`<input[^>]*>`).FindAllString(form, -1) {
		switch kind := attribute(tag, "type"); {
		case kind == "file", (kind == "radio" || kind == "checkbox") && !strings.Contains(tag, " checked"):
		default:
			out.Set(attribute(tag, "name"), attribute(tag, "value"))
		}
	}
	for _, m := range regexp.MustCompile(`(?s)(<textarea[^>]*>)\n?(.*?)</textarea>`).FindAllStringSubmatch(form, -1) {
		out.Set(attribute(m[1], "name"), unescape(m[2]))
	}
	for _, m := range regexp.MustCompile(`(?s)(<select[^>]*>)(.*?)</select>`).FindAllStringSubmatch(form, -1) {
		options := regexp.MustCompile(`<option([^>]*)>([^<]*)<`).FindAllStringSubmatch(m[2], -1)
		for i, o := range options {
			if i == 0 || strings.Contains(o[1], " selected") {
				value := unescape(o[2])
				if strings.Contains(o[1], "value=") {
					value = attribute(o[1], "value")
				}
				out.Set(attribute(m[1], "name"), value)
			}
		}
	}
	for name, values := range changes {
		if out.Set(name, values[0]); values[0] == "" && regexp.MustCompile(`type="checkbox"[^>]*name="`+regexp.QuoteMeta(name)+`"`).MatchString(form) {
			out.Del(name)
		}
	}
	for name := range out {
		lf := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(out.Get(name))
		out.Set(name, strings.ReplaceAll(lf, "\n", "\r\n"))
	}
	return out
}

func unescape(s string) string {
	return strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&#43;", "+", "&lt;", "<", "&gt;", ">", "&#13;", "\r", "&amp;", "&").Replace(s)
}

// upload posts a form as browsers do where it has files.
func (b *browser) upload(path string, form url.Values, files map[string]string) page {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for name := range form {
		if err := w.WriteField(name, form.Get(name)); err != nil {
			b.t.Fatal(err)
		}
	}
	for name, content := range files {
		f, err := w.CreateFormFile(name, "value.bin")
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.t.Fatal(err)
	}
	req := b.request(http.MethodPost, path, &body)
	req.Header.Set("Content-Type", w.FormDataContentType())
	return b.do(req)
}

// change fills in the form that stands on the page at path, posts it to action, and has to succeed.
func (b *browser) change(path, action string, changes url.Values, files map[string]string) string {
	b.t.Helper()
	p := b.upload(action, b.fill(b.see(path), action, changes), files)
	if p.status != http.StatusSeeOther {
		b.t.Fatalf("post %s: %d\n%s", action, p.status, p.body)
	}
	return p.header.Get("Location")
}

func (b *browser) add(name, kind, value string, more url.Values) string {
	b.t.Helper()
	changes := url.Values{"name": {name}, "kind": {kind}, "value": {value}}
	for k, v := range more {
		changes[k] = v
	}
	return b.change(environmentPath+"/add-variable", environmentPath+"/add-variable", changes, nil)
}

func (s *site) environment() environment.Environment {
	s.t.Helper()
	env, err := s.Environments.Get(s.t.Context(), s.Grant("ana"))
	if err != nil {
		s.t.Fatal(err)
	}
	return env
}

// saved is a Variable of the draft.
func (s *site) saved(name string) envspec.Variable {
	s.t.Helper()
	for _, v := range s.environment().Draft.Spec.Variables {
		if v.Name == name {
			return v
		}
	}
	s.t.Fatalf("the draft has no Variable %s", name)
	return envspec.Variable{}
}

// values are what a Runner gets for a Test build of the draft.
func (s *site) values(r *apptest.Runner) map[string]*wire.Value {
	s.t.Helper()
	if _, err := s.Environments.Test(s.t.Context(), s.Grant("ana"), s.environment().Draft.Revision, r.ID); err != nil {
		s.t.Fatal(err)
	}
	item := r.Item()
	values, refused := r.Values(item)
	if refused != "" {
		s.t.Fatal(refused)
	}
	r.Pass(item)
	return values
}

func sum(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

func TestTheFormKeepsWhatItDoesNotShow(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	before := spec()
	before.Docker, before.Folders = true, &[]envspec.Folder{{Pattern: "**/_build"}, {Pattern: "**/deps", Beside: "mix.exs"}}
	before.Bootstrap, before.BootstrapFile, before.Start, before.StartFile = "\n\necho a\rb\n", "scripts/bootstrap.sh", "echo start", "scripts/start.sh"
	before.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true, Build: true}, {Name: "REGION", Value: "eu-1"}}
	saved, err := s.Environments.Save(t.Context(), s.Grant("ana"), 0, before, map[string][]byte{"NPM": []byte("npm-token-1")})
	if err != nil {
		t.Fatal(err)
	}
	b := s.as("ana")
	b.see(environmentPath, "It was read from the file <code>scripts/bootstrap.sh</code>", "**/_build\n**/deps beside mix.exs\n", "Images that the bootstrap script pulls or builds are not in Sessions")
	b.change(environmentPath, environmentPath, url.Values{"image": {"debian:12"}, "cpu": {"2"}, "start": {"echo other"}}, nil)
	want := saved.Spec
	want.Image, want.CPU, want.Start, want.StartFile = "debian:12", 2, "echo other", ""
	asJSON := func(s envspec.Spec) string { b, _ := json.Marshal(s); return string(b) }
	if got := s.environment().Draft.Spec; asJSON(got) != asJSON(want) {
		t.Errorf("after changing image, CPU and start script in the form:\n%s\nwant\n%s", asJSON(got), asJSON(want))
	}
	for _, c := range []struct {
		set  url.Values
		want string
	}{
		{url.Values{"folders": {"none"}}, "[]"},
		{url.Values{"folders": {"own"}, "patterns": {"**/vendor\n\n  **/my files beside go.mod  "}}, `[{"pattern":"**/vendor"},{"pattern":"**/my files","beside":"go.mod"}]`},
		{url.Values{"folders": {"default"}}, "null"},
	} {
		b.change(environmentPath, environmentPath, c.set, nil)
		got, _ := json.Marshal(s.environment().Draft.Spec.Folders)
		if string(got) != c.want {
			t.Errorf("%v gives %s, want %s", c.set, got, c.want)
		}
	}
	if b.change(environmentPath, environmentPath, url.Values{"docker": {""}}, nil); s.environment().Draft.Spec.Docker {
		t.Error("Docker stays on when its tick is taken away")
	}
	for _, bad := range []url.Values{{"folders": {"own"}, "patterns": {" \n"}}, {"folders": {"own"}, "patterns": {"/etc"}}} {
		p := b.upload(environmentPath, b.fill(b.see(environmentPath), environmentPath, bad), nil)
		b.want(p, http.StatusUnprocessableEntity, `<a href="#folders">`, `id="folders-error"`, `value="own" checked`)
	}
}

func TestVariablesAreAddedEditedRenamedAndDeletedByForms(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		s := newSite(t, db, apptest.Options{})
		b := s.as("ana")
		const secret = "s3cret-0123456789"
		b.see(b.add("REGION", "plain", "eu-<1>", url.Values{"note": {"where <it> runs"}, "build": {"on"}}), "Saved as revision 1.", "<code>REGION</code>", "eu-&lt;1&gt;", "where &lt;it&gt; runs", "always")
		if v := s.saved("REGION"); v.Build || !v.Plain() {
			t.Errorf("a Plain one always reaches the bootstrap and has no tick: %+v", v)
		}
		b.see(b.add("TOKEN", "sensitive", secret, url.Values{"note": {"first"}}), "<code>TOKEN</code>", "by ana · digest <code>", "Sensitive")
		first := s.saved("TOKEN")

		// Note, tick and name leave the value as it is.
		edit := environmentPath + "/variables/"
		b.change(edit+"TOKEN", edit+"TOKEN", url.Values{"note": {"second"}, "build": {"on"}}, nil)
		b.change(edit+"TOKEN", edit+"TOKEN", url.Values{"name": {"API_TOKEN"}}, nil)
		renamed := s.saved("API_TOKEN")
		if renamed.ValueID != first.ValueID || !renamed.Build || renamed.Note != "second" || len(s.environment().Draft.Spec.Variables) != 2 {
			t.Errorf("after a note, a tick and a rename: %+v, before %+v", renamed, first)
		}
		b.change(edit+"API_TOKEN", edit+"API_TOKEN", url.Values{"build": {""}, "value": {"another-secret-1"}}, nil)
		if v := s.saved("API_TOKEN"); v.ValueID == first.ValueID || v.Build {
			t.Errorf("a new value and no tick: %+v", v)
		}

		// What can't be saved stands beside its field, and no Sensitive value comes back.
		for _, c := range []struct {
			path string
			set  url.Values
			says []string
		}{
			{"/add-variable", url.Values{"name": {"1X"}, "kind": {"sensitive"}, "value": {"never-shown-1"}}, []string{`<a href="#name">`, "begins with a letter or _", "give it again"}},
			{"/add-variable", url.Values{"name": {"REGION"}, "value": {"kept"}}, []string{`id="name-error"`, "There is a Variable or Link REGION already", "\nkept</textarea>"}},
			{"/add-variable", url.Values{"name": {"X"}, "kind": {"sensitive"}, "value": {"t1ny!"}}, []string{`id="value-error"`, "X can&#39;t be Sensitive: the value is too short to be kept out of logs"}},
			{"/add-variable", url.Values{"name": {"X"}, "kind": {"sensitive"}}, []string{`id="value-error"`, "Enter its value"}},
			{"/add-variable", url.Values{"name": {"X"}, "kind": {"link"}}, []string{`id="link-error"`, "Choose the Shared variable"}},
			{"/add-variable", url.Values{"name": {"X"}, "value": {strings.Repeat("x", 64<<10+1)}}, []string{`id="value-error"`, "the value is 65537 bytes long"}},
			{"/add-variable", url.Values{"name": {"X"}, "note": {strings.Repeat("x", 1025)}}, []string{`id="note-error"`, "at most 1024"}},
			{"/variables/API_TOKEN", url.Values{"kind": {"plain"}}, []string{`id="value-error"`, "never becomes Plain"}},
			{"/variables/API_TOKEN", url.Values{"value": {"t1ny!"}}, []string{`id="value-error"`, "can&#39;t be Sensitive"}},
			{"/variables/REGION", url.Values{"kind": {"sensitive"}, "value": {""}}, []string{`id="value-error"`, "Enter its value"}},
		} {
			p := b.upload(environmentPath+c.path, b.fill(b.see(environmentPath+c.path), environmentPath+c.path, c.set), nil)
			b.want(p, http.StatusUnprocessableEntity, c.says...)
			if c.set.Get("kind") == "sensitive" && c.set.Get("value") != "" && strings.Contains(p.body, c.set.Get("value")) {
				t.Errorf("%v comes back with its value:\n%s", c.set, p.body)
			}
		}
		// A value that was given beside something wrong isn't silently left out when that is mended.
		before := s.saved("API_TOKEN")
		p := b.upload(edit+"API_TOKEN", b.fill(b.see(edit+"API_TOKEN"), edit+"API_TOKEN", url.Values{"name": {"1X"}, "value": {"never-kept-1"}}), nil)
		p = b.upload(edit+"API_TOKEN", b.fill(p, edit+"API_TOKEN", url.Values{"name": {"API_TOKEN"}}), nil)
		b.want(p, http.StatusUnprocessableEntity, `id="value-error"`, "Give the value again")
		p = b.upload(edit+"REGION", b.fill(b.see(edit+"REGION"), edit+"REGION", url.Values{"name": {"1X"}, "value": {""}}), map[string]string{"value-file": "from a file"})
		p = b.upload(edit+"REGION", b.fill(p, edit+"REGION", url.Values{"name": {"REGION"}}), nil)
		b.want(p, http.StatusUnprocessableEntity, `id="value-error"`, "Give the value again")
		if p = b.upload(edit+"REGION", b.fill(p, edit+"REGION", nil), map[string]string{"value-file": "from a file"}); p.status != http.StatusSeeOther || s.saved("REGION").Value != "from a file" || s.saved("API_TOKEN") != before {
			t.Errorf("given again: %d, %+v", p.status, s.environment().Draft.Spec)
		}
		// An empty file is no value, and what is new has none to keep.
		for path, changes := range map[string]url.Values{environmentPath + "/add-variable": {"name": {"X"}, "kind": {"sensitive"}}, edit + "API_TOKEN": nil} {
			p = b.upload(path, b.fill(b.see(path), path, changes), map[string]string{"value-file": ""})
			b.want(p, http.StatusUnprocessableEntity, `id="value-error"`, "This file is empty: a Sensitive value has at least 8 characters")
		}
		b.change(edit+"API_TOKEN", edit+"API_TOKEN", url.Values{"kind": {"plain"}, "value": {"public now"}}, nil)
		if v := s.saved("API_TOKEN"); !v.Plain() || v.Value != "public now" {
			t.Errorf("Sensitive to Plain with a new value: %+v", v)
		}
		b.see(edit+"REGION/delete", "Delete <code>REGION</code>")
		b.change(edit+"REGION/delete", edit+"REGION/delete", nil, nil)
		if len(s.environment().Draft.Spec.Variables) != 1 {
			t.Error("a deleted Variable is still there")
		}
		for _, gone := range []string{"REGION", "REGION/delete", "REGION/value"} {
			if p := b.get(edit + gone); p.status != http.StatusNotFound {
				t.Errorf("%s of a deleted Variable: %d", gone, p.status)
			}
		}
	})
}

func TestNoPageEverShowsASensitiveValue(t *testing.T) {
	t.Parallel()
	s, all := furnished(t)
	b := s.as("ana")
	secrets := []string{"npm-token-0123456789", "shared-token-0123456789", "another-secret-0123"}
	edit := environmentPath + "/variables/NPM"
	b.change(edit, edit, url.Values{"value": {secrets[2]}}, nil)
	looked := 0
	for _, r := range all {
		if r.api || r.changes() || strings.HasSuffix(r.path, "/events") {
			continue
		}
		looked++
		p := r.send(b, r.path, nil)
		for _, secret := range secrets {
			if strings.Contains(p.body, secret) {
				t.Errorf("%s shows a Sensitive value", r.path)
			}
		}
	}
	if looked < 25 {
		t.Fatalf("only %d pages were looked at", looked)
	}
}

func TestValuesArriveByteForByteThroughForms(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r := s.as("ana"), s.Runner("r1")
	pem := "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
	texts := map[string]string{ // what stands in the text field, with LF
		"PEM": pem, "JSON": `{"a": "b\n\"c\"", "d": [1, 2]}`, "QUOTES": `'"` + "`" + `$HOME $(id) ${X} \n =#= & < > ;|`, "EMOJI": "some pâté 🦀 日本語 \u202e", "TRAILING": "a longer value\n\n", "LEADING": "\n\n  two lines first",
		"BIG": strings.Repeat("0123456789abcde\n", 4<<10), "TABS": "\ta tabbed value\t ",
	}
	files := map[string]string{"CRLF": "line one\r\nline two\r\n", "CR": "progress 1\rprogress 2\r", "BOM": "\ufeffwith a mark\n", "LARGE": strings.Repeat("🦀\r\n+%&=", 5461)}
	want := map[string]string{}
	for name, text := range texts {
		b.add(name, "plain", text, nil)
		b.add("S_"+name, "sensitive", text, url.Values{"build": {"on"}})
		want[name], want["S_"+name] = text, text
	}
	add := environmentPath + "/add-variable"
	for name, content := range files {
		b.change(add, add, url.Values{"name": {name}, "kind": {"plain"}}, map[string]string{"value-file": content})
		b.change(add, add, url.Values{"name": {"S_" + name}, "kind": {"sensitive"}}, map[string]string{"value-file": content})
		want[name], want["S_"+name] = content, content
	}
	binary := "\xff\xfe not text \x80\x01 at all"
	b.change(add, add, url.Values{"name": {"S_BINARY"}, "kind": {"sensitive"}}, map[string]string{"value-file": binary})
	want["S_BINARY"] = binary
	p := b.upload(add, b.fill(b.see(add), add, url.Values{"name": {"BINARY"}, "kind": {"plain"}}), map[string]string{"value-file": binary})
	b.want(p, http.StatusUnprocessableEntity, `id="value-error"`, "not UTF-8 text. Make it Sensitive")
	p = b.upload(add, b.fill(b.see(add), add, url.Values{"name": {"BOTH"}, "value": {"text"}}), map[string]string{"value-file": "file"})
	b.want(p, http.StatusUnprocessableEntity, "There is a text and a file")
	p = b.upload(add, b.fill(b.see(add), add, url.Values{"name": {"S_NUL"}, "kind": {"sensitive"}}), map[string]string{"value-file": "12345678\x00"})
	b.want(p, http.StatusUnprocessableEntity, "holds a NUL byte")

	// A Plain value that is edited without being touched stays, also where a browser can't show its bytes.
	for _, name := range []string{"CRLF", "CR", "LEADING", "TRAILING", "BOM"} {
		edit := environmentPath + "/variables/" + name
		b.change(edit, edit, url.Values{"note": {"edited"}}, nil)
	}
	// A file is taken as it is, also where a text field would say that nothing changed.
	lf := strings.ReplaceAll(files["CRLF"], "\r\n", "\n")
	b.change(environmentPath+"/variables/CRLF", environmentPath+"/variables/CRLF", url.Values{"value": {""}}, map[string]string{"value-file": lf})
	want["CRLF"] = lf
	got := s.values(r)
	for name, value := range want {
		v := got[name]
		if v == nil || sum(v.GetValue()) != sum([]byte(value)) || v.GetSensitive() != strings.HasPrefix(name, "S_") {
			t.Errorf("%s arrives as %q, want %q", name, v.GetValue(), value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d values arrive, want %d", len(got), len(want))
	}
}

func TestWhoEditsAnotherPlaceOfTheDraftIsNoConflict(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	ana, bob := s.as("ana"), s.as("bob")
	ana.add("REGION", "plain", "eu-1", nil)
	ana.add("TOKEN", "sensitive", "a-secret-12345", nil)
	edit := environmentPath + "/variables/"
	add := environmentPath + "/add-variable"
	region, other, addPage := bob.see(edit+"REGION"), bob.see(edit+"TOKEN"), bob.see(add)
	ana.change(environmentPath, environmentPath, url.Values{"image": {"debian:13"}}, nil)
	for action, form := range map[string]url.Values{
		edit + "REGION": bob.fill(region, edit+"REGION", url.Values{"value": {"us-1"}}),
		add:             bob.fill(addPage, add, url.Values{"name": {"NEW"}, "value": {"x"}}),
	} {
		if p := bob.upload(action, form, nil); p.status != http.StatusSeeOther {
			t.Fatalf("%s: %d\n%s", action, p.status, p.body)
		}
	}
	if s.saved("REGION").Value != "us-1" || s.saved("NEW").Value != "x" || s.environment().Draft.Spec.Image != "debian:13" {
		t.Fatalf("not all of it is there: %+v", s.environment().Draft.Spec)
	}

	// The same Variable is one: theirs is shown, what was typed stays but for a Sensitive value, which is asked for again.
	ana.change(edit+"TOKEN", edit+"TOKEN", url.Values{"note": {"ana's note"}, "build": {"on"}}, nil)
	p := bob.upload(edit+"TOKEN", bob.fill(other, edit+"TOKEN", url.Values{"note": {"bob's note"}, "value": {"bobs-secret-1"}}), nil)
	bob.want(p, http.StatusConflict, "Somebody else changed TOKEN meanwhile", "ana&#39;s note", "bob&#39;s note</textarea>", "What both began with", "give it again", "Save mine over revision "+strconv.FormatInt(s.environment().Draft.Revision, 10))
	if strings.Contains(p.body, "bobs-secret-1") {
		t.Error("a Sensitive value comes back")
	}
	form := bob.fill(p, edit+"TOKEN", url.Values{"value": {"bobs-secret-2"}})
	if p := bob.upload(edit+"TOKEN", form, nil); p.status != http.StatusSeeOther {
		t.Fatalf("saving mine over theirs: %d\n%s", p.status, p.body)
	}
	if v := s.saved("TOKEN"); v.Note != "bob's note" || !v.Build {
		t.Errorf("bob's note and the tick that only ana changed: %+v", v)
	}

	// What only one of them changed is no choice to make, and "Save mine" reverts nothing of it.
	other = bob.see(edit + "TOKEN")
	ana.change(edit+"TOKEN", edit+"TOKEN", url.Values{"value": {"anas-secret-1"}, "build": {""}}, nil)
	anas := s.saved("TOKEN")
	p = bob.upload(edit+"TOKEN", bob.fill(other, edit+"TOKEN", url.Values{"note": {"bob's second"}}), nil)
	bob.want(p, http.StatusConflict, "You changed nothing that they changed too", "<dt>Available at build</dt>", "Its value is the one that is saved now", "bob&#39;s second</textarea>")
	if p := bob.upload(edit+"TOKEN", bob.fill(p, edit+"TOKEN", nil), nil); p.status != http.StatusSeeOther {
		t.Fatalf("saving what both changed: %d\n%s", p.status, p.body)
	}
	if v := s.saved("TOKEN"); v.Note != "bob's second" || v.Build || v.ValueID != anas.ValueID {
		t.Errorf("bob's note with ana's value and tick: %+v, hers %+v", v, anas)
	}
	region = bob.see(edit + "REGION")
	ana.change(edit+"REGION", edit+"REGION", url.Values{"kind": {"sensitive"}, "value": {"anas-secret-2"}}, nil)
	anas = s.saved("REGION")
	p = bob.upload(edit+"REGION", bob.fill(region, edit+"REGION", url.Values{"note": {"where"}}), nil)
	if p = bob.upload(edit+"REGION", bob.fill(p, edit+"REGION", nil), nil); p.status != http.StatusSeeOther {
		t.Fatalf("saving a note beside what became Sensitive: %d\n%s", p.status, p.body)
	}
	if v := s.saved("REGION"); v.Note != "where" || !v.Sensitive || v.ValueID != anas.ValueID {
		t.Errorf("what ana made Sensitive: %+v, hers %+v", v, anas)
	}
	stale := bob.see(edit + "TOKEN")
	deletePage := bob.see(edit + "TOKEN/delete")
	ana.change(edit+"TOKEN", edit+"TOKEN", url.Values{"note": {"again"}}, nil)
	bob.want(bob.upload(edit+"TOKEN/delete", bob.fill(deletePage, edit+"TOKEN/delete", nil), nil), http.StatusConflict, "saved this draft meanwhile", "Nothing was deleted: look at the newer draft and delete again.")
	ana.change(edit+"TOKEN/delete", edit+"TOKEN/delete", nil, nil)
	p = bob.upload(edit+"TOKEN", bob.fill(stale, edit+"TOKEN", url.Values{"note": {"too late"}, "value": {"bobs-secret-3"}}), nil)
	bob.want(p, http.StatusConflict, "It was deleted from the draft meanwhile", "too late</textarea>")
	if to := bob.upload(environmentPath+"/add-variable", bob.fill(p, environmentPath+"/add-variable", url.Values{"value": {"bobs-secret-4"}}), nil); to.status != http.StatusSeeOther {
		t.Fatalf("adding it again: %d\n%s", to.status, to.body)
	}
}

func TestAVariableThatTheBootstrapLacksIsMadeAvailableAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	b.posted(environmentPath, draft(0, "debian:12", "echo\necho $NPM\ncurl -H \"${NPM}\"", "", "", ""))
	b.add("NPM", "sensitive", "npm-token-0123", nil)
	build := environmentPath + "/variables/NPM/build"
	p := b.see(environmentPath, "uses <code>$NPM</code> in line 2, but this Variable is not available at build", "Make NPM available at build")
	if strings.Contains(p.body, "build: true") {
		t.Error("the page speaks as the document does")
	}
	before := s.saved("NPM")
	b.change(environmentPath, build, nil, nil)
	if v := s.saved("NPM"); !v.Build || v.ValueID != before.ValueID {
		t.Errorf("%+v, before %+v", v, before)
	}
	if strings.Contains(b.see(environmentPath).body, "not available at build") {
		t.Error("it is available, and still said not to be")
	}
	b.want(b.upload(build, b.fill(p, build, nil), nil), http.StatusConflict, "saved this draft meanwhile")
}

func TestALinkIsChosenFromTheSharedVariables(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r := s.as("ana"), s.Runner("r1")
	b.change("/add-shared", "/add-shared", url.Values{"name": {"NPM_TOKEN"}, "kind": {"sensitive"}, "value": {"shared-value-1"}}, nil)
	b.change("/add-shared", "/add-shared", url.Values{"name": {"MIRROR"}, "kind": {"plain"}, "value": {"mirror.example"}}, nil)
	b.see(environmentPath+"/add-variable", "<option>MIRROR</option>", "<option>NPM_TOKEN</option>")
	b.add("REGISTRY_TOKEN", "link", "", url.Values{"link": {"NPM_TOKEN"}, "build": {"on"}})
	b.see(environmentPath, `Shared variable <a href="/shared/NPM_TOKEN"><code>NPM_TOKEN</code></a>, Sensitive`, "Link")
	p := b.upload(environmentPath+"/add-variable", url.Values{"base": {"1"}, "mark": {""}, "name": {"X"}, "kind": {"link"}, "link": {"NPM_TOKN"}}, nil)
	b.want(p, http.StatusUnprocessableEntity, `id="link-error"`, "Did you mean NPM_TOKEN?", "<option selected>NPM_TOKN</option>")
	if v := s.values(r)["REGISTRY_TOKEN"]; string(v.GetValue()) != "shared-value-1" || !v.GetBuild() {
		t.Errorf("%v", v)
	}
}

// lostSite is a site whose Environment lost its Sensitive values with their key, with a Session that sleeps and one that runs.
func lostSite(t *testing.T) (s *site, r *apptest.Runner, asleep string) {
	t.Helper()
	db := storetest.New(t)
	first := newSite(t, db, apptest.Options{})
	r = first.Runner("r1")
	g := first.Grant("ana")
	if _, err := first.Vault.CreateShared(t.Context(), g.Who(), variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte("shared-token-0123456789")}); err != nil {
		t.Fatal(err)
	}
	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true, Build: true}, {Name: "WIDE", Link: "HUB_WIDE"}, {Name: "REGION", Value: "eu-1"}}
	first.AppliedWith(g, r, recipe, map[string][]byte{"NPM": []byte("npm-token-0123456789")})
	to := first.as("ana").posted(repoPath+"/sessions", nil)
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 1})
	first.as("ana").posted(to+"/sleep", nil)
	r.MustReport(r.Item(), wire.StateAsleep, wire.SessionDetail{Workspace: true})
	hub := first.LoseKey(2)
	s = siteOf(t, hub)
	return s, r.Of(hub), to
}

func TestLostValuesAreNamedAndEnteredWithoutATestBuild(t *testing.T) {
	t.Parallel()
	s, r, asleep := lostSite(t)
	b := s.as("ana")
	for _, path := range []string{repoPath, environmentPath, asleep, repoPath + "/sessions", repoPath + "/versions/1"} {
		b.see(path, "Sessions don't start or wake", "<code>NPM</code>: its value was lost with an encryption key", `href="`+environmentPath+`/variables/NPM/value"`,
			"<code>WIDE</code>: the value of the Shared variable HUB_WIDE was lost", `href="/shared/HUB_WIDE"`)
	}
	const lacks = "the Variables NPM and WIDE (linked from the Shared variable HUB_WIDE) have no value. Enter one for each first."
	b.want(b.post(asleep+"/wake", nil), http.StatusConflict, "This Session can&#39;t wake: "+lacks)
	b.want(b.post(repoPath+"/sessions", nil), http.StatusConflict, "This Session can&#39;t start: "+lacks)
	revision := strconv.FormatInt(s.environment().Draft.Revision, 10)
	b.want(b.post(repoPath+"/tests", url.Values{"revision": {revision}, "runner": {r.ID}}), http.StatusConflict, "This draft can&#39;t be tested: "+lacks)

	value := environmentPath + "/variables/NPM/value"
	for given, says := range map[string]string{"": "Enter its value", "t1ny!": "NPM can&#39;t be Sensitive"} {
		b.want(b.upload(value, b.fill(b.see(value), value, url.Values{"value": {given}}), nil), http.StatusUnprocessableEntity, `id="value-error"`, says)
	}
	b.want(b.upload(environmentPath+"/variables/REGION/value", url.Values{"value": {"something-new"}}, nil), http.StatusConflict, "The value of REGION is not lost")
	if p := b.get(environmentPath + "/variables/REGION/value"); p.status != http.StatusSeeOther || p.header.Get("Location") != environmentPath+"/variables/REGION" {
		t.Errorf("a value that isn't lost is asked for as if it were: %d", p.status)
	}
	b.see(environmentPath+"/variables/NPM", "Lost with an encryption key.</span></p>", "holds at once, without a Test build")
	before := s.environment()
	b.see(b.change(value, value, nil, map[string]string{"value-file": "new-npm-token\r\n"}), "The value of NPM is entered, and holds at once")
	b.see("/shared", "1 value was lost with an encryption key", `href="/shared/HUB_WIDE"`)
	b.see("/shared/HUB_WIDE", "Enter the value", "no Runner builds anew for it")
	b.change("/shared/HUB_WIDE", "/shared/HUB_WIDE/value", url.Values{"value": {"new-shared-token"}}, nil)
	if p := b.see(environmentPath); strings.Contains(p.body, "Sessions don't start or wake") {
		t.Error("values are there, and still said to be lacking")
	}
	after := s.environment()
	if after.Draft.Revision != before.Draft.Revision || after.Draft.TestKey != before.Draft.TestKey || after.Current.Number != 1 {
		t.Errorf("entering a value made a revision, a version or moved a key: %+v, before %+v", after, before)
	}
	b.posted(asleep+"/wake", nil)
	values, refused := r.Values(r.Item())
	if refused != "" || string(values["NPM"].GetValue()) != "new-npm-token\r\n" || string(values["WIDE"].GetValue()) != "new-shared-token" {
		t.Errorf("%v, refused %q", values, refused)
	}
}

func TestARunnerTooOldForVariablesIsRefusedOnThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, old := s.as("ana"), s.OldRunner("old", 1)
	b.add("REGION", "plain", "eu-1", nil)
	b.see(environmentPath, `disabled>old (linux/amd64): runs claude-hub test, which is too old for an Environment with Variables`)
	p := b.post(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {old.ID}})
	b.want(p, http.StatusServiceUnavailable, "old runs claude-hub test, which is too old for an Environment with Variables: install claude-hub")
}
