package web

import (
	"errors"
	"net/http"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
)

type openPage struct {
	Page
	Form       Form
	App        bool   // this Hub has a GitHub App
	InstallURL string // where the App is installed; empty: that is not what is missing, or there is none
}

func (w *Web) openRepoPage(rw http.ResponseWriter, r *http.Request, _ access.Person) error {
	return w.showOpen(rw, r, http.StatusOK, Form{}, "")
}

func (w *Web) showOpen(rw http.ResponseWriter, r *http.Request, status int, form Form, install string) error {
	p := openPage{Page: w.page(r, "Open a Repo"), Form: form, InstallURL: install}
	p.Typing, p.App = true, w.hasApp()
	return w.render(rw, r, status, "open", p)
}

// openRepo checks a Repo as it is entered, before anything is set up (ADR 0009, "Checking up front"). It posts, though it
// changes nothing: GitHub may be asked in the person's name, which another site's page must not bring about.
func (w *Web) openRepo(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	if err := parseForm(r); err != nil {
		return err
	}
	text := strings.TrimSpace(r.PostForm.Get("repo"))
	form := Form{Values: map[string]string{"repo": text}}
	e, err := w.d.Gate.Enter(r.Context(), who, text)
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		form.take(f, "repo")
		return w.showOpen(rw, r, statusOf(f), form, "")
	case err != nil:
		return err
	case e.OK:
		return seeOther(rw, r, "/repos/"+e.Grant.Repo().ID.String())
	}
	form.Errors = []FieldError{{"repo", e.Message}}
	status := http.StatusNotFound
	if e.NotInstalled {
		status = http.StatusConflict
	}
	return w.showOpen(rw, r, status, form, w.installPath())
}

func (w *Web) hasApp() bool {
	_, err := w.d.Gate.App()
	return err == nil
}

// installPath is the link to where the App is installed, by way of the Hub, which remembers who left; empty: there is no App,
// or it isn't known yet what it is called.
func (w *Web) installPath() string {
	if w.d.Gate.InstallURL() == "" {
		return ""
	}
	return "/setup/install"
}
