package cmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/dotenv"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/redact"
)

// What an import does about a name that the draft has already.
const (
	conflictFail      = "fail"
	conflictOverwrite = "overwrite"
	conflictKeep      = "keep"
)

// imported is one entry of a .env file, with what becomes of it. It holds the value only where it isn't printed.
type imported struct {
	Line    int      `json:"line"`
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	AtBuild bool     `json:"at_build"`
	Bytes   int      `json:"bytes"`  // of its value
	Status  string   `json:"status"` // new, changed, same, kept, conflict, error
	Notes   []string `json:"notes,omitempty"`

	value string
	keeps bool // a Sensitive one whose value stays, since the file has none
}

type importing struct {
	name       string // of the file
	plain      []string
	sensitive  []string
	build      []string
	onConflict string
	dryRun     bool
	output     string
}

func variableImportCommand() *cobra.Command {
	var repoName string
	in := importing{onConflict: conflictFail}
	c := &cobra.Command{
		Use: "import FILE", Short: "Put the names and values of a .env file into the draft", Args: cobra.ExactArgs(1),
		Long: `Put what a .env file holds into the Repo's draft as Variables; - for stdin. What would become of each line is printed first.
Whether one is Sensitive is guessed by its name (*_KEY, *_TOKEN, *_SECRET, PASSWORD, PRIVATE and the like) unless --plain or
--sensitive names it; one that the draft has keeps its kind. Values of Sensitive ones are never printed. One without a value in
the file becomes a Variable that needs one.

Nothing is saved with --dry-run, when a line is wrong, or when the draft has a name with another value and --on-conflict=fail
(the default). Whether a Sensitive value is the same can't be told, so that is such a case.

The file: NAME=value lines, export before it or not. 'single quotes' and ` + "`backquotes`" + ` are literal, in "double quotes" \n \r \t \\ \"
and \$ are escapes; all of them may go over lines. A # after white space begins a comment. Nothing is expanded: ${X} stays.`,
		Example: "  claude-hub env variable import .env --dry-run --repo acme/rocket\n  claude-hub env variable import .env --build NPM_TOKEN --plain PUBLIC_KEY --on-conflict=overwrite",
		RunE: func(c *cobra.Command, args []string) error {
			in.name = args[0]
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error { return in.run(c, hub, repo) })
		},
	}
	repoFlag(c, &repoName)
	c.Flags().StringSliceVar(&in.plain, "plain", nil, "names that are Plain")
	c.Flags().StringSliceVar(&in.sensitive, "sensitive", nil, "names that are Sensitive")
	c.Flags().StringSliceVar(&in.build, "build", nil, "names of Sensitive ones that the bootstrap receives, too")
	c.Flags().Var(&oneOf{value: &in.onConflict, allowed: []string{conflictOverwrite, conflictKeep, conflictFail}}, "on-conflict", "what to do about names that the draft has with another value")
	c.Flags().BoolVar(&in.dryRun, "dry-run", false, "only print what would become of it")
	outputFlag(c, &in.output)
	return c
}

func (in *importing) read(c *cobra.Command) ([]byte, error) {
	var from io.Reader
	if in.name == "-" {
		in.name, from = "stdin", c.InOrStdin()
	} else {
		f, err := os.Open(in.name)
		if err != nil {
			return nil, usageError{err}
		}
		defer f.Close() //nolint:errcheck // only read from
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, dotenv.MaxFile+1))
	if err != nil {
		return nil, usageError{err}
	}
	return b, nil
}

func (in *importing) run(c *cobra.Command, hub *client.Client, repo schema.Repo) error {
	b, err := in.read(c)
	if err != nil {
		return err
	}
	entries, problems := dotenv.Parse(in.name, b)
	if err := in.names(entries, problems.Failed()); err != nil {
		return err
	}
	var list []imported
	edit := func(spec *envspec.Spec, given map[string]schema.Value) error {
		list = in.decide(entries, *spec)
		if in.stops(list, problems) != nil {
			return in.stops(list, problems)
		}
		if !put(spec, given, list) {
			return errUnchanged
		}
		return nil
	}
	if in.dryRun || problems.Failed() {
		env, err := hub.Environment(c.Context(), repo.ID)
		if err != nil {
			return err
		}
		var spec envspec.Spec
		if env.Draft != nil {
			spec = env.Draft.Spec
		}
		list = in.decide(entries, spec)
		if err := in.print(c, list, problems, nil); err != nil {
			return err
		}
		return in.stops(list, problems)
	}
	draft, err := editDraft(c, hub, repo, edit)
	if errors.Is(err, errUnchanged) {
		return in.print(c, list, problems, nil)
	}
	if err != nil {
		return errors.Join(in.print(c, list, problems, nil), err)
	}
	if err := in.print(c, list, problems, &draft); err != nil || in.output == "json" {
		return err
	}
	return sayMissing(c, hub, repo)
}

// names refuses names among the flags that the file doesn't have.
func (in *importing) names(entries []dotenv.Entry, partly bool) error {
	for _, flag := range []struct {
		name  string
		names []string
	}{{"--plain", in.plain}, {"--sensitive", in.sensitive}, {"--build", in.build}} {
		for _, name := range flag.names {
			if !partly && !slices.ContainsFunc(entries, func(e dotenv.Entry) bool { return e.Name == name }) {
				return usageError{fmt.Errorf("%s names something that isn't in %s", flag.name, in.name)}
			}
			if flag.name == "--plain" && (slices.Contains(in.sensitive, name) || slices.Contains(in.build, name)) {
				return usageError{fmt.Errorf("%s can't be Plain and also Sensitive or chosen for the build: a Plain Variable always reaches the bootstrap", name)}
			}
		}
	}
	return nil
}

// decide says what becomes of each entry, beside what the draft has.
func (in *importing) decide(entries []dotenv.Entry, spec envspec.Spec) []imported {
	list := make([]imported, 0, len(entries))
	for _, e := range entries {
		out := imported{Line: e.Line, Name: e.Name, Kind: envspec.KindPlain, Bytes: len(e.Value), Notes: slices.Clone(e.Notes), value: e.Value, Status: "new"}
		guessed := e.Sensitive
		i := indexOf(spec, e.Name)
		if i >= 0 && spec.Variables[i].Link == "" { // what it is already is no guess
			guessed = spec.Variables[i].Sensitive
		}
		if (guessed || slices.Contains(in.sensitive, e.Name) || slices.Contains(in.build, e.Name)) && !slices.Contains(in.plain, e.Name) {
			out.Kind = envspec.KindSensitive
		}
		out.AtBuild = out.Kind == envspec.KindPlain || slices.Contains(in.build, e.Name)
		if i >= 0 {
			in.meet(&out, spec.Variables[i])
		}
		if out.Kind == envspec.KindSensitive && out.Status != "kept" {
			in.sensitiveValue(&out)
		}
		list = append(list, out)
	}
	return list
}

// meet decides about a name that the draft has.
func (in *importing) meet(out *imported, has envspec.Variable) {
	out.AtBuild = out.AtBuild || out.Kind == envspec.KindSensitive && has.Build
	switch {
	case out.Kind == envspec.KindPlain && has.Kind() == envspec.KindPlain && has.Value == out.value:
		out.Status = "same"
	case out.Kind == envspec.KindSensitive && has.Kind() == envspec.KindSensitive && out.value == "":
		out.keeps, out.Status = true, "same"
		out.Notes = append(out.Notes, "the file has no value: the one it has stays")
		if out.AtBuild != has.Build {
			out.Status = "changed"
		}
	case in.onConflict == conflictOverwrite:
		out.Status = "changed"
	case in.onConflict == conflictKeep:
		out.Status = "kept"
	default:
		out.Status = "conflict"
		out.Notes = append(out.Notes, "the draft has it as "+has.Kind())
	}
}

// sensitiveValue notes what the Hub would refuse, or ask for, of a Sensitive value.
func (in *importing) sensitiveValue(out *imported) {
	out.Notes = slices.DeleteFunc(out.Notes, func(n string) bool { return strings.Contains(n, "can only be Plain") })
	switch {
	case out.keeps:
	case out.value == "":
		out.Notes = append(out.Notes, "it needs a value")
	case redact.Check([]byte(out.value)) != nil:
		out.Status = "error"
		out.Notes = append(out.Notes, fmt.Sprintf("a Sensitive value needs at least %d characters: to make it Plain, say --plain %s", redact.MinLength, out.Name))
	}
}

// stops says why nothing is saved.
func (in *importing) stops(list []imported, problems envspec.Problems) error {
	count := map[string]int{}
	for _, e := range list {
		count[e.Status]++
	}
	switch {
	case problems.Failed(), count["error"] > 0:
		return fmt.Errorf("nothing was saved: mend what is wrong in %s first", in.name)
	case count["conflict"] > 0:
		return errors.New("nothing was saved: the draft has some of the names already. Choose --on-conflict=overwrite or --on-conflict=keep")
	}
	return nil
}

// errUnchanged: a file says nothing that the draft doesn't, so there is no revision to make, which others would meet as a conflict.
var errUnchanged = errors.New("the draft says all of it already")

// put brings the entries into spec, and answers whether there were any.
func put(spec *envspec.Spec, given map[string]schema.Value, list []imported) (changed bool) {
	for _, e := range list {
		if e.Status != "new" && e.Status != "changed" {
			continue
		}
		changed = true
		i := indexOf(*spec, e.Name)
		if i < 0 {
			spec.Variables = append(spec.Variables, envspec.Variable{Name: e.Name})
			i = len(spec.Variables) - 1
		}
		v := &spec.Variables[i]
		if envspec.Variable.Kind(*v) != e.Kind {
			*v = envspec.Variable{Name: e.Name, Sensitive: e.Kind == envspec.KindSensitive, Note: v.Note}
		}
		if e.Kind == envspec.KindPlain {
			v.Value = e.value
			continue
		}
		if v.Build = e.AtBuild; e.value != "" {
			given[e.Name] = schema.ValueOf([]byte(e.value))
		}
	}
	return changed
}

// print says what becomes of the file; draft is what it was saved as, nil for nothing.
func (in *importing) print(c *cobra.Command, list []imported, problems envspec.Problems, draft *schema.Draft) error {
	if in.output == "json" {
		if problems == nil {
			problems = envspec.Problems{}
		}
		out := map[string]any{"entries": list, "problems": problems, "saved": draft != nil}
		if draft != nil {
			out["revision"] = draft.Revision
		}
		return printJSON(c, out)
	}
	rows := make([][]string, 0, len(list))
	count := map[string]int{}
	for _, e := range list {
		count[e.Status]++
		value := short(e.value)
		if e.Kind == envspec.KindSensitive {
			value = fmt.Sprintf("hidden, %d bytes", e.Bytes)
		}
		rows = append(rows, []string{fmt.Sprint(e.Line), e.Name, e.Kind, yesNo(e.AtBuild), value, e.Status, strings.Join(e.Notes, "; ")})
	}
	if err := printTable(c, "LINE|NAME|KIND|BUILD|VALUE|STATUS|NOTES", rows); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(c.ErrOrStderr(), p)
	}
	var said []string
	for _, status := range []string{"new", "changed", "same", "kept", "conflict", "error"} {
		if count[status] > 0 {
			said = append(said, fmt.Sprintf("%d %s", count[status], status))
		}
	}
	summary := strings.Join(said, ", ")
	if summary == "" {
		summary = "no Variables"
	}
	if draft != nil {
		summary += fmt.Sprintf("; saved in revision %d of the draft", draft.Revision)
	} else {
		summary += "; nothing was saved"
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), summary)
	return err
}
