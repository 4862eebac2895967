package proposal_test

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
)

func TestAForkIsBuiltOnlyWhenAskedForAndWithoutSecrets(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		mallory := r.gh.Person("mallory")
		r.repo.Allow(mallory, "read")
		fork := r.repo.Fork(mallory)
		fork.Push(mallory, "evil", "env", githubtest.Files{path: githubtest.Text("image: node:22\nbootstrap: env\nvariables:\n  OWN: x\n  TOKEN: {sensitive: true, build: true}\n")})
		p := r.repo.OpenPull(mallory, fork, "evil", "[click](http://evil.example) @ana <b>")
		r.look(p)
		v := r.says(p.SHA(), "neutral", "from a fork", "without Sensitive values and Links", "never counts for Apply")
		if len(r.tests()) != 0 || len(v.Buttons) != 1 {
			t.Fatalf("%d Test builds, %+v", len(r.tests()), v.Buttons)
		}
		if _, err := r.Adopt(t.Context(), r.grant, p.Number, 0); err == nil {
			t.Error("a fork's draft came into the pages, where it would be tested with secrets")
		}
		r.press(p.SHA(), mallory)
		if len(r.tests()) != 0 {
			t.Fatal("its author started a Test build")
		}
		r.press(p.SHA(), r.ana)
		values, refused := r.runner.Values(r.runner.Item())
		if refused != "" || len(values) != 1 || string(values["OWN"].GetValue()) != "x" {
			t.Fatalf("%v, %q", values, refused)
		}
		r.runner.Pass(r.runner.Item())
		r.settle()
		run := r.shown(p.SHA(), proposal.TestName)
		if len(run) != 1 || run[0].Conclusion != "success" || !strings.Contains(run[0].Summary.String(), "withheld") {
			t.Fatalf("%+v", run)
		}
		r.says(p.SHA(), "neutral", "from a fork")
		must(t, r.RerunAll(t.Context(), r.id(), p.SHA(), account(r.ana)))
		if all := r.shown(p.SHA(), proposal.TestName); len(all) != 2 || all[1].Status != checks.Queued {
			t.Fatalf("%+v", all)
		}
		r.runner.Pass(r.runner.Item())
		sha := p.Merge(r.ana, "squash")
		r.look(p)
		r.says(sha, "action_required", "Not applied yet", "TOKEN")
		if r.env().Current != nil {
			t.Error("a Test build without secrets counted")
		}
	})
}

func TestACheckRunTellsNobodyWhatOnlyPeopleWithAccessMayKnow(t *testing.T) {
	r := one(t, proposal.Options{})
	_, err := r.hub.Vault.CreateShared(t.Context(), r.grant.Who(), variable.NewShared{Name: "PROD_TOKEN", Sensitive: true, Value: []byte("token-0123456789")})
	must(t, err)
	// Names of Shared variables.
	p := r.propose("near", "variables:\n  A: {link: PROD_TOKEM}\n")
	if v := r.says(p.SHA(), "failure", "Invalid", `PROD\_TOKEM`); strings.Contains(v.Summary.String()+v.Annotations[0].Message, "PROD_TOKEN") || strings.Contains(v.Summary.String(), `PROD\_TOKEN,`) {
		t.Errorf("%s, %+v", v.Summary, v.Annotations)
	}
	mallory := r.gh.Person("mallory")
	r.repo.Publish(true)
	fork := r.repo.Fork(mallory)
	said := map[string]string{}
	for _, name := range []string{"PROD_TOKEN", "NO_SUCH_ONE"} {
		fork.Push(mallory, name, "probe", githubtest.Files{path: githubtest.Text("variables:\n  A: {link: " + name + "}\n")})
		q := r.repo.OpenPull(mallory, fork, name, "probe")
		r.look(q)
		v := r.says(q.SHA(), "neutral", "from a fork")
		said[name] = strings.NewReplacer(`PROD\_TOKEN`, "X", `NO\_SUCH\_ONE`, "X", "/proposals/2", "", "/proposals/3", "").Replace(v.Title.String() + v.Summary.String())
		if len(v.Annotations) != 0 || len(v.Buttons) != 1 {
			t.Errorf("%+v, %+v", v.Annotations, v.Buttons)
		}
	}
	if said["PROD_TOKEN"] != said["NO_SUCH_ONE"] {
		t.Errorf("a fork learns what there is:\n%s\n%s", said["PROD_TOKEN"], said["NO_SUCH_ONE"])
	}
	// Nor does a fork keep a Shared variable from being deleted.
	_, users, err := r.hub.Vault.SharedNamed(t.Context(), r.grant.Who(), "PROD_TOKEN")
	must(t, err)
	if n := len(users.Repos) + users.Hidden; n != 0 {
		t.Errorf("%d Repos use it", n)
	}
	// What is applied from the pages, in a public Repo.
	spec := envspec.Default()
	spec.Bootstrap, spec.Image = "echo internal-host.example", "registry.internal.example/base"
	r.hub.Applied(r.grant, r.runner, spec)
	q := r.propose("public", "image: node:22\n")
	if v := r.says(q.SHA(), "action_required", "", "image changes.", "bootstrap changes."); strings.Contains(v.Summary.String()+v.Text.String(), "internal") {
		t.Errorf("%s\n%s", v.Summary, v.Text)
	}
	r.repo.Publish(false)
	r.repo.Push(r.ana, "public", "again", githubtest.Files{path: githubtest.Text("image: node:24\n")})
	r.look(q)
	r.says(q.SHA(), "action_required", "", "internal-host.example")
}
