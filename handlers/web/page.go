package web

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// Page is what every page shows around its own content.
type Page struct {
	Title     string
	Login     string // empty: nobody is signed in
	DevLogin  bool
	Release   string // of claude-hub
	RequestID string
	Section   string // repos, shared, runners or account
	Repo      *RepoNav
	// Refresh has the page fetch itself again after so many seconds: something on it is moving. 0: nothing is.
	Refresh int
	// Typing is set where people type: such a page never fetches itself whole, which would lose what they typed. Its script
	// still brings what moves up to date.
	Typing bool
	// AsOf is when GitHub last said who may see this, while it can't be reached; empty: a moment ago.
	AsOf   string
	Notice string // what was just done
	Alert  string // what was just refused
}

// RepoNav is the Repo's part of the navigation.
type RepoNav struct {
	ID, Name, Tab string
}

// Path of the Repo's pages.
func (n RepoNav) Path() string { return "/repos/" + n.ID }

func (w *Web) page(r *http.Request, title string) Page {
	return Page{
		Title: title, Login: person(r.Context()).Login(), DevLogin: w.d.Gate.DevLogin(), Release: w.d.Version,
		RequestID: request.ID(r.Context()), Section: "repos",
	}
}

func (w *Web) repoPage(r *http.Request, g access.Grant, tab, title string) Page {
	p := w.page(r, title)
	p.Repo = &RepoNav{ID: g.Repo().ID.String(), Name: g.Repo().Name, Tab: tab}
	p.AsOf = asOf(g.AsOf(), g.Stale())
	return p
}

// asOf says when GitHub last said who may see this, if it is stale: GitHub can't be asked now.
func asOf(said time.Time, stale bool) string {
	if !stale {
		return ""
	}
	return said.UTC().Format("15:04 UTC")
}

// Form is what a person typed and what is wrong with it.
type Form struct {
	Values map[string]string
	Errors []FieldError // in the form's order
	// General is what is wrong with no single field.
	General string
}

// FieldError is what is wrong with one field.
type FieldError struct{ Field, Message string }

// Value is what was typed into a field.
func (f Form) Value(field string) string { return f.Values[field] }

// Error is what is wrong with a field, empty when nothing is.
func (f Form) Error(field string) string {
	for _, e := range f.Errors {
		if e.Field == field {
			return e.Message
		}
	}
	return ""
}

// Failed tells that something is wrong.
func (f Form) Failed() bool { return f.General != "" || len(f.Errors) > 0 }

// take adds a fault, its fields in order; what is said of a field that the form doesn't have is said of the whole.
func (f *Form) take(err *fault.Error, order ...string) {
	if len(err.Fields) == 0 {
		f.General = err.Message
		return
	}
	if len(order) == 0 {
		for field := range err.Fields {
			order = append(order, field)
		}
	}
	said := 0
	for _, field := range order {
		if message, ok := err.Fields[field]; ok {
			f.Errors = append(f.Errors, FieldError{field, message})
			said++
		}
	}
	if said < len(err.Fields) {
		f.General = err.Message
	}
}

// fields is take for a page that says elsewhere what is wrong with no single field.
func (f *Form) fields(err *fault.Error, order ...string) {
	if len(err.Fields) > 0 {
		f.take(err, order...)
	}
}

// parse reads every page's template on top of the common ones. A page is named as its file.
func parse(funcs template.FuncMap) (map[string]*template.Template, error) {
	base, err := template.New("").Funcs(funcs).Option("missingkey=error").ParseFS(files, "templates/base.gohtml", "templates/parts.gohtml")
	if err != nil {
		return nil, fmt.Errorf("parse the common templates: %w", err)
	}
	names, err := fs.Glob(files, "templates/*.gohtml")
	if err != nil {
		return nil, err
	}
	pages := map[string]*template.Template{}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".gohtml")
		if name == "base" || name == "parts" {
			continue
		}
		t, err := template.Must(base.Clone()).ParseFS(files, file)
		if err != nil {
			return nil, fmt.Errorf("parse the template %s: %w", name, err)
		}
		pages[name] = t
	}
	return pages, nil
}

// render writes a page, whole or not at all.
func (w *Web) render(rw http.ResponseWriter, r *http.Request, status int, name string, data any) error {
	t, ok := w.pages[name]
	if !ok {
		return fmt.Errorf("there is no template %s", name)
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, "base", data); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = rw.Write(b.Bytes())
	}
	return nil
}

func (w *Web) funcs() template.FuncMap {
	return template.FuncMap{
		"ago":       func(t time.Time) string { return ago(w.d.Now(), t) },
		"stamp":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"day":       func(t time.Time) string { return t.UTC().Format("2006-01-02") },
		"rfc":       func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"bytes":     size,
		"cpus":      func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) },
		"memory":    envspec.FormatMemory,
		"sentence":  sentence,
		"leadsAway": foreign,
		"count": func(n int, what string) string {
			if n == 1 {
				return "1 " + what
			}
			return fmt.Sprintf("%d %ss", n, what)
		},
		"short":        short,
		"sentenceCase": sentenceCase,
		"asset":        w.assetPath,
		"rows":         func(path string, rows any) Rows { return Rows{path, rows} },
		"field":        func(form Form, name, label, hint string) Field { return Field{form, name, label, hint} },
	}
}

// Field is one field of a Form for the templates.
type Field struct {
	Form              Form
	Name, Label, Hint string
}

// Value and Error are the Form's for this field.
func (f Field) Value() string { return f.Form.Value(f.Name) }

// Error is described with Value.
func (f Field) Error() string { return f.Form.Error(f.Name) }

// Described is the ids of what explains the field, for aria-describedby.
func (f Field) Described() string {
	var ids []string
	if f.Error() != "" {
		ids = append(ids, f.Name+"-error")
	}
	if f.Hint != "" {
		ids = append(ids, f.Name+"-hint")
	}
	return strings.Join(ids, " ")
}

// short is the end of an id, which differs where ids made at one time begin alike.
func short(id string) string { return id[max(0, len(id)-8):] }

func ago(now, t time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "never"
	case d < 5*time.Second:
		return "just now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// size is a number of bytes for people, in the units that memory and disks are asked for in.
func size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	f, u := float64(n), 0
	for f >= 1024 && u < len(units)-1 {
		f, u = f/1024, u+1
	}
	return strconv.FormatFloat(float64(int64(f*10+0.5))/10, 'f', -1, 64) + " " + units[u]
}

// took is a duration for people.
func took(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return strconv.FormatFloat(float64(d.Milliseconds()/100)/10, 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

// Rows is a table of a Repo's things.
type Rows struct {
	Path string
	Rows any
}
