package cmd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func envVariableCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "variable", Aliases: []string{"variables", "var"}, Short: "The Variables of a Repo's draft: list, set, remove, link, import",
		Long: `The Variables of a Repo's Environment: the environment of every process in its Sandboxes. A Plain one can be read, and always
reaches the bootstrap. A Sensitive one is encrypted, write-only and redacted, and reaches the bootstrap with --build only. A
Link has the value of a Shared variable (claude-hub shared).

What is set here stands in the draft, until it is applied: see env show.`,
		Example: "  claude-hub env variable ls --repo acme/rocket\n  claude-hub env variable set NODE_ENV=production --plain\n  claude-hub env variable set NPM_TOKEN --sensitive --build < token.txt\n  claude-hub env variable import .env --dry-run",
	}
	c.AddCommand(variableListCommand(), variableSetCommand(), variableRemoveCommand(), variableLinkCommand(), variableImportCommand())
	return c
}

func variableListCommand() *cobra.Command {
	var repoName, output string
	var number int
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the draft's Variables, or a version's", Args: cobra.NoArgs,
		Long: `List the Variables of the draft, or with --version of a version, with what may be shown of their values: a Plain one's value,
and of a Sensitive one whether it has any, since when and by whom, and a digest by which two values can be compared.`,
		Example: "  claude-hub env variable ls --repo acme/rocket\n  claude-hub env variable ls --repo acme/rocket --version 3 -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				var all []schema.Variable
				var err error
				if c.Flags().Changed("version") {
					all, err = hub.VersionVariables(c.Context(), repo.ID, number)
				} else {
					all, err = hub.DraftVariables(c.Context(), repo.ID)
				}
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, all)
				}
				rows := make([][]string, 0, len(all))
				for _, v := range all {
					rows = append(rows, []string{v.Name, v.Kind, yesNo(v.AtBuild), shown(v), since(v.SetAt), v.SetBy, oneLine(v.Note)})
				}
				return printTable(c, "NAME|KIND|BUILD|VALUE|CHANGED|BY|NOTE", rows)
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().IntVar(&number, "version", 0, "of this version; default: of the draft")
	outputFlag(c, &output)
	return c
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.DateTime)
}

// shown is what a table says of a value.
func shown(v schema.Variable) string {
	switch {
	case v.Status == "lost":
		return "lost with its key: needs a value"
	case v.Kind == "link" && v.Status == "set":
		return "shared/" + v.Link
	case v.Kind == "link":
		return "shared/" + v.Link + " has no value"
	case v.Status != "set":
		return "needs a value"
	case v.Value != nil:
		return short(*v.Value)
	}
	return "set, digest " + v.Digest
}

// short is a Plain value in one line of a table.
func short(value string) string {
	const most = 40
	if r := []rune(value); len(r) > most {
		value = string(r[:most]) + "…"
	}
	if value == "" || strings.TrimSpace(value) != value || strings.HasPrefix(value, `"`) || oneLine(value) != value {
		return strconv.Quote(value)
	}
	return value
}

// editDraft changes the newest draft, or begins one, and saves it. Somebody else's save between the two is taken as what is
// changed: edit is called again then, on the newer draft.
func editDraft(c *cobra.Command, hub *client.Client, repo schema.Repo, edit func(*envspec.Spec, map[string]schema.Value) error) (schema.Draft, error) {
	const tries = 5
	for try := 1; ; try++ {
		env, err := hub.Environment(c.Context(), repo.ID)
		if err != nil {
			return schema.Draft{}, err
		}
		spec := envspec.Default()
		in := schema.SaveDraft{Spec: &spec, Values: map[string]schema.Value{}}
		if env.Draft != nil {
			spec, in.Base = env.Draft.Spec, env.Draft.Revision
		}
		if err := edit(&spec, in.Values); err != nil {
			return schema.Draft{}, err
		}
		draft, err := hub.Save(c.Context(), repo.ID, in)
		if client.Is(err, fault.Conflict) && try < tries {
			continue
		}
		return draft, sayConflict(c, repo, err, nil, "")
	}
}

// saidOf prints what saving the draft did to Variables, and what that means once it is applied.
func saidOf(c *cobra.Command, hub *client.Client, repo schema.Repo, draft schema.Draft, output string, names ...string) error {
	if output == "json" {
		return printJSON(c, draft)
	}
	fmt.Fprintf(c.OutOrStdout(), "saved in revision %d of the draft\n", draft.Revision)
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return err
	}
	for _, change := range env.Changes {
		if slices.Contains(names, strings.TrimPrefix(change.Field, "variables.")) {
			fmt.Fprintf(c.OutOrStdout(), "  %s\n", change.Sentence)
		}
	}
	return sayMissing(c, hub, repo)
}

func variableSetCommand() *cobra.Command {
	var repoName, output, file, note, to string
	var plain, sensitive, build bool
	c := &cobra.Command{
		Use: "set NAME[=VALUE]", Short: "Add a Variable to the draft, or change its value, kind, note or name",
		Long: `Add a Variable to the Repo's draft, or change one. A new one needs --plain or --sensitive. Its value comes from --value-file
or through a pipe, byte for byte (a line break at its end stays: printf '%s' makes none), else from a prompt, without echo if it is
Sensitive; a Plain one's may stand in the argument. Where only --note, --build or --rename is said, the value stays as it is.

The value of a Sensitive one is never taken from the command line, which every process of the host can read. It needs at least 8
characters, so that it can be kept out of logs, and can't be read again. A Sensitive one becomes Plain only with a new value.

A value that takes the place of one that was lost with its encryption key applies at once, without a Test build.`,
		Example: "  claude-hub env variable set NODE_ENV=production --plain --repo acme/rocket\n" +
			"  claude-hub env variable set NPM_TOKEN --sensitive --build --value-file token.txt\n" +
			"  pass show npm | tr -d '\\n' | claude-hub env variable set NPM_TOKEN\n" +
			"  claude-hub env variable set NPM_TOKEN --note \"read only\" --rename NPM_READ_TOKEN",
		Args: oneName("NAME[=VALUE]"),
		RunE: func(c *cobra.Command, args []string) error {
			name, inline := nameValue(args[0])
			if err := checkedName(name); err != nil {
				return err
			}
			switch {
			case plain && sensitive:
				return usageError{errors.New("a Variable is either --plain or --sensitive")}
			case inline != nil && sensitive:
				return onCommandLine(name)
			case inline != nil && file != "":
				return usageError{errors.New("the value is given twice, as an argument and by --value-file")}
			}
			if to != "" {
				if err := checkedName(to); err != nil {
					return err
				}
			}
			set := setting{name: name, inline: inline, file: file, plain: plain, sensitive: sensitive, build: build, note: note, to: to, output: output}
			set.noted, set.ticked = c.Flags().Changed("note"), c.Flags().Changed("build")
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error { return set.run(c, hub, repo) })
		},
	}
	repoFlag(c, &repoName)
	c.Flags().BoolVar(&plain, "plain", false, "its value can be read, and always reaches the bootstrap")
	c.Flags().BoolVar(&sensitive, "sensitive", false, "its value is encrypted, write-only and redacted")
	c.Flags().BoolVar(&build, "build", false, "available at build: the bootstrap receives it, too (Sensitive ones and Links; --build=false takes it back)")
	c.Flags().StringVar(&note, "note", "", "what it is for; \"\" takes the note away")
	c.Flags().StringVar(&to, "rename", "", "its new name; value, kind and note stay")
	valueFileFlag(c, &file)
	outputFlag(c, &output)
	return c
}

// setting is one env variable set.
type setting struct {
	name, file, note, to, output string
	inline                       *string
	plain, sensitive, build      bool
	noted, ticked                bool // --note and --build were said

	was, kind string // "" for a new one
	value     []byte // nil: it stays
}

func (s *setting) run(c *cobra.Command, hub *client.Client, repo schema.Repo) error {
	before, err := hub.DraftVariables(c.Context(), repo.ID)
	if err != nil {
		return err
	}
	lost := false
	if i := slices.IndexFunc(before, func(v schema.Variable) bool { return v.Name == s.name }); i >= 0 {
		s.was, lost = before[i].Kind, before[i].Status == "lost"
	}
	if s.was == "" && !s.plain && !s.sensitive {
		return s.absent(c, hub, repo)
	}
	if s.kind = s.was; s.plain {
		s.kind = envspec.KindPlain
	} else if s.sensitive {
		s.kind = envspec.KindSensitive
	}
	others := s.noted || s.ticked || s.to != ""
	switch {
	case s.kind == envspec.KindSensitive && s.inline != nil:
		return onCommandLine(s.name)
	case s.kind == s.was && others && s.inline == nil && s.file == "":
	case s.kind == envspec.KindLink:
		return fmt.Errorf("%s is a Link, whose value is kept with its Shared variable. To change it there: claude-hub shared set NAME. To make it a Variable of "+
			"its own, say --plain or --sensitive", s.name)
	case s.inline != nil:
		s.value = []byte(*s.inline)
	default:
		if s.value, err = readValue(c, s.name, s.file, s.kind == envspec.KindSensitive); err != nil {
			return err
		}
	}
	if s.value != nil && s.kind == envspec.KindSensitive && s.was == envspec.KindSensitive {
		entered, err := s.enter(c, hub, repo)
		if err != nil {
			return err
		}
		if entered && lost { // in the draft, too
			if s.value = nil; !others {
				return nil
			}
		}
	}
	draft, err := editDraft(c, hub, repo, s.edit)
	if err != nil {
		return err
	}
	return saidOf(c, hub, repo, draft, s.output, s.name, s.to)
}

// absent is about a Variable that the draft doesn't have: of one whose value the current version lost, that is entered again.
func (s *setting) absent(c *cobra.Command, hub *client.Client, repo schema.Repo) error {
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return err
	}
	if env.Current != nil && !s.noted && !s.ticked && s.to == "" {
		current, err := hub.VersionVariables(c.Context(), repo.ID, env.Current.Number)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(current, func(v schema.Variable) bool {
			return v.Name == s.name && v.Kind == envspec.KindSensitive && v.Status == "lost"
		}) {
			if s.inline != nil {
				return onCommandLine(s.name)
			}
			if s.value, err = readValue(c, s.name, s.file, true); err != nil {
				return err
			}
			_, err = s.enter(c, hub, repo)
			return err
		}
	}
	if s.to != "" {
		return fmt.Errorf("the draft of %s has no Variable %s", repo.Name, s.name)
	}
	return usageError{fmt.Errorf("%s is new: say --plain (everyone with access to the Repo can read it) or --sensitive (nobody can, once it is saved)", s.name)}
}

// enter gives a lost value its new one, and answers whether there was any.
func (s *setting) enter(c *cobra.Command, hub *client.Client, repo schema.Repo) (bool, error) {
	err := hub.EnterValue(c.Context(), repo.ID, s.name, s.value)
	if client.Is(err, fault.Refused) { // it isn't lost, so it is a change of the draft
		return false, nil
	}
	if err == nil {
		fmt.Fprintf(c.ErrOrStderr(), "%s has a value again, in place of the one that was lost: it applies at once, without a Test build\n", s.name)
	}
	return err == nil, err
}

func (s *setting) edit(spec *envspec.Spec, given map[string]schema.Value) error {
	i := indexOf(*spec, s.name)
	switch {
	case i < 0 && s.was != "":
		return fmt.Errorf("somebody took %s out of the draft at the same moment; nothing was saved", s.name)
	case i < 0:
		spec.Variables = append(spec.Variables, envspec.Variable{Name: s.name})
		i = len(spec.Variables) - 1
	case spec.Variables[i].Kind() != s.was:
		return fmt.Errorf("somebody changed what %s is in the draft at the same moment; nothing was saved", s.name)
	}
	v := &spec.Variables[i]
	if s.kind != s.was {
		*v = envspec.Variable{Name: s.name, Sensitive: s.kind == envspec.KindSensitive, Note: v.Note, Build: v.Build && s.kind == envspec.KindSensitive}
	}
	if s.noted {
		v.Note = s.note
	}
	if s.ticked {
		v.Build = s.build
	}
	if s.to != "" {
		v.Name = s.to
	}
	switch {
	case s.value == nil:
	case s.kind == envspec.KindSensitive:
		given[v.Name] = schema.ValueOf(s.value)
	default:
		v.Value = string(s.value)
	}
	return nil
}

// oneName takes one argument, and doesn't repeat a second one: it may be a value.
func oneName(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("say which: %s", what)
		case len(args) > 1:
			return fmt.Errorf("there is more than %s. A value isn't an argument of its own: a Plain one's is written NAME=VALUE, and a Sensitive one's never stands on a "+
				"command line, where every process of this host can read it; give it by --value-file, through a pipe, or at the prompt", what)
		}
		return nil
	}
}

func variableRemoveCommand() *cobra.Command {
	var repoName, output string
	c := &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"remove"}, Short: "Take Variables or Links out of the draft", Args: cobra.MinimumNArgs(1),
		Long: `Take Variables or Links out of the Repo's draft. Versions keep what they have; a Sensitive value that only the draft had is
deleted for good. A Shared variable stays when a Link to it goes.`,
		Example: "  claude-hub env variable rm NPM_TOKEN --repo acme/rocket",
		RunE: func(c *cobra.Command, args []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := editDraft(c, hub, repo, func(spec *envspec.Spec, _ map[string]schema.Value) error {
					for _, name := range args {
						i := indexOf(*spec, name)
						if i < 0 {
							return fmt.Errorf("the draft of %s has no Variable %s; nothing was saved", repo.Name, name)
						}
						spec.Variables = slices.Delete(spec.Variables, i, i+1)
					}
					return nil
				})
				if err != nil {
					return err
				}
				return saidOf(c, hub, repo, draft, output, args...)
			})
		},
	}
	repoFlag(c, &repoName)
	outputFlag(c, &output)
	return c
}

func variableLinkCommand() *cobra.Command {
	var repoName, output, note string
	var build bool
	c := &cobra.Command{
		Use: "link NAME [SHARED]", Short: "Put a Shared variable into the draft, under a name", Args: cobra.RangeArgs(1, 2),
		Long: `Put the Shared variable SHARED into the Repo's draft under the name NAME; left out, SHARED has the same name. An existing Link
is pointed to it. A name that another Variable has is refused. With --build the bootstrap receives it, too, also if it is Plain.`,
		Example: "  claude-hub env variable link SENTRY_DSN --repo acme/rocket\n  claude-hub env variable link NPM_TOKEN NPM_TOKEN_READ --build",
		RunE: func(c *cobra.Command, args []string) error {
			name, to := args[0], args[len(args)-1]
			if err := errors.Join(checkedName(name), checkedName(to)); err != nil {
				return usageError{err}
			}
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := editDraft(c, hub, repo, func(spec *envspec.Spec, _ map[string]schema.Value) error {
					i := indexOf(*spec, name)
					if i < 0 || spec.Variables[i].Link == "" { // beside another Variable of that name: the Hub says why not
						spec.Variables = append(spec.Variables, envspec.Variable{Name: name})
						i = len(spec.Variables) - 1
					}
					v := &spec.Variables[i]
					v.Link = to
					if c.Flags().Changed("note") {
						v.Note = note
					}
					if c.Flags().Changed("build") {
						v.Build = build
					}
					return nil
				})
				if err != nil {
					return err
				}
				return saidOf(c, hub, repo, draft, output, name)
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().BoolVar(&build, "build", false, "available at build: the bootstrap receives it, too (--build=false takes it back)")
	c.Flags().StringVar(&note, "note", "", "what it is for")
	outputFlag(c, &output)
	return c
}
