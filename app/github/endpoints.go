package github

import (
	"net/url"
	"strings"
)

// Endpoints are where a GitHub is, without slashes at their ends.
type Endpoints struct {
	Web     string // pages, sign-in, git
	API     string // REST
	GraphQL string
}

// Com is github.com.
func Com() Endpoints {
	return Endpoints{Web: "https://github.com", API: "https://api.github.com", GraphQL: "https://api.github.com/graphql"}
}

// Enterprise is a GitHub Enterprise Server at web, for example https://github.example.com (facts/github.md §1, 25).
func Enterprise(web string) Endpoints {
	web = strings.TrimRight(web, "/")
	return Endpoints{Web: web, API: web + "/api/v3", GraphQL: web + "/api/graphql"}
}

// At is the GitHub at web: github.com, Enterprise Cloud with data residency (https://acme.ghe.com), or an Enterprise Server.
func At(web string) Endpoints {
	if web = strings.TrimRight(web, "/"); web == "" || strings.EqualFold(web, Com().Web) {
		return Com()
	}
	if host, ok := strings.CutPrefix(strings.ToLower(web), "https://"); ok && strings.HasSuffix(host, ".ghe.com") {
		api := "https://api." + host
		return Endpoints{Web: web, API: api, GraphQL: api + "/graphql"}
	}
	return Enterprise(web)
}

// enterprise says whether it is an Enterprise Server: there the API is below the pages' host.
func (e Endpoints) enterprise() bool { return strings.HasPrefix(e.API, e.Web+"/") }

// AppPage is the App's public page.
func (e Endpoints) AppPage(slug string) string {
	if e.enterprise() {
		return e.Web + "/github-apps/" + url.PathEscape(slug)
	}
	return e.Web + "/apps/" + url.PathEscape(slug)
}

// InstallURL is where a person installs the App, or asks for it. state comes back to the setup page; make it when the link is
// pressed. What comes back beside it, installation_id above all, proves nothing (facts/github.md §4, 21).
func (e Endpoints) InstallURL(slug, state string) string {
	u := e.AppPage(slug) + "/installations/new"
	if state != "" {
		u += "?state=" + url.QueryEscape(state)
	}
	return u
}

// NewAppURL is where a browser posts a form with the field manifest to create an App: of the person, or of org.
func (e Endpoints) NewAppURL(org, state string) string {
	u := e.Web
	if org != "" {
		u += "/organizations/" + url.PathEscape(org)
	}
	return u + "/settings/apps/new?state=" + url.QueryEscape(state)
}

// CloneURL is where git finds a Repo by its present name.
func (e Endpoints) CloneURL(fullName string) string { return e.Web + "/" + fullName + ".git" }
