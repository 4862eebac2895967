package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/dotenv"
	"github.com/claude-hub/claude-hub/runner/redact"
)

// What becomes of a row of a .env file.
const (
	rowTake = "take" // add it, or replace what has its name
	rowSkip = "skip"
)

// How a row stands to the draft.
const (
	rowNew      = "new"
	rowChanged  = "changed"
	rowSame     = "same"
	rowConflict = "conflict" // it would replace something of another kind, or whose value nobody can compare
)

// EnvRow is one name of a .env file in the preview.
type EnvRow struct {
	Index     int
	Line      int
	Name      string
	Value     string // "" when Sensitive
	Size      int
	Sensitive bool
	Build     bool
	Status    string
	Why       string // of a conflict
	Choice    string
	Notes     []string
	Error     string // of the save
}

type importPage struct {
	Page
	Form     Form
	Base     int64
	Text     string // typed, when it could not be read
	Problems []envspec.Problem
	Warnings []envspec.Problem
	Rows     []EnvRow
	Exists   bool // some row's name is in the draft
	All      string
	Carried  string // the file, sealed for the next step
	Limit    int64
	Most     int
}

// Taken counts what would be added.
func (p importPage) Taken() (n int) {
	for _, r := range p.Rows {
		if r.Choice == rowTake {
			n++
		}
	}
	return n
}

func (w *Web) importForm(r *http.Request, g access.Grant) importPage {
	return importPage{Page: w.repoPage(r, g, "environment", "Import a .env file"), Limit: dotenv.MaxFile, Most: envspec.MaxVariables}
}

func (w *Web) importPage(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	return w.render(rw, r, http.StatusOK, "import", w.importForm(r, g))
}

// previewImport shows what a .env file would do. Nothing is saved.
func (w *Web) previewImport(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	p := w.importForm(r, g)
	text, given, both := in.input("text")
	switch {
	case both:
		p.Form.Errors = []FieldError{{"text", "there is a text and a file: give one of them"}}
	case !given:
		p.Form.Errors = []FieldError{{"text", "paste the text, or choose the file"}}
	}
	if p.Form.Failed() {
		return w.render(rw, r, http.StatusUnprocessableEntity, "import", p)
	}
	if err := w.preview(r, g, &p, []byte(text)); err != nil {
		return err
	}
	status := http.StatusOK
	if len(p.Rows) == 0 {
		status = http.StatusUnprocessableEntity
		if len(p.Problems) == 0 {
			p.Form.General = "There is no NAME=value in it."
		}
	}
	return w.render(rw, r, status, "import", p)
}

// carriedFor is what a file is sealed for.
func carriedFor(g access.Grant) string { return "import into Repo " + g.Repo().ID.String() }

// preview fills in the rows, with the choices that are proposed.
func (w *Web) preview(r *http.Request, g access.Grant, p *importPage, text []byte) error {
	entries, problems := dotenv.Parse(".env", text)
	for _, problem := range problems {
		if problem.Warning {
			p.Warnings = append(p.Warnings, problem)
		} else {
			p.Problems = append(p.Problems, problem)
		}
	}
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	if env.Draft != nil {
		p.Base = env.Draft.Revision
	}
	spec := draftSpec(env)
	for i, e := range entries {
		row := rowFor(e, spec)
		row.Index = i
		if _, exists := find(spec, e.Name); exists {
			p.Exists = true
		}
		p.Rows = append(p.Rows, row)
	}
	p.Carried, err = w.carry(r, carriedFor(g), text)
	return err
}

// rowFor compares an entry with the draft. A Variable that is there keeps its kind.
func rowFor(e dotenv.Entry, spec envspec.Spec) EnvRow {
	row := EnvRow{Line: e.Line, Name: e.Name, Size: len(e.Value), Sensitive: e.Sensitive, Notes: e.Notes, Status: rowNew, Choice: rowTake}
	v, exists := find(spec, e.Name)
	hidden := e.Sensitive
	switch {
	case !exists && e.Sensitive && redact.Check([]byte(e.Value)) != nil:
		row.Choice = rowSkip
		if e.Value == "" {
			row.Notes = append(slices.Clone(row.Notes), "it is empty, so it can only be Plain")
		} else if len(e.Value) >= envspec.MinSensitive { // else the file's own note says it
			row.Notes = append(slices.Clone(row.Notes), fmt.Sprintf("it has fewer than %d characters, not counting white space, so it can only be Plain", redact.MinLength))
		}
	case !exists:
	case v.Link != "":
		hidden = true
		row.Status, row.Choice, row.Why = rowConflict, rowSkip, "it is a Link to the Shared variable "+v.Link+" now"
	case v.Sensitive:
		row.Sensitive, row.Build = true, v.Build
		row.Status, row.Choice, row.Why = rowConflict, rowSkip, "it is Sensitive: nobody can see whether the value is the same"
	case e.Sensitive:
		row.Sensitive = false
		row.Status, row.Why = rowChanged, "it is Plain now, though its name looks like a secret's"
		fallthrough
	default:
		row.Sensitive = false
		if row.Status = rowChanged; v.Value == e.Value {
			row.Status, row.Choice = rowSame, rowSkip
		}
	}
	if !row.Sensitive && !hidden {
		row.Value = brief(e.Value)
	}
	return row
}

// addImport saves what was chosen in the preview.
func (w *Web) addImport(rw http.ResponseWriter, r *http.Request, g access.Grant) error {
	in, err := readForm(r)
	if err != nil {
		return err
	}
	p := w.importForm(r, g)
	text, ok, err := w.uncarry(r, carriedFor(g), in.Get("carried"))
	if err != nil {
		return err
	}
	if !ok {
		p.Form.General = "The file of this preview can't be read any more: you signed in anew meanwhile, or it is another browser's preview. " +
			"Nothing was saved. Paste it again."
		return w.render(rw, r, http.StatusConflict, "import", p)
	}
	base, err := in.number("base")
	if err != nil {
		return err
	}
	if err := w.preview(r, g, &p, text); err != nil {
		return err
	}
	p.All = in.Get("all")
	for i := range p.Rows {
		p.Rows[i].choose(in, p.All)
	}
	if p.Taken() == 0 {
		p.Form.General = "Nothing is chosen, so nothing was saved."
		return w.render(rw, r, http.StatusUnprocessableEntity, "import", p)
	}
	if base != p.Base {
		p.Form.General = "Somebody else saved the draft meanwhile. Nothing was saved: look at what the rows do to it now, and add them again."
		return w.render(rw, r, http.StatusConflict, "import", p)
	}
	entries, _ := dotenv.Parse(".env", text)
	env, err := w.d.Environments.Get(r.Context(), g)
	if err != nil {
		return err
	}
	spec := draftSpec(env)
	spec.Variables = slices.Clone(spec.Variables)
	given := variable.Given{}
	for i, row := range p.Rows {
		if row.Choice == rowTake && row.Sensitive && entries[i].Value == "" {
			p.Rows[i].Error, p.Form.General = "it is empty, so it can only be Plain", someWrong
		} else if row.Choice == rowTake {
			take(&spec, given, row, entries[i].Value)
		}
	}
	if p.Form.Failed() {
		return w.render(rw, r, http.StatusUnprocessableEntity, "import", p)
	}
	draft, err := w.d.Environments.Save(r.Context(), g, base, spec, given)
	var f *fault.Error
	if errors.As(err, &f) {
		for i := range p.Rows {
			p.Rows[i].Error = f.Fields["variables."+p.Rows[i].Name]
			delete(f.Fields, "variables."+p.Rows[i].Name)
		}
		p.Form.General = someWrong
		if f.Code != fault.Invalid || len(f.Fields) > 0 {
			p.Form.General = "Nothing was saved. " + f.Message
		}
		return w.render(rw, r, statusOf(f), "import", p)
	}
	if err != nil {
		return err
	}
	return w.savedVariables(rw, r, g, draft)
}

const someWrong = "Nothing was saved: some rows need another look."

// choose takes over what the form says of a row. all holds for those whose names are in the draft already.
func (row *EnvRow) choose(in posted, all string) {
	n := strconv.Itoa(row.Index)
	if in.Get("name."+n) != row.Name {
		return // not a form of this preview
	}
	row.Sensitive, row.Build = in.Get("sensitive."+n) != "", in.Get("build."+n) != ""
	if row.Sensitive {
		row.Value = ""
	}
	row.Choice = rowSkip
	if in.Get("choice."+n) == rowTake {
		row.Choice = rowTake
	}
	if row.Status != rowNew {
		switch all {
		case "overwrite":
			row.Choice = rowTake
		case "keep":
			row.Choice = rowSkip
		}
	}
}

// take puts a row into spec. The note of what it replaces stays.
func take(spec *envspec.Spec, given variable.Given, row EnvRow, value string) {
	v := envspec.Variable{Name: row.Name}
	i := slices.IndexFunc(spec.Variables, func(x envspec.Variable) bool { return x.Name == row.Name })
	if i >= 0 {
		v.Note = spec.Variables[i].Note
	}
	if row.Sensitive {
		v.Sensitive, v.Build = true, row.Build
		given[row.Name] = []byte(value)
	} else {
		v.Value = value
	}
	if i >= 0 {
		spec.Variables[i] = v
		return
	}
	spec.Variables = append(spec.Variables, v)
}
