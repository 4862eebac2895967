package handlers_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func fmtInt(n int64) string { return strconv.FormatInt(n, 10) }

const envFile = `# comes from .env.example
export REGION=eu-1
PORT = 8080   # the port
NPM_TOKEN='npm-token-in-file-1'
GREETING="Hello ${NAME}\nand welcome"
9BAD=secret-of-a-bad-line
NO_EQUALS
DB_PASSWORD=abc
SPACED_TOKEN="a b c d e f"
KEEP=same
LINKED=from-file
TOKEN=token-in-file-12
`

func TestAnEnvFileIsPreviewedAndThenAddedToTheDraft(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r, g := s.as("ana"), s.Runner("r1"), s.Grant("ana")
	b.change("/add-shared", "/add-shared", url.Values{"name": {"WIDE"}, "kind": {"plain"}, "value": {"wide"}}, nil)
	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "KEEP", Value: "same"}, {Name: "LINKED", Link: "WIDE"}, {Name: "REGION", Value: "us-1", Note: "a note"}, {Name: "TOKEN", Sensitive: true, Build: true}}
	if _, err := s.Environments.Save(t.Context(), g, 0, recipe, map[string][]byte{"TOKEN": []byte("token-before-1")}); err != nil {
		t.Fatal(err)
	}
	add, path := environmentPath+"/import/add", environmentPath+"/import"
	b.see(path, "At most 1 MiB and 200 names")
	p := b.upload(path, b.fill(b.see(path), path, url.Values{"text": {envFile}}), nil)
	b.want(p, http.StatusOK, "Nothing is saved yet", "Add <span data-taken>4</span> to the draft", "These lines are left out", "Line 6: The name of a Variable begins with a letter or _, not with a digit.", "Line 7: This line has no =",
		"Line 5: GREETING has ${…} or $(…) in it", "Comment dropped.", "eu-1", "8080", "so it can only be Plain", "nobody can see whether the value is the same", "it is a Link to the Shared variable WIDE now")
	row := func(p page, name string) string {
		t.Helper()
		m := regexp.MustCompile(`(?s)<tr>\s*<td data-label="Line">(?:[^<]*)</td>\s*<td data-label="Name" class="name"><code>` + name + `</code>.*?</tr>`).FindString(p.body)
		if m == "" {
			t.Fatalf("no row of %s:\n%s", name, p.body)
		}
		return m
	}
	for name, want := range map[string]string{
		"REGION": "Changed", "PORT": "New", "NPM_TOKEN": "19 bytes, hidden", "GREETING": "New", "DB_PASSWORD": "3 bytes, hidden", "SPACED_TOKEN": "not counting white space, so it can only be Plain", "KEEP": "Same", "LINKED": "Conflict", "TOKEN": "Conflict",
	} {
		if m := row(p, name); !strings.Contains(m, want) {
			t.Errorf("%s isn't %q:\n%s", name, want, m)
		}
	}
	for _, secret := range []string{"npm-token-in-file-1", "token-in-file-12", "abc<", "secret-of-a-bad-line", "token-before-1"} {
		if strings.Contains(p.body, secret) {
			t.Errorf("the preview shows %s", secret)
		}
	}
	if s.environment().Draft.Revision != 1 {
		t.Fatal("the preview saved something")
	}

	// The browser carries the file back sealed: for this person and Repo only.
	form := b.fill(p, add, nil)
	bob := s.as("bob")
	bob.want(bob.upload(add, form, nil), http.StatusConflict, "can&#39;t be read any more", "Paste it again")
	other := strings.Replace(add, "/42/", "/43/", 1)
	b.want(b.upload(other, form, nil), http.StatusConflict, "can&#39;t be read any more")

	index := func(name string) string {
		return regexp.MustCompile(`name="name\.(\d+)" value="` + name + `"`).FindStringSubmatch(p.body)[1]
	}
	form = b.fill(p, add, url.Values{"choice." + index("PORT"): {"skip"}, "build." + index("NPM_TOKEN"): {"on"}, "sensitive." + index("GREETING"): {"on"},
		"choice." + index("DB_PASSWORD"): {"take"}, "choice." + index("TOKEN"): {"take"}})
	empty := b.upload(path, b.fill(b.see(path), path, url.Values{"text": {"EMPTY=\n"}}), nil)
	empty = b.upload(add, b.fill(empty, add, url.Values{"sensitive.0": {"on"}}), nil)
	b.want(empty, http.StatusUnprocessableEntity, "Nothing was saved: some rows need another look.")
	if m := row(empty, "EMPTY"); !strings.Contains(m, "It is empty, so it can only be Plain.</p>") {
		t.Errorf("the row doesn't say what is wrong:\n%s", m)
	}

	// Sensitive and too short: nothing is saved, and the row says why.
	refused := b.upload(add, form, nil)
	b.want(refused, http.StatusUnprocessableEntity, "Nothing was saved: some rows need another look.")
	if m := row(refused, "DB_PASSWORD"); !strings.Contains(m, `class="field-error"`) || !strings.Contains(m, "too short to be kept out of logs") {
		t.Errorf("the row doesn't say what is wrong:\n%s", m)
	}
	if s.environment().Draft.Revision != 1 || strings.Contains(refused.body, "welcome") {
		t.Fatal("something was saved, or shown that is Sensitive now")
	}
	form = b.fill(refused, add, url.Values{"sensitive." + index("DB_PASSWORD"): {""}})
	done := b.upload(add, form, nil)
	if done.status != http.StatusSeeOther {
		t.Fatalf("%d\n%s", done.status, done.body)
	}
	b.see(done.header.Get("Location"), "Saved as revision 2.")
	got := s.values(r)
	for name, want := range map[string]string{"REGION": "eu-1", "NPM_TOKEN": "npm-token-in-file-1", "GREETING": "Hello ${NAME}\nand welcome", "DB_PASSWORD": "abc", "KEEP": "same", "LINKED": "wide", "TOKEN": "token-in-file-12"} {
		if string(got[name].GetValue()) != want {
			t.Errorf("%s is %q, want %q", name, got[name].GetValue(), want)
		}
	}
	if len(got) != 7 || !got["NPM_TOKEN"].GetBuild() || !got["TOKEN"].GetBuild() || got["GREETING"].GetBuild() || !got["GREETING"].GetSensitive() || got["DB_PASSWORD"].GetSensitive() || s.saved("REGION").Note != "a note" {
		t.Errorf("%v", got)
	}
}

func TestAnEnvFileMeetsWhatIsThere(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	add, path := environmentPath+"/import/add", environmentPath+"/import"
	b.add("A", "plain", "1", nil)
	b.add("B", "plain", "2", nil)
	p := b.upload(path, nil, map[string]string{"text-file": "\ufeffA=one\r\nB=two\r\nC=three\r\n"})
	b.want(p, http.StatusOK, "Replace all of them", "Add <span data-taken>3</span> to the draft")
	if to := b.upload(add, b.fill(p, add, url.Values{"all": {"keep"}}), nil); to.status != http.StatusSeeOther {
		t.Fatalf("%d\n%s", to.status, to.body)
	}
	if s.saved("A").Value != "1" || s.saved("C").Value != "three" {
		t.Errorf("keeping all that is there: %+v", s.environment().Draft.Spec.Variables)
	}
	b.want(b.upload(add, b.fill(p, add, url.Values{"all": {"overwrite"}}), nil), http.StatusConflict, "Somebody else saved the draft meanwhile", `value="overwrite" checked`)
	p = b.upload(path, url.Values{"text": {"A=one\nB=two\nC=three\n"}}, nil)
	b.want(b.upload(add, b.fill(p, add, url.Values{"all": {"keep"}}), nil), http.StatusUnprocessableEntity, "Nothing is chosen, so nothing was saved.")
	if to := b.upload(add, b.fill(p, add, url.Values{"all": {"overwrite"}}), nil); to.status != http.StatusSeeOther {
		t.Fatalf("%d\n%s", to.status, to.body)
	}
	if s.saved("A").Value != "one" || s.saved("B").Value != "two" {
		t.Errorf("replacing all: %+v", s.environment().Draft.Spec.Variables)
	}
	for text, says := range map[string]string{"": "Paste the text, or choose the file.", "nothing here": "Nothing in it can be taken:", "X='open": "never closed", "# only a comment\n": "There is no NAME=value in it."} {
		b.want(b.upload(path, url.Values{"text": {text}}, nil), http.StatusUnprocessableEntity, says)
	}
	b.want(b.upload(path, url.Values{"text": {"A=1"}}, map[string]string{"text-file": "B=2"}), http.StatusUnprocessableEntity, "There is a text and a file")
	b.want(b.upload(path, nil, map[string]string{"text-file": strings.Repeat("# a line of a large file\n", 50_000)}), http.StatusUnprocessableEntity, "at most 1024 KiB")
	b.want(b.upload(add, url.Values{"base": {"1"}, "carried": {"eHh4"}}, nil), http.StatusConflict, "can&#39;t be read any more")
	many := strings.Builder{}
	for i := range 200 {
		many.WriteString("N" + strconv.Itoa(i) + "=" + strings.Repeat("v", 2500) + "\n")
	}
	p = b.upload(path, nil, map[string]string{"text-file": many.String()})
	b.want(p, http.StatusOK, "Add <span data-taken>200</span> to the draft")
	b.want(b.upload(add, b.fill(p, add, nil), nil), http.StatusUnprocessableEntity, "at most 200")
}
