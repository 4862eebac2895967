package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

// SharedRow is a Shared variable in a list.
type SharedRow struct {
	variable.Shared
	Users variable.Users
	Path  string
}

// Brief is a Plain one's value in a line.
func (s SharedRow) Brief() string { return brief(s.Value) }

func sharedPath(name string) string { return "/shared/" + url.PathEscape(name) }

type sharedPage struct {
	Page
	Rows []SharedRow
	Lost int
}

func (w *Web) shared(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	p := sharedPage{Page: w.page(r, "Shared variables")}
	p.Section = "shared"
	all, users, err := w.d.Vault.Shared(r.Context(), who)
	if err != nil {
		return err
	}
	for _, s := range all {
		p.Rows = append(p.Rows, SharedRow{s, users[s.ID], sharedPath(s.Name)})
		if s.Status == variable.Lost {
			p.Lost++
		}
		if r.URL.Query().Get("done") == s.Name {
			p.Notice = s.Name + " is saved."
		}
	}
	return w.render(rw, r, http.StatusOK, "shared", p)
}

type addSharedPage struct {
	Page
	Form   Form
	Retype bool
}

// Kind tells which is chosen.
func (p addSharedPage) Kind(kind string) bool { return p.Form.Value("kind") == kind }

func (w *Web) addSharedPage(rw http.ResponseWriter, r *http.Request, _ access.Person) error {
	p := addSharedPage{Page: w.page(r, "Add a Shared variable"), Form: Form{Values: map[string]string{"kind": envspec.KindSensitive}}}
	p.Section = "shared"
	return w.render(rw, r, http.StatusOK, "add-shared", p)
}

// typedShared reads a value with its kind. What is wrong with it is said at its field.
func typedShared(in posted, form *Form) (value []byte, sensitive, retype bool) {
	text, given, both := in.input("value")
	_, isFile := in.files["value-file"]
	sensitive = in.Get("kind") != envspec.KindPlain
	form.Values["kind"] = envspec.KindPlain
	if sensitive {
		form.Values["kind"] = envspec.KindSensitive
	}
	if retype = given && (sensitive || isFile); !retype {
		form.Values["value"] = text
	}
	switch {
	case in.again(given):
		retype = true
		form.Errors = append(form.Errors, FieldError{"value", giveAgain})
	case sensitive && text == "":
		form.Errors = append(form.Errors, FieldError{"value", noSensitive(given)})
	}
	if both {
		form.Errors = append(form.Errors, FieldError{"value", "there is a text and a file: give one of them"})
	}
	return []byte(text), sensitive, retype
}

func (w *Web) addShared(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	p := addSharedPage{Page: w.page(r, "Add a Shared variable"), Form: Form{Values: map[string]string{}}}
	p.Section = "shared"
	name, note := strings.TrimSpace(in.text("name")), in.text("note")
	p.Form.Values["name"], p.Form.Values["note"] = name, note
	value, sensitive, retype := typedShared(in, &p.Form)
	p.Retype = retype
	if p.Form.Failed() {
		return w.render(rw, r, http.StatusUnprocessableEntity, "add-shared", p)
	}
	_, err = w.d.Vault.CreateShared(r.Context(), who, variable.NewShared{Name: name, Note: note, Sensitive: sensitive, Value: value})
	var f *fault.Error
	if errors.As(err, &f) {
		p.Form.take(f, "name", "value", "note")
		return w.render(rw, r, statusOf(f), "add-shared", p)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/shared?"+url.Values{"done": {name}}.Encode())
}

type sharedOnePage struct {
	Page
	Row SharedRow
	// Forms by what they change: value, note, rename.
	Value, Note, Rename Form
	Retype              bool
	// Theirs is what somebody else made of it meanwhile, where it differs from what was typed.
	Theirs []FieldConflict
}

// Kind tells which is chosen for the new value.
func (p sharedOnePage) Kind(kind string) bool { return p.Value.Value("kind") == kind }

func (w *Web) sharedOne(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	p, err := w.sharedOnePage(r, who)
	if err != nil {
		return err
	}
	if what := r.URL.Query().Get("done"); what == "value" || what == "note" || what == "rename" {
		p.Notice = "Saved."
		if what == "value" {
			p.Notice = "The value is saved. " + p.Row.Users.Consequence()
		}
	}
	return w.render(rw, r, http.StatusOK, "shared-variable", p)
}

func (w *Web) sharedOnePage(r *http.Request, who access.Person) (sharedOnePage, error) {
	name := mux.Vars(r)["shared"]
	p := sharedOnePage{Page: w.page(r, name)}
	p.Section = "shared"
	s, users, err := w.d.Vault.SharedNamed(r.Context(), who, name)
	if err != nil {
		return p, err
	}
	p.Row = SharedRow{s, users, sharedPath(s.Name)}
	kind := envspec.KindPlain
	if s.Sensitive {
		kind = envspec.KindSensitive
	}
	p.Value.Values = map[string]string{"kind": kind, "value": s.Value}
	p.Note.Values = map[string]string{"note": s.Note}
	p.Rename.Values = map[string]string{"name": s.Name}
	return p, nil
}

// sharedChange is what one of the forms of a Shared variable's page does. It answers the name to come back to.
type sharedChange func(w *Web, r *http.Request, who access.Person, in posted, revision int64, p *sharedOnePage) (string, error)

func (w *Web) changeShared(what string, change sharedChange) func(http.ResponseWriter, *http.Request, access.Person) error {
	return func(rw http.ResponseWriter, r *http.Request, who access.Person) error {
		in, err := readForm(r)
		if err != nil {
			return err
		}
		revision, err := in.number("revision")
		if err != nil {
			return err
		}
		p, err := w.sharedOnePage(r, who)
		if err != nil {
			return err
		}
		name, err := change(w, r, who, in, revision, &p)
		var f *fault.Error
		switch {
		case errors.As(err, &f) && f.Code != fault.NotFound:
			form := map[string]*Form{"value": &p.Value, "note": &p.Note, "rename": &p.Rename}[what]
			form.take(f, "value", "note", "name")
			if f.Code == fault.Conflict {
				p.Theirs = sharedConflicts(p, what)
			}
			return w.render(rw, r, statusOf(f), "shared-variable", p)
		case err != nil:
			return err
		}
		return seeOther(rw, r, sharedPath(name)+"?done="+what)
	}
}

// sharedConflicts compares what was typed with what is saved, which pressing again would replace. A Plain value is shown whole.
func sharedConflicts(p sharedOnePage, what string) (all []FieldConflict) {
	add := func(label, theirs, yours string) {
		if theirs != yours {
			all = append(all, FieldConflict{Label: label, Theirs: theirs, Yours: yours})
		}
	}
	switch what {
	case "value":
		saved := map[string]string{"kind": envspec.KindPlain, "value": p.Row.Value}
		if p.Row.Sensitive {
			saved["kind"] = envspec.KindSensitive
		}
		add("Kind", words("kind", saved), words("kind", p.Value.Values))
		add("Value", words("value", saved), words("value", p.Value.Values))
	case "note":
		add("Note", p.Row.Note, p.Note.Value("note"))
	}
	return all
}

// words is what a Shared variable's form says in a field.
func words(field string, form map[string]string) string {
	switch v := form[field]; {
	case field == "kind":
		return sentenceCase(v)
	case form["kind"] == envspec.KindSensitive:
		return "hidden"
	default:
		return v
	}
}

func setShared(w *Web, r *http.Request, who access.Person, in posted, revision int64, p *sharedOnePage) (string, error) {
	before := p.Row.Value
	value, sensitive, retype := typedShared(in, &p.Value)
	p.Retype = retype
	if p.Value.Failed() {
		f := fault.New(fault.Invalid, "Some fields need another look.")
		f.Fields = map[string]string{"value": p.Value.Error("value")}
		p.Value.Errors = nil
		return "", f
	}
	if !sensitive && !p.Row.Sensitive && !retype {
		value = []byte(kept(before, string(value)))
	}
	if !sensitive && p.Row.Sensitive && len(value) == 0 {
		return "", fault.Field("value", "Enter a value: what was Sensitive never becomes Plain.")
	}
	s, err := w.d.Vault.SetShared(r.Context(), who, p.Row.Name, revision, sensitive, value)
	return s.Name, err
}

func noteShared(w *Web, r *http.Request, who access.Person, in posted, revision int64, p *sharedOnePage) (string, error) {
	p.Note.Values["note"] = in.text("note")
	s, err := w.d.Vault.NoteShared(r.Context(), who, p.Row.Name, revision, in.text("note"))
	return s.Name, err
}

func renameShared(w *Web, r *http.Request, who access.Person, in posted, revision int64, p *sharedOnePage) (string, error) {
	to := strings.TrimSpace(in.text("name"))
	p.Rename.Values["name"] = to
	s, err := w.d.Vault.RenameShared(r.Context(), who, p.Row.Name, revision, to)
	return s.Name, err
}

type deleteSharedPage struct {
	Page
	Row SharedRow
}

func (w *Web) deleteSharedPage(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	return w.showDeleteShared(rw, r, who, http.StatusOK, "")
}

// showDeleteShared asks whether one is to be deleted, as it is now: who says yes again after a conflict has seen what changed.
func (w *Web) showDeleteShared(rw http.ResponseWriter, r *http.Request, who access.Person, status int, alert string) error {
	one, err := w.sharedOnePage(r, who)
	if err != nil {
		return err
	}
	p := deleteSharedPage{Page: one.Page, Row: one.Row}
	p.Title, p.Alert = "Delete "+one.Row.Name, alert
	return w.render(rw, r, status, "delete-shared", p)
}

func (w *Web) deleteShared(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	revision, err := in.number("revision")
	if err != nil {
		return err
	}
	err = w.d.Vault.DeleteShared(r.Context(), who, mux.Vars(r)["shared"], revision)
	var f *fault.Error
	if errors.As(err, &f) && f.Code != fault.NotFound {
		return w.showDeleteShared(rw, r, who, statusOf(f), f.Message)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/shared")
}
