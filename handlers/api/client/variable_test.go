package client_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const (
	npm    = "npm-token-<0123456789>\n"
	sentry = "sentry/token+0123456789"
	wide   = "shared-token-0123456789"
)

// withVariables is a Spec with one Variable of each sort.
func withVariables() envspec.Spec {
	s := envspec.Default()
	s.Bootstrap = "echo one\n"
	s.Variables = []envspec.Variable{
		{Name: "NPM", Sensitive: true, Build: true, Note: "for the registry"},
		{Name: "REGION", Value: "eu-1"},
		{Name: "SENTRY", Sensitive: true},
		{Name: "WIDE", Link: "HUB_WIDE", Build: true},
	}
	return s
}

func values() map[string]schema.Value {
	text := sentry
	return map[string]schema.Value{"NPM": schema.ValueOf([]byte(npm)), "SENTRY": {Text: &text}}
}

func (h *hub) makeShared() schema.Shared {
	h.t.Helper()
	return must(h.CreateShared(h.t.Context(), schema.CreateShared{Name: "HUB_WIDE", Sensitive: true, Value: schema.ValueOf([]byte(wide))}))(h.t)
}

// saved saves spec as the draft on top of what is there.
func (h *hub) saved(spec envspec.Spec, values map[string]schema.Value) schema.Draft {
	h.t.Helper()
	base := int64(0)
	if env := must(h.Environment(h.t.Context(), repo))(h.t); env.Draft != nil {
		base = env.Draft.Revision
	}
	return must(h.Save(h.t.Context(), repo, schema.SaveDraft{Base: base, Spec: &spec, Values: values}))(h.t)
}

// passed has r pass a Test build of the draft.
func (h *hub) passed(r *apptest.Runner, d schema.Draft) {
	h.t.Helper()
	must(h.StartTest(h.t.Context(), repo, d.Revision, r.ID))(h.t)
	for _, item := range r.Items() {
		if item.GetKind() == wire.KindTestBuild {
			r.Pass(item)
		}
	}
}

func (h *hub) applied(r *apptest.Runner, d schema.Draft) schema.Version {
	h.t.Helper()
	h.passed(r, d)
	return must(h.Apply(h.t.Context(), repo, d.Revision, ""))(h.t)
}

// recorder keeps every answer that passes through it.
type recorder struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.all, "%s %s: %s\n", req.Method, req.URL.Path, b)
	res.Body = io.NopCloser(bytes.NewReader(b))
	return res, err
}

// forms of a value that an answer could have it in.
func forms(value string) []string {
	escaped, _ := json.Marshal(value)
	return []string{
		value, strings.TrimSpace(value), strings.Trim(string(escaped), `"`), base64.StdEncoding.EncodeToString([]byte(value)),
		base64.RawURLEncoding.EncodeToString([]byte(value)), hex.EncodeToString([]byte(value)),
	}
}

func TestSensitiveValuesGoInAndNeverComeOut(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		h := newHub(t, db, apptest.Options{})
		ctx, answers := t.Context(), &recorder{}
		_, token, err := h.Hub.Gate.IssueToken(ctx, "ana", "recorded", 1e12)
		if err != nil {
			t.Fatal(err)
		}
		if h.Client, err = client.New(h.server.URL, token, answers); err != nil {
			t.Fatal(err)
		}
		h.makeShared()
		r := h.Hub.Runner("r1")
		d := h.saved(withVariables(), values())
		v := h.applied(r, d)
		if d.Spec.Variables[1].Value != "eu-1" || d.Spec.Variables[0].Value != "" || !strings.Contains(v.YAML, "SENTRY: {sensitive: true}\n") {
			t.Errorf("the draft that was saved: %+v\n%s", d.Spec.Variables, v.YAML)
		}
		for _, list := range [][]schema.Variable{must(h.DraftVariables(ctx, repo))(t), must(h.VersionVariables(ctx, repo, 1))(t)} {
			if len(list) != 4 {
				t.Fatalf("Variables: %+v", list)
			}
			for i, want := range []schema.Variable{
				{Name: "NPM", Kind: "sensitive", Hidden: true, AtBuild: true, Note: "for the registry"}, {Name: "REGION", Kind: "plain", AtBuild: true},
				{Name: "SENTRY", Kind: "sensitive", Hidden: true}, {Name: "WIDE", Kind: "link", Link: "HUB_WIDE", Hidden: true, AtBuild: true},
			} {
				got := list[i]
				if got.Status != "set" || got.SetBy != "ana" || got.SetAt == nil || (got.Digest == "") == got.Hidden || (got.Value != nil) != (got.Kind == "plain") {
					t.Errorf("the state of %s: %+v", want.Name, got)
				}
				got.Value, got.Status, got.SetAt, got.SetBy, got.Digest = nil, "", nil, "", ""
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
		}
		must(h.Environment(ctx, repo))(t)
		must(h.Versions(ctx, repo))(t)
		must(h.Tests(ctx, repo))(t)
		must(h.AllShared(ctx))(t)
		must(h.Shared(ctx, "HUB_WIDE"))(t)
		must(h.Diff(ctx, repo, "none", "draft"))(t)

		// Refusals don't repeat what they refuse.
		for _, c := range []struct {
			body, says string
		}{
			{`{"base":1,"spec":{"image":"debian:12","variables":[{"name":"A","sensitive":true}]},"values":{"A":{"text":"sh0rt"}}}`, "too short"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":"nobody-wants-me"}}}`, "no Variable here"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":1234512345}}}`, "of another type than number"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"base64":"bm9ib2R5!"}}}`, "not the JSON"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":"nobody-wants-me","base64":"eA=="}}}`, "either as"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":"nobody-wants-\ud800"}}}`, "base64"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":"nobody-wants-` + "\xff" + `"}}}`, "not UTF-8"},
			{`{"base":1,"spec":{"image":"debian:12","variables":[{"name":"A","sensitive":true,"value":"nobody-wants-me"}]}}`, "A"},
			{`{"base":1,"spec":{"image":"debian:12"},"values":{"A":{"text":"` + strings.Repeat("nobody", 600_000) + `"}}}`, "larger than"},
		} {
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, h.server.URL+"/api/v1/repos/42/environment/draft", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode < 400 || res.StatusCode >= 500 || !strings.Contains(string(b), c.says) {
				t.Errorf("%.120s: %d %s, %v", c.body, res.StatusCode, b, err)
			}
			for _, value := range []string{"sh0rt", "nobody", "1234512345", "bm9ib2R5"} {
				if strings.Contains(string(b), value) {
					t.Errorf("%.120s: the answer repeats it: %s", c.body, b)
				}
			}
		}
		for _, value := range []string{npm, sentry, wide} {
			for _, form := range forms(value) {
				if strings.Contains(answers.all.String(), form) {
					t.Errorf("%q is in an answer:\n%s", form, answers.all.String())
				}
			}
		}
		for _, value := range []string{npm, sentry, wide, "sh0rt", "nobody", "1234512345"} {
			for _, form := range forms(value) {
				if strings.Contains(h.log.String(), form) {
					t.Errorf("%q is in the log:\n%s", form, h.log)
				}
			}
		}
		if !strings.Contains(answers.all.String(), "eu-1") || strings.Count(h.log.String(), "environment/draft") < 10 {
			t.Error("nothing was recorded")
		}
	})
}

// exact are values that something on the way could change.
var exact = map[string]string{
	"PEM":  "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQ==\n-----END PRIVATE KEY-----\n",
	"JSON": `{"a": ["b", "c\n"], "d": null, "<&>": "\u0000"}`, "QUOTES": `it's "quoted" ` + "`too`" + ` and \ back\\slashed`,
	"SIGNS": "=a=b#c #d $HOME ${HOME} $(id) %s !x", "EMOJI": "♀👩‍👩‍👧‍👦 é e\u0301 \ufeff|\ufffd|\u2028", "TRAILING": "ends with a line break\n",
	"LEADING": "\n\r\n \tbegins with white space", "CRLF": "one\r\ntwo\rthree\n\r", "LONG": strings.Repeat("0123456789abcde\n", envspec.MaxValue/16),
}

func TestValuesArriveByteForByte(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ctx := t.Context()
		h := newHub(t, db, apptest.Options{})
		r := h.Hub.Runner("r1")
		spec := envspec.Default()
		given, want := map[string]schema.Value{}, map[string]string{}
		for name, value := range exact {
			spec.Variables = append(spec.Variables, envspec.Variable{Name: "P_" + name, Value: value}, envspec.Variable{Name: "S_" + name, Sensitive: true, Build: true})
			want["P_"+name], want["S_"+name] = value, value
			given["S_"+name] = schema.ValueOf([]byte(value))
		}
		raw := make([]byte, 255)
		for i := range raw {
			raw[i] = byte(i + 1)
		}
		spec.Variables = append(spec.Variables, envspec.Variable{Name: "S_BYTES", Sensitive: true}, envspec.Variable{Name: "S_TEXT", Sensitive: true}, envspec.Variable{Name: "L_BYTES", Link: "BYTES"})
		given["S_BYTES"] = schema.ValueOf(raw)
		text := strings.ReplaceAll(exact["EMOJI"], "\ufffd", "")
		given["S_TEXT"] = schema.Value{Text: &text}
		want["S_BYTES"], want["S_TEXT"], want["L_BYTES"] = string(raw), text, string(raw)
		must(h.CreateShared(ctx, schema.CreateShared{Name: "BYTES", Sensitive: true, Value: schema.ValueOf(raw)}))(t)

		d := h.saved(spec, given)
		must(h.StartTest(ctx, repo, d.Revision, "r1"))(t)
		got, refused := r.Values(r.Item())
		if refused != "" || len(got) != len(want) {
			t.Fatalf("%d values of %d, refused: %q", len(got), len(want), refused)
		}
		for name, value := range want {
			if string(got[name].GetValue()) != value {
				t.Errorf("%s arrived as another: %d bytes, want %d", name, len(got[name].GetValue()), len(value))
			}
		}

		// A document holds Plain ones, and what is read from the API makes the same draft again.
		again := must(h.Save(ctx, repo, schema.SaveDraft{Base: d.Revision, YAML: &d.YAML}))(t)
		if again.TestKey != d.TestKey {
			t.Error("the draft's own document makes another draft")
		}
		// A note and a name leave a value as it is.
		for i, v := range again.Spec.Variables {
			if v.Name == "S_PEM" {
				again.Spec.Variables[i].Name, again.Spec.Variables[i].Note = "S_RENAMED", "renamed"
			}
		}
		third := h.saved(again.Spec, nil)
		h.passed(r, third)
		must(h.StartTest(ctx, repo, third.Revision, "r1"))(t)
		if got, _ := r.Values(r.Item()); string(got["S_RENAMED"].GetValue()) != exact["PEM"] {
			t.Error("a renamed Variable has another value")
		}
	})
}

func TestASecondWriterGetsTheOthersDraftAndLosesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.New(t)
	h := newHub(t, db, apptest.Options{})
	_, token, err := h.Hub.Gate.IssueToken(ctx, "bob", "test", 1e12)
	if err != nil {
		t.Fatal(err)
	}
	bob, err := client.New(h.server.URL, token, nil)
	if err != nil {
		t.Fatal(err)
	}
	one := h.saved(envspec.Default(), nil)
	theirs := must(bob.Save(ctx, repo, schema.SaveDraft{Base: one.Revision, Spec: &envspec.Spec{Image: "debian:12", Bootstrap: "echo bob\n"}}))(t)
	mine := envspec.Spec{Image: "debian:13", Variables: []envspec.Variable{{Name: "NPM", Sensitive: true}}}
	save := schema.SaveDraft{Base: one.Revision, Spec: &mine, Values: map[string]schema.Value{"NPM": schema.ValueOf([]byte(npm))}}
	_, err = h.Save(ctx, repo, save)
	e := wantCode(t, err, fault.Conflict, "bob saved this draft meanwhile: you edited revision 1, it is at 2 now.")
	if e.Conflict == nil || e.Conflict.Theirs == nil || e.Conflict.Theirs.Revision != theirs.Revision || e.Conflict.Theirs.UpdatedBy != "bob" ||
		e.Conflict.Theirs.Spec.Bootstrap != "echo bob\n" || e.Conflict.Theirs.YAML != theirs.YAML || e.Conflict.Theirs.UpdatedAt.IsZero() {
		t.Fatalf("the conflict doesn't carry the other's draft: %+v", e.Conflict)
	}
	_, err = h.StartTest(ctx, repo, one.Revision, h.Hub.Runner("r1").ID)
	if e := wantCode(t, err, fault.Conflict, "bob saved"); e.Conflict == nil || e.Conflict.Theirs == nil {
		t.Errorf("a Test build of an older revision: %+v", e)
	}
	save.Base = e.Conflict.Theirs.Revision
	if d := must(h.Save(ctx, repo, save))(t); d.Revision != 3 || d.Spec.Image != "debian:13" {
		t.Fatalf("mine over theirs: %+v", d)
	}
	if d := must(h.Discard(ctx, repo, 3))(t); d != nil {
		t.Fatalf("without a version nothing is left of a discarded draft: %+v", d)
	}
	save.Base = 3
	_, err = h.Save(ctx, repo, save)
	if e := wantCode(t, err, fault.Conflict, "The draft you edited is gone."); e.Conflict == nil || e.Conflict.Theirs != nil {
		t.Errorf("a discarded draft: %+v", e.Conflict)
	}
	if d := must(h.Save(ctx, repo, schema.SaveDraft{Spec: &mine}))(t); d.Revision <= 3 {
		t.Errorf("a revision is used twice: %d", d.Revision)
	}
}

func TestDraftsAreComparedRestoredAndDiscarded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := newHub(t, storetest.New(t), apptest.Options{})
	h.makeShared()
	r := h.Hub.Runner("r1")
	h.applied(r, h.saved(withVariables(), values()))
	two := withVariables()
	two.Bootstrap, two.CPU = "echo two\n", 2
	two.Variables[1].Value = "us-2"
	two.Variables = two.Variables[:3]
	h.applied(r, h.saved(two, map[string]schema.Value{"NPM": schema.ValueOf([]byte("another-npm-token"))}))
	draft := h.saved(withVariables(), nil)

	if d := must(h.Diff(ctx, repo, "", ""))(t); d.From != "2" || d.To != "draft" || len(d.Fields) != 1 || len(d.Scripts) != 1 || len(d.Variables) != 2 {
		t.Errorf("from the current version to the draft: %+v", d)
	}
	d := must(h.Diff(ctx, repo, "1", "2"))(t)
	for _, want := range []string{"cpu: ", "-echo one\n+echo two\n", "variables.NPM: value changes (hidden)", "variables.REGION: value changes (hidden)", "variables.WIDE: is removed"} {
		if !strings.Contains(d.Text, want) {
			t.Errorf("the diff lacks %q:\n%s", want, d.Text)
		}
	}
	if strings.Contains(d.Text, "us-2") {
		t.Errorf("the diff has a value in it:\n%s", d.Text)
	}
	if d := must(h.Diff(ctx, repo, "1", "1"))(t); !d.Empty() || d.Text != "" {
		t.Errorf("a version differs from itself: %+v", d)
	}
	if d := must(h.Diff(ctx, repo, "none", "1"))(t); len(d.Variables) != 4 {
		t.Errorf("from nothing: %+v", d)
	}
	for _, side := range []string{"x", "-1", "0", "1.5"} {
		_, err := h.Diff(ctx, repo, side, "")
		wantCode(t, err, fault.Invalid, "the numbers of versions")
	}
	_, err := h.Diff(ctx, repo, "9", "")
	wantCode(t, err, fault.NotFound, "no version 9")
	_, err = h.Diff(ctx, repo, "1", "none")
	wantCode(t, err, fault.Invalid, "none")

	_, err = h.Restore(ctx, repo, draft.Revision-1, 2)
	wantCode(t, err, fault.Conflict, "ana saved this draft meanwhile")
	restored := must(h.Restore(ctx, repo, draft.Revision, 2))(t)
	if restored.Spec.Bootstrap != "echo two\n" || len(restored.Spec.Variables) != 3 {
		t.Errorf("restored: %+v", restored.Spec)
	}
	if d := must(h.Diff(ctx, repo, "2", "draft"))(t); !d.Empty() {
		t.Errorf("version 2 restored differs from it:\n%s", d.Text)
	}
	_, err = h.Restore(ctx, repo, restored.Revision, 0)
	wantCode(t, err, fault.NotFound, "no version 0")
	changed := h.saved(envspec.Spec{Image: "debian:12"}, nil)
	back := must(h.Discard(ctx, repo, changed.Revision))(t)
	if back == nil || back.Revision != changed.Revision+1 || back.Spec.Bootstrap != "echo two\n" {
		t.Errorf("a discarded draft is what the version says: %+v", back)
	}
}

func TestSharedVariablesAreManagedByAnyone(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ctx := t.Context()
		h := newHub(t, db, apptest.Options{})
		made := h.makeShared()
		if made.Revision != 1 || made.Value != nil || made.Digest == "" || made.SetBy != "ana" || made.Status != "set" {
			t.Errorf("made: %+v", made)
		}
		_, err := h.CreateShared(ctx, schema.CreateShared{Name: "HUB_WIDE", Value: schema.ValueOf([]byte("x"))})
		if e := wantCode(t, err, fault.Invalid, "There is a Shared variable HUB_WIDE already."); e.Fields["name"] == "" {
			t.Errorf("fields: %+v", e.Fields)
		}
		_, err = h.CreateShared(ctx, schema.CreateShared{Name: "OTHER", Sensitive: true, Value: schema.ValueOf([]byte("short"))})
		if e := wantCode(t, err, fault.Invalid, "too short"); e.Fields["value"] == "" {
			t.Errorf("fields: %+v", e.Fields)
		}
		_, err = h.CreateShared(ctx, schema.CreateShared{Name: "OTHER"})
		wantCode(t, err, fault.Invalid, "either as")
		text := "proxy.example:3128"
		plain := must(h.CreateShared(ctx, schema.CreateShared{Name: "PROXY", Note: "ours", Value: schema.Value{Text: &text}}))(t)
		if plain.Value == nil || *plain.Value != text || plain.Digest != "" || plain.Note != "ours" {
			t.Errorf("a Plain one: %+v", plain)
		}
		h.applied(h.Hub.Runner("r1"), h.saved(withVariables(), values()))
		all := must(h.AllShared(ctx))(t)
		if len(all) != 2 || all[0].Name != "HUB_WIDE" || len(all[0].Users.Repos) != 1 || len(all[0].Users.AtBuild) != 1 || all[0].Users.Hidden != 0 ||
			all[0].Users.Repos[0].Name != "acme/rocket" || !strings.Contains(all[0].Consequence, "each Runner makes a new build") || len(all[1].Users.Repos) != 0 {
			t.Errorf("all: %+v", all)
		}
		if list := must(h.SharedChanges(ctx, repo, 1))(t); len(list) != 0 {
			t.Errorf("nothing changed yet: %+v", list)
		}
		set := must(h.SetShared(ctx, "HUB_WIDE", schema.SetShared{Revision: 1, Sensitive: true, Value: schema.ValueOf([]byte("another-shared-token"))}))(t)
		if set.Revision != 2 || set.Digest == made.Digest {
			t.Errorf("set: %+v", set)
		}
		if list := must(h.SharedChanges(ctx, repo, 1))(t); len(list) != 1 || list[0].Name != "WIDE" || list[0].Shared != "HUB_WIDE" || list[0].By != "ana" {
			t.Errorf("what the version doesn't know: %+v", list)
		}
		_, err = h.SetShared(ctx, "HUB_WIDE", schema.SetShared{Revision: 1, Sensitive: true, Value: schema.ValueOf([]byte("too-late-a-token"))})
		wantCode(t, err, fault.Conflict, "changed meanwhile: it is at revision 2, you had read 1")
		if noted := must(h.NoteShared(ctx, "HUB_WIDE", schema.NoteShared{Revision: 2, Note: "from ops"}))(t); noted.Note != "from ops" || noted.Digest != set.Digest {
			t.Errorf("noted: %+v", noted)
		}
		_, err = h.RenameShared(ctx, "HUB_WIDE", schema.RenameShared{Revision: 3, Name: "NEW"})
		wantCode(t, err, fault.Refused, "can't be renamed while a draft or an applied version links it: that of acme/rocket.")
		wantCode(t, h.DeleteShared(ctx, "HUB_WIDE", 3), fault.Refused, "can't be deleted while")
		renamed := must(h.RenameShared(ctx, "PROXY", schema.RenameShared{Revision: 1, Name: "HTTP_PROXY"}))(t)
		if *renamed.Value != text || renamed.Name != "HTTP_PROXY" {
			t.Errorf("renamed: %+v", renamed)
		}
		if err := h.DeleteShared(ctx, "HTTP_PROXY", renamed.Revision); err != nil {
			t.Fatal(err)
		}
		_, err = h.Shared(ctx, "HTTP_PROXY")
		wantCode(t, err, fault.NotFound, "There is no Shared variable HTTP_PROXY.")
	})
}

func TestLostValuesAreEnteredAgainThroughTheAPI(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ctx := t.Context()
		before := newHub(t, db, apptest.Options{})
		before.makeShared()
		old := before.Hub.Runner("r1")
		version := before.applied(old, before.saved(withVariables(), values()))
		h := serve(t, db, before.Hub.LoseKey(2))
		r := old.Of(h.Hub)
		list := must(h.VersionVariables(ctx, repo, 1))(t)
		for _, v := range list {
			if (v.Status == "lost") != v.Hidden || v.Hidden && v.Digest != "" {
				t.Errorf("after the loss: %+v", v)
			}
		}
		_, err := h.StartSession(ctx, repo, schema.StartSession{})
		wantCode(t, err, fault.Refused, "the Variables NPM, SENTRY and WIDE (linked from the Shared variable HUB_WIDE) have no value. Enter one for each first.")
		wantCode(t, h.EnterValue(ctx, repo, "REGION", []byte("eu-2")), fault.Refused, "The value of REGION is not lost")
		wantCode(t, h.EnterValue(ctx, repo, "WIDE", []byte(wide)), fault.Refused, "WIDE is a Link: its value is that of the Shared variable HUB_WIDE. Enter it there.")
		wantCode(t, h.EnterValue(ctx, repo, "ABSENT", []byte(wide)), fault.NotFound, "no Variable of that name")
		if e := wantCode(t, h.EnterValue(ctx, repo, "NPM", []byte("short")), fault.Invalid, "too short"); e.Fields["variables.NPM"] == "" {
			t.Errorf("fields: %+v", e.Fields)
		}
		for name, value := range map[string]string{"NPM": "npm-token-anew", "SENTRY": "sentry-token-anew"} {
			if err := h.EnterValue(ctx, repo, name, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		lost := must(h.Shared(ctx, "HUB_WIDE"))(t)
		if lost.Status != "lost" || lost.Digest != "" {
			t.Errorf("a lost Shared variable: %+v", lost)
		}
		must(h.SetShared(ctx, "HUB_WIDE", schema.SetShared{Revision: lost.Revision, Sensitive: true, Value: schema.ValueOf([]byte(wide))}))(t)
		must(h.StartSession(ctx, repo, schema.StartSession{}))(t)
		got, refused := r.Values(r.Item())
		if refused != "" || string(got["NPM"].GetValue()) != "npm-token-anew" || string(got["WIDE"].GetValue()) != wide {
			t.Errorf("a Session's values: refused %q", refused)
		}
		env := must(h.Environment(ctx, repo))(t)
		if env.Current.Number != 1 || env.Current.BuildKey != version.BuildKey || env.Current.TestKey != version.TestKey {
			t.Errorf("entering a value made a version or moved a key: %+v", env.Current)
		}
		if on := must(h.OnVersions(ctx, repo))(t); len(on) != 1 || on[0] != (schema.OnVersion{Version: 1, Awake: 1}) {
			t.Errorf("on versions: %+v", on)
		}
	})
}
