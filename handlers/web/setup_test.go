package web

import (
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/setup"
)

// setupPages are the pages of the set-up in each state.
func setupPages(base Page, now time.Time) map[string][]any {
	out := Page{Title: "T", Release: "1.2.3", Alert: hostile, Notice: hostile}
	wrong := Form{General: hostile, Values: map[string]string{"name": hostile, "org": hostile, "web": hostile, "app-id": hostile, "client-id": hostile}}
	for _, field := range []string{"name", "org", "web", "app-id", "client-id", "client-secret", "private-key", "webhook-secret", "permissions"} {
		wrong.Errors = append(wrong.Errors, FieldError{field, hostile})
	}
	app := setup.App{ID: 7, Name: hostile, Owner: github.Account{Login: hostile}, Web: hostile, SetAt: now}
	lost, config := app, app
	lost.Lost, config.FromConfig = true, true
	form := setup.Form{Action: "https://github.com/settings/apps/new?state=x", Origin: "https://github.com", Manifest: hostile, Described: github.NewManifest(hostile, hostile, hostile, hostile, hostile, hostile)}
	deaf := setup.Form{Action: form.Action, Origin: form.Origin, Deaf: hostile, Described: github.NewManifest(hostile, "http://127.0.0.1", "", "", "", "")}
	var steps []setup.Step
	for _, state := range []setup.State{setup.Done, setup.ToDo, setup.Wrong, setup.Unknown} {
		steps = append(steps, setup.Step{ID: "step-" + string(state[0]), Title: hostile, State: state, Says: hostile, Link: "https://github.com/apps/x", Label: hostile})
	}
	moving := base
	moving.Refresh = retest
	return map[string][]any{
		"setup-open": {setupOpenPage{Page: out}, setupOpenPage{Page: out, Token: hostile}, setupOpenPage{Page: base, App: true}, setupOpenPage{Page: base, App: true, Config: true}},
		"setup": {
			setupPage{Page: out, Form: Form{Values: map[string]string{"name": "x"}}, Expires: now}, setupPage{Page: base, Form: wrong, Retype: true, Lacking: true, Expires: now},
			setupPage{Page: out, Known: true, App: app, Rotate: true, Expires: now}, setupPage{Page: out, Known: true, App: lost, Expires: now},
			setupPage{Page: out, Known: true, App: config, Refused: hostile},
		},
		"setup-create":  {setupCreatePage{Page: out, Form: form, Permissions: permissions(github.Permissions())}, setupCreatePage{Page: base, Form: deaf}},
		"install-asked": {installAskedPage{out}},
		"checklist":     {checklistPage{Page: moving, Steps: steps}, checklistPage{Page: out, Steps: steps[:1], Complete: true, Operator: true}},
	}
}

// TestEveryPermissionOfTheAppIsExplained: one that is asked for and not explained would be refused, rightly.
func TestEveryPermissionOfTheAppIsExplained(t *testing.T) {
	t.Parallel()
	explained := permissions(github.Permissions())
	if len(explained) != len(github.Permissions()) {
		t.Errorf("explained are %v, asked for are %v", explained, github.Permissions())
	}
	for _, p := range explained {
		if p.Why == "" || p.Level != github.Permissions()[p.Name] {
			t.Errorf("%+v", p)
		}
	}
}
