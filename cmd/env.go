package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const environmentFile = ".claude-hub/environment.yml"

func envCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "env", Short: "A Repo's Environment: validate, save, test, apply, and its Variables",
		Long:    "A Repo's one Environment: the recipe its Sandboxes are built from.",
		Example: "  claude-hub env validate\n  claude-hub env test --repo acme/rocket --runner local -f .claude-hub/environment.yml\n  claude-hub env apply --repo acme/rocket -m \"node 22\"",
	}
	c.AddCommand(envValidateCommand(), envSchemaCommand(), envFmtCommand(), envImportCommand(), envShowCommand(), envSaveCommand(),
		envDiffCommand(), envTestCommand(), envApplyCommand(), envDiscardCommand(), envRestoreCommand(), envVersionsCommand(), envVariableCommand())
	return c
}

func readDocument(c *cobra.Command, args []string) (string, []byte, error) {
	name := environmentFile
	if len(args) > 0 {
		name = args[0]
	}
	if name == "-" {
		b, err := io.ReadAll(c.InOrStdin())
		return "stdin", b, err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return name, nil, usageError{err}
	}
	return name, b, nil
}

// onRepo runs f with a client and the Repo that --repo names.
func onRepo(c *cobra.Command, name string, f func(hub *client.Client, repo schema.Repo) error) error {
	if err := needRepo(name); err != nil {
		return err
	}
	hub, err := connect()
	if err != nil {
		return err
	}
	repo, err := hub.Repo(c.Context(), name)
	if err != nil {
		return err
	}
	return f(hub, repo)
}

func envShowCommand() *cobra.Command {
	var repoName, output string
	var yaml bool
	c := &cobra.Command{
		Use: "show", Short: "Show the draft, the applied version, and what applying would change", Args: cobra.NoArgs,
		Long: `Show a Repo's Environment as it stands: the applied version with the Sessions on it, the draft, what applying it would
change and mean, and Variables without a value. With --yaml only the draft as a document goes to stdout.`,
		Example: "  claude-hub env show --repo acme/rocket\n  claude-hub env show --repo acme/rocket --yaml > .claude-hub/environment.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				env, err := hub.Environment(c.Context(), repo.ID)
				switch {
				case err != nil:
					return err
				case output == "json":
					return printJSON(c, env)
				case yaml && env.Draft == nil:
					return noDraft(repo)
				case yaml:
					_, err = fmt.Fprint(c.OutOrStdout(), env.Draft.YAML)
					return err
				}
				if err := showVersion(c, hub, repo, env.Current); err != nil {
					return err
				}
				out := c.OutOrStdout()
				if env.Draft == nil {
					fmt.Fprintln(out, "no draft")
					return nil
				}
				fmt.Fprintf(out, "draft revision %d, saved by %s on %s\n", env.Draft.Revision, env.Draft.UpdatedBy, env.Draft.UpdatedAt.Format(time.DateTime))
				for _, change := range env.Changes {
					fmt.Fprintf(out, "  %s\n", visible(change.Sentence))
				}
				fmt.Fprintf(out, "%s\n\n%s", env.Verdict.Reason, env.Draft.YAML)
				return sayMissing(c, hub, repo)
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().BoolVar(&yaml, "yaml", false, "only the draft, as a document")
	outputFlag(c, &output)
	return c
}

func noDraft(repo schema.Repo) error {
	return fmt.Errorf("%s has no draft yet. Save one: claude-hub env save --repo %s -f %s", repo.Name, repo.Name, environmentFile)
}

// showVersion prints the applied version, which Sessions are on it or on others, and what it doesn't know of yet.
func showVersion(c *cobra.Command, hub *client.Client, repo schema.Repo, v *schema.Version) error {
	out := c.OutOrStdout()
	if v == nil {
		fmt.Fprintf(out, "%s has no applied version yet\n", repo.Name)
		return nil
	}
	fmt.Fprintf(out, "version %d, applied by %s on %s, image %s\n", v.Number, v.AppliedBy, v.AppliedAt.Format(time.DateTime), v.ImageDigest)
	sessions, err := hub.OnVersions(c.Context(), repo.ID)
	if err != nil {
		return err
	}
	for _, on := range sessions {
		fmt.Fprintf(out, "  Sessions on version %d: %d awake, %d asleep\n", on.Version, on.Awake, on.Asleep)
	}
	moved, err := hub.SharedChanges(c.Context(), repo.ID, v.Number)
	if err != nil {
		return err
	}
	for _, m := range moved {
		fmt.Fprintf(out, "  %s set the Shared variable %s (%s here) on %s, after the version was tested: each Runner makes a new build with it the next time a Session boots\n",
			m.By, m.Shared, m.Name, m.At.Format(time.DateTime))
	}
	return nil
}

// saving is how a document becomes the draft.
type saving struct {
	file   string
	base   int64
	values []string // NAME=FILE
}

func (s *saving) flags(c *cobra.Command) {
	baseFlag(c, &s.base)
	c.Flags().StringArrayVar(&s.values, "value-file", nil, "NAME=FILE: the new value of a Sensitive Variable, byte for byte; - as FILE for stdin")
}

// save stores the document as the draft, and returns it. command is what saves it over what somebody else saved.
func (s *saving) save(c *cobra.Command, hub *client.Client, repo schema.Repo, command string) (schema.Draft, error) {
	var none schema.Draft
	name, b, err := readDocument(c, []string{s.file})
	if err != nil {
		return none, err
	}
	given, err := valueFiles(c, s.values)
	if err != nil {
		return none, err
	}
	files, done, err := repositoryFiles(name)
	if err != nil {
		return none, err
	}
	defer done()
	spec, problems := envspec.Check(name, b, files)
	if problems.Failed() { // said before any conflict: there is no way around these
		fmt.Fprintln(c.ErrOrStderr(), problems)
		return none, exitError{exitFailed}
	}
	mine := spec
	mine.Variables = slices.Clone(spec.Variables)
	for i, v := range mine.Variables {
		if _, ok := given[v.Name]; ok {
			mine.Variables[i].ValueID = "given" // no other one's, so that the difference is told
		}
	}
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return none, err
	}
	over := fmt.Sprintf("claude-hub env %s --repo %s -f %s", command, repo.Name, s.file)
	for _, v := range s.values {
		over += " --value-file " + v
	}
	base, err := baseOf(c, hub, env, s.base)
	if err != nil {
		return none, sayConflict(c, repo, err, &mine, over)
	}
	in := schema.SaveDraft{Base: base, Values: map[string]schema.Value{}}
	for name, value := range given {
		in.Values[name] = schema.ValueOf(value)
	}
	if spec.BootstrapFile != "" || spec.StartFile != "" { // which the Hub can't read
		in.Spec = &spec
	} else {
		text := string(b)
		in.Name, in.YAML = name, &text
	}
	draft, err := hub.Save(c.Context(), repo.ID, in)
	if err != nil {
		return draft, describe(c, name, sayConflict(c, repo, err, &mine, over))
	}
	return draft, sayMissing(c, hub, repo)
}

// currentDraft saves the document if one is named, and returns the Repo's draft.
func (s *saving) currentDraft(c *cobra.Command, hub *client.Client, repo schema.Repo, command string) (schema.Draft, error) {
	if s.file != "" {
		return s.save(c, hub, repo, command)
	}
	if len(s.values) > 0 || c.Flags().Changed("base") {
		return schema.Draft{}, usageError{errors.New("--value-file and --base go with a document that is saved: -f FILE")}
	}
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return schema.Draft{}, err
	}
	if env.Draft == nil {
		return schema.Draft{}, noDraft(repo)
	}
	return *env.Draft, nil
}

func envSaveCommand() *cobra.Command {
	var repoName, output string
	var from saving
	c := &cobra.Command{
		Use: "save", Short: "Save a document as the Repo's draft", Args: cobra.NoArgs,
		Long: `Save a document as the Repo's draft. Scripts that it names as files are read from the repository that it stands in. Sensitive
Variables keep the values they have; those without one are named, and get one by --value-file or env variable set.

The draft is everyone's. What somebody else saved in it and nobody applied yet is not saved over, unless --base names its revision.`,
		Example: "  claude-hub env save --repo acme/rocket -f .claude-hub/environment.yml\n  claude-hub env save --repo acme/rocket --value-file NPM_TOKEN=token.txt",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := from.save(c, hub, repo, "save")
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, draft)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "saved as revision %d\n", draft.Revision)
				return err
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().StringVarP(&from.file, "file", "f", environmentFile, "the document, - for stdin")
	from.flags(c)
	outputFlag(c, &output)
	return c
}

func envTestCommand() *cobra.Command {
	var repoName, runner, output string
	var from saving
	var detach bool
	c := &cobra.Command{
		Use: "test", Short: "Test-build the draft on a Runner and follow its log", Args: cobra.NoArgs,
		Long: `Test-build exactly the Repo's draft on a Runner: image, bootstrap, snapshot, a fresh clone, start script. With -f the
document is saved as the draft first, as env save does. The log goes to stdout, phases to stderr.

Ctrl-C, or a SIGTERM, cancels the Test build and waits until it has ended. A second one ends only the waiting; what comes
within a second of the first counts as the same one.`,
		Example: "  claude-hub env test --repo acme/rocket --runner local\n  claude-hub env test --repo acme/rocket --runner local -f .claude-hub/environment.yml -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := from.currentDraft(c, hub, repo, "test")
				if err != nil {
					return err
				}
				if runner == "" {
					if runner, err = onlyRunner(c, hub); err != nil {
						return err
					}
				}
				// A signal meanwhile must not leave a Test build behind that nobody knows of.
				test, err := hub.StartTest(context.WithoutCancel(c.Context()), repo.ID, draft.Revision, runner)
				if err != nil {
					return sayConflict(c, repo, err, nil, "")
				}
				if !detach {
					if test, err = followTest(c, hub, repo, test, output != "json"); err != nil {
						return err
					}
				}
				if output == "json" {
					if err := printJSON(c, test); err != nil {
						return err
					}
				} else {
					sayTest(c, test)
				}
				if test.Final && test.State != wire.StatePassed {
					return exitError{exitFailed}
				}
				return nil
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().StringVarP(&from.file, "file", "f", "", "save this document as the draft first, - for stdin")
	from.flags(c)
	c.Flags().StringVar(&runner, "runner", "", "Runner, by name or id; needed when there is more than one")
	c.Flags().BoolVar(&detach, "detach", false, "don't wait for the end")
	outputFlag(c, &output)
	return c
}

func onlyRunner(c *cobra.Command, hub *client.Client) (string, error) {
	runners, err := hub.Runners(c.Context())
	if err != nil {
		return "", err
	}
	if len(runners) == 1 {
		return runners[0].ID, nil
	}
	names := make([]string, 0, len(runners))
	for _, r := range runners {
		names = append(names, r.Name)
	}
	return "", usageError{fmt.Errorf("choose the Runner with --runner; there are %d: %q", len(runners), names)}
}

// followTest waits for the end of a Test build, with its log on stdout. A signal cancels it; a second one ends this process.
func followTest(c *cobra.Command, hub *client.Client, repo schema.Repo, test schema.TestBuild, log bool) (schema.TestBuild, error) {
	ctx := c.Context()
	copied := testLog{hub: hub, log: client.TestLog(repo.ID, test.ID), out: c.OutOrStdout(), dropped: sayDropped(c)}
	logged := make(chan error, 1)
	go func() {
		var err error
		if log {
			err = copied.follow(ctx)
		}
		logged <- err
	}()
	shown := ""
	end, err := hub.WaitTest(ctx, repo.ID, test.ID, func(t schema.TestBuild) {
		if n := len(t.Detail.Phases); n > 0 && t.Detail.Phases[n-1].Name != shown {
			shown = t.Detail.Phases[n-1].Name
			if log {
				_ = copied.catchUp(ctx) // so that it stands before the line; follow says what is wrong with it
			}
			fmt.Fprintf(c.ErrOrStderr(), "-- %s\n", shown)
		}
	})
	if ctx.Err() != nil {
		after := context.WithoutCancel(ctx)
		if err := hub.CancelTest(after, repo.ID, test.ID); err != nil {
			return test, err
		}
		fmt.Fprintln(c.ErrOrStderr(), "cancelling the Test build; Ctrl-C again ends only the waiting for its end")
		return hub.WaitTest(after, repo.ID, test.ID, nil)
	}
	if err != nil {
		return end, err
	}
	if err := <-logged; err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "claude-hub: the log could not be followed to its end: %v\n", err)
	}
	return end, nil
}

func sayDropped(c *cobra.Command) func(int64) {
	return func(n int64) {
		fmt.Fprintf(c.ErrOrStderr(), "-- %d bytes were not kept: the log is longer than the Hub's log_limit\n", n)
	}
}

func sayTest(c *cobra.Command, t schema.TestBuild) {
	out := c.ErrOrStderr()
	for _, note := range t.Detail.Notes {
		fmt.Fprintf(out, "note: %s\n", note)
	}
	if f := t.Detail.Failure; f != nil {
		fmt.Fprintf(out, "%s in phase %s: %s\n", t.State, f.Phase, f.Message)
	} else {
		fmt.Fprintln(out, t.State)
	}
	fmt.Fprintf(out, "Test build %s\n", t.ID)
}

func envApplyCommand() *cobra.Command {
	var repoName, message, output string
	var from saving
	c := &cobra.Command{
		Use: "apply", Short: "Apply the draft as a new version", Args: cobra.NoArgs,
		Long: `Apply the Repo's draft as a new version. A draft that changes what is built needs a passing Test build of exactly what it
says, and each of its Variables a value. With -f the document is saved as the draft first, as env save does.`,
		Example: "  claude-hub env apply --repo acme/rocket -m \"node 22\"\n  claude-hub env apply --repo acme/rocket -f .claude-hub/environment.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := from.currentDraft(c, hub, repo, "apply")
				if err != nil {
					return err
				}
				version, err := hub.Apply(c.Context(), repo.ID, draft.Revision, message)
				if err != nil {
					return sayConflict(c, repo, err, nil, "")
				}
				if output == "json" {
					return printJSON(c, version)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "applied as version %d\n", version.Number)
				return err
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().StringVarP(&from.file, "file", "f", "", "save this document as the draft first, - for stdin")
	from.flags(c)
	c.Flags().StringVarP(&message, "message", "m", "", "what changes and why")
	outputFlag(c, &output)
	return c
}

func envVersionsCommand() *cobra.Command {
	var repoName, output string
	c := &cobra.Command{
		Use: "versions", Short: "List applied versions", Args: cobra.NoArgs,
		Example: "  claude-hub env versions --repo acme/rocket",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				versions, err := hub.Versions(c.Context(), repo.ID)
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, versions)
				}
				rows := make([][]string, 0, len(versions))
				for _, v := range versions {
					rows = append(rows, []string{fmt.Sprint(v.Number), v.AppliedAt.Format(time.DateTime), v.AppliedBy, v.Spec.Image, v.Message})
				}
				return printTable(c, "VERSION|APPLIED|BY|IMAGE|MESSAGE", rows)
			})
		},
	}
	repoFlag(c, &repoName)
	outputFlag(c, &output)
	return c
}
