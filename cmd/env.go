package cmd

import (
	"fmt"
	"io"
	"os"
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
		Use: "env", Short: "A Repo's Environment: validate, save, test, apply",
		Long:    "A Repo's one Environment: the recipe its Sandboxes are built from.",
		Example: "  claude-hub env validate\n  claude-hub env test --repo acme/rocket --runner local -f .claude-hub/environment.yml\n  claude-hub env apply --repo acme/rocket -m \"node 22\"",
	}
	c.AddCommand(envValidateCommand(), envSchemaCommand(), envFmtCommand(), envImportCommand(), envShowCommand(), envSaveCommand(), envTestCommand(), envApplyCommand(), envVersionsCommand())
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
	c := &cobra.Command{
		Use: "show", Short: "Show the draft, the applied version, and what applying would change", Args: cobra.NoArgs,
		Example: "  claude-hub env show --repo acme/rocket",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				env, err := hub.Environment(c.Context(), repo.ID)
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, env)
				}
				out := c.OutOrStdout()
				if env.Current == nil {
					fmt.Fprintf(out, "%s has no applied version yet\n", repo.Name)
				} else {
					fmt.Fprintf(out, "version %d, applied by %s on %s, image %s\n", env.Current.Number, env.Current.AppliedBy, env.Current.AppliedAt.Format(time.DateTime), env.Current.ImageDigest)
				}
				if env.Draft == nil {
					fmt.Fprintln(out, "no draft")
					return nil
				}
				fmt.Fprintf(out, "draft revision %d, saved by %s on %s\n", env.Draft.Revision, env.Draft.UpdatedBy, env.Draft.UpdatedAt.Format(time.DateTime))
				for _, change := range env.Changes {
					fmt.Fprintf(out, "  %s: %s\n", change.Field, change.Sentence)
				}
				fmt.Fprintf(out, "%s\n\n%s", env.Verdict.Reason, env.Draft.YAML)
				return nil
			})
		},
	}
	repoFlag(c, &repoName)
	outputFlag(c, &output)
	return c
}

// saveFile stores a document as the draft over whatever revision is there, and returns it.
func saveFile(c *cobra.Command, hub *client.Client, repo schema.Repo, file string) (schema.Draft, error) {
	name, b, err := readDocument(c, []string{file})
	if err != nil {
		return schema.Draft{}, err
	}
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return schema.Draft{}, err
	}
	base := int64(0)
	if env.Draft != nil {
		base = env.Draft.Revision
	}
	files, done, err := repositoryFiles(name)
	if err != nil {
		return schema.Draft{}, err
	}
	defer done()
	var draft schema.Draft
	spec, problems := envspec.Check(name, b, files)
	switch named := spec.BootstrapFile != "" || spec.StartFile != ""; {
	case named && problems.Failed():
		fmt.Fprintln(c.ErrOrStderr(), problems)
		return draft, exitError{exitFailed}
	case named: // the Hub can't read this host's files
		draft, err = hub.SaveDraft(c.Context(), repo.ID, base, spec)
	default:
		draft, err = hub.SaveDraftYAML(c.Context(), repo.ID, base, name, string(b))
	}
	if err != nil {
		return draft, describe(c, name, err)
	}
	return draft, nil
}

// currentDraft saves file if one is named, and returns the Repo's draft.
func currentDraft(c *cobra.Command, hub *client.Client, repo schema.Repo, file string) (schema.Draft, error) {
	if file != "" {
		return saveFile(c, hub, repo, file)
	}
	env, err := hub.Environment(c.Context(), repo.ID)
	if err != nil {
		return schema.Draft{}, err
	}
	if env.Draft == nil {
		return schema.Draft{}, fmt.Errorf("%s has no draft yet. Save one: claude-hub env save --repo %s -f %s", repo.Name, repo.Name, environmentFile)
	}
	return *env.Draft, nil
}

func envSaveCommand() *cobra.Command {
	var repoName, file, output string
	c := &cobra.Command{
		Use: "save", Short: "Save a document as the Repo's draft", Args: cobra.NoArgs,
		Example: "  claude-hub env save --repo acme/rocket -f .claude-hub/environment.yml",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := saveFile(c, hub, repo, file)
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
	c.Flags().StringVarP(&file, "file", "f", environmentFile, "the document, - for stdin")
	outputFlag(c, &output)
	return c
}

func envTestCommand() *cobra.Command {
	var repoName, file, runner, output string
	var detach bool
	c := &cobra.Command{
		Use: "test", Short: "Test-build the draft on a Runner and follow its log", Args: cobra.NoArgs,
		Long: `Test-build exactly the Repo's draft on a Runner: image, bootstrap, snapshot, a fresh clone, start script. With -f the
document is saved as the draft first. The log goes to stdout, phases to stderr. Ctrl-C cancels the Test build.`,
		Example: "  claude-hub env test --repo acme/rocket --runner local\n  claude-hub env test --repo acme/rocket --runner local -f .claude-hub/environment.yml -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := currentDraft(c, hub, repo, file)
				if err != nil {
					return err
				}
				if runner == "" {
					if runner, err = onlyRunner(c, hub); err != nil {
						return err
					}
				}
				test, err := hub.StartTest(c.Context(), repo.ID, draft.Revision, runner)
				if err != nil {
					return err
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
	c.Flags().StringVarP(&file, "file", "f", "", "save this document as the draft first, - for stdin")
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

// followTest waits for the end of a Test build, with its log on stdout. A signal cancels it.
func followTest(c *cobra.Command, hub *client.Client, repo schema.Repo, test schema.TestBuild, log bool) (schema.TestBuild, error) {
	ctx := c.Context()
	logged := make(chan error, 1)
	go func() {
		var err error
		if log {
			_, err = hub.CopyLog(ctx, client.TestLog(repo.ID, test.ID), client.Follow{Live: true, Dropped: sayDropped(c)}, c.OutOrStdout())
		}
		logged <- err
	}()
	shown := ""
	end, err := hub.WaitTest(ctx, repo.ID, test.ID, func(t schema.TestBuild) {
		if n := len(t.Detail.Phases); n > 0 && t.Detail.Phases[n-1].Name != shown {
			shown = t.Detail.Phases[n-1].Name
			fmt.Fprintf(c.ErrOrStderr(), "-- %s\n", shown)
		}
	})
	if ctx.Err() != nil {
		after, stop := afterSignal(c)
		defer stop()
		if err := hub.CancelTest(after, repo.ID, test.ID); err != nil {
			return test, err
		}
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
	c := &cobra.Command{
		Use: "apply", Short: "Apply the draft as a new version", Args: cobra.NoArgs,
		Long:    "Apply the Repo's draft as a new version. A draft that changes what is built needs a passing Test build of exactly what it says.",
		Example: "  claude-hub env apply --repo acme/rocket -m \"node 22\"",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				draft, err := currentDraft(c, hub, repo, "")
				if err != nil {
					return err
				}
				version, err := hub.Apply(c.Context(), repo.ID, draft.Revision, message)
				if err != nil {
					return err
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
