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

// baseFlag adds --base.
func baseFlag(c *cobra.Command, base *int64) {
	c.Flags().Int64Var(base, "base", 0, "revision of the draft that yours was made from; with it, yours is saved over that revision whoever saved it")
}

// baseOf is the revision that what comes next is saved on top of. Without --base it is the newest one, unless that holds what
// somebody else saved and nobody applied yet: then whoever saves next has to have seen it.
func baseOf(c *cobra.Command, hub *client.Client, env schema.Environment, base int64) (int64, error) {
	if c.Flags().Changed("base") {
		return base, nil
	}
	d := env.Draft
	if d == nil {
		return 0, nil
	}
	if len(env.Changes) == 0 {
		return d.Revision, nil
	}
	me, err := hub.Me(c.Context())
	if err != nil || me.Login == d.UpdatedBy {
		return d.Revision, err
	}
	return 0, &client.Error{Code: fault.Conflict, Conflict: &schema.Conflict{Theirs: d}, Message: fmt.Sprintf(
		"%s saved revision %d of this draft on %s, which isn't applied yet. Nothing of yours was saved over it; look at it and say --base %d to save over it.",
		d.UpdatedBy, d.Revision, d.UpdatedAt.Format(time.DateTime), d.Revision)}
}

// sayConflict says on stderr, beside a refusal for what somebody else saved meanwhile, what that is and how to go on; and
// returns err. mine is what wasn't saved, if it is a Spec; over is the command that saves it over theirs.
func sayConflict(c *cobra.Command, repo schema.Repo, err error, mine *envspec.Spec, over string) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Conflict == nil {
		return err
	}
	out, theirs := c.ErrOrStderr(), e.Conflict.Theirs
	if theirs == nil {
		fmt.Fprintf(out, "The draft was discarded meanwhile. What there is now: claude-hub env show --repo %s\n", repo.Name)
		if over != "" {
			fmt.Fprintf(out, "Save yours all the same: %s --base 0\n", over)
		}
		return err
	}
	fmt.Fprintf(out, "Theirs is revision %d, saved by %s on %s.\n", theirs.Revision, theirs.UpdatedBy, theirs.UpdatedAt.Format(time.DateTime))
	if mine != nil {
		fmt.Fprintf(out, "From theirs to yours:\n%s", indented(envspec.Compare(theirs.Spec, keeping(*mine, theirs.Spec)).String()))
	}
	fmt.Fprintf(out, "See theirs as a document: claude-hub env show --repo %s --yaml\n", repo.Name)
	if over != "" {
		fmt.Fprintf(out, "Save yours over theirs: %s --base %d\n", over, theirs.Revision)
	}
	return err
}

// keeping gives the Sensitive Variables of s, which come from a document, the values that they keep.
func keeping(s, kept envspec.Spec) envspec.Spec {
	s.Variables = slices.Clone(s.Variables)
	for i := range s.Variables {
		v := &s.Variables[i]
		if j := indexOf(kept, v.Name); v.Sensitive && v.ValueID == "" && j >= 0 && kept.Variables[j].Sensitive {
			v.ValueID = kept.Variables[j].ValueID
		}
	}
	return s
}

func indexOf(s envspec.Spec, name string) int {
	return slices.IndexFunc(s.Variables, func(v envspec.Variable) bool { return v.Name == name })
}

func indented(text string) string {
	if text == "" {
		return "  (no difference)\n"
	}
	return "  " + strings.ReplaceAll(strings.TrimSuffix(visible(text), "\n"), "\n", "\n  ") + "\n"
}

func envDiffCommand() *cobra.Command {
	var repoName, output string
	c := &cobra.Command{
		Use: "diff [FROM [TO]]", Short: "Show what is different between the draft and versions", Args: cobra.MaximumNArgs(2),
		Long: `Show what is different between two of a Repo's draft and versions: fields, Variables with hidden values, and scripts line
by line. FROM and TO are “draft”, a version's number, or “none” for no Environment. Left out, FROM is the applied version and TO the draft.`,
		Example: "  claude-hub env diff --repo acme/rocket\n  claude-hub env diff 2 3 --repo acme/rocket\n  claude-hub env diff 2 draft --repo acme/rocket -o json",
		RunE: func(c *cobra.Command, args []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				args = append(args, "", "")
				d, err := hub.Diff(c.Context(), repo.ID, args[0], args[1])
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, d)
				}
				if d.Text == "" {
					_, err = fmt.Fprintf(c.ErrOrStderr(), "%s and %s are the same\n", side(d.From), side(d.To))
					return err
				}
				_, err = fmt.Fprint(c.OutOrStdout(), visible(d.Text))
				return err
			})
		},
	}
	repoFlag(c, &repoName)
	outputFlag(c, &output)
	return c
}

// side names a side of a diff in a sentence.
func side(s string) string {
	switch s {
	case "draft":
		return "the draft"
	case "none":
		return "no Environment"
	}
	return "version " + s
}

func envDiscardCommand() *cobra.Command {
	var repoName, output string
	var base int64
	var yes bool
	c := &cobra.Command{
		Use: "discard", Short: "Give up what the draft has beyond the applied version", Args: cobra.NoArgs,
		Long: `Give up what the draft has beyond the applied version: it says what that says again. Without a version the draft is
gone, with the Sensitive values that only it had. It says what would be lost, and asks.`,
		Example: "  claude-hub env discard --repo acme/rocket",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				env, err := hub.Environment(c.Context(), repo.ID)
				if err != nil {
					return err
				}
				if env.Draft == nil {
					return errors.New("this Repo has no draft to discard")
				}
				if !c.Flags().Changed("base") {
					base = env.Draft.Revision
				}
				if !yes {
					lost, err := hub.Diff(c.Context(), repo.ID, "", "draft")
					if err != nil {
						return err
					}
					fmt.Fprintf(c.ErrOrStderr(), "Revision %d, saved by %s on %s, differs from %s by:\n%s", env.Draft.Revision, env.Draft.UpdatedBy,
						env.Draft.UpdatedAt.Format(time.DateTime), side(lost.From), indented(lost.Text))
					if !agree(c, "Discard it?") {
						return errors.New("nothing was discarded")
					}
				}
				draft, err := hub.Discard(c.Context(), repo.ID, base)
				if err != nil {
					return sayConflict(c, repo, err, nil, "")
				}
				switch {
				case output == "json":
					return printJSON(c, schema.Discarded{Draft: draft})
				case draft == nil:
					_, err = fmt.Fprintln(c.OutOrStdout(), "discarded; there is no draft now")
				default:
					_, err = fmt.Fprintf(c.OutOrStdout(), "discarded; the draft, revision %d, says what version %d says\n", draft.Revision, env.Current.Number)
				}
				return err
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().Int64Var(&base, "base", 0, "revision of the draft to discard; default: the newest")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	outputFlag(c, &output)
	return c
}

func envRestoreCommand() *cobra.Command {
	var repoName, output string
	var base int64
	var yes bool
	c := &cobra.Command{
		Use: "restore VERSION", Short: "Make what a version says the draft", Args: cobra.ExactArgs(1),
		Long: `Make what a version says the draft, in place of what the draft says. Its Variables get the values that they had in the
version. Nothing is applied: look at it with env diff, test-build it if it needs that, and apply it. If the draft has something that isn't applied,
that is said and asked about first.`,
		Example: "  claude-hub env restore 3 --repo acme/rocket\n  claude-hub env diff --repo acme/rocket",
		RunE: func(c *cobra.Command, args []string) error {
			number, err := strconv.Atoi(args[0])
			if err != nil || number < 1 {
				return usage(c, errors.New("VERSION is the number of a version, as env versions lists them"))
			}
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				env, err := hub.Environment(c.Context(), repo.ID)
				if err != nil {
					return err
				}
				over := fmt.Sprintf("claude-hub env restore %d --repo %s", number, repo.Name)
				if base, err = baseOf(c, hub, env, base); err != nil {
					return sayConflict(c, repo, err, nil, over)
				}
				if !yes && env.Draft != nil && len(env.Changes) > 0 {
					if _, err := hub.Version(c.Context(), repo.ID, number); err != nil {
						return err // before anything is asked
					}
					lost, err := hub.Diff(c.Context(), repo.ID, "", "draft")
					if err != nil {
						return err
					}
					fmt.Fprintf(c.ErrOrStderr(), "The draft has what isn't applied yet:\n%s", indented(lost.Text))
					if !agree(c, "Put version "+args[0]+" in its place?") {
						return errors.New("nothing was restored")
					}
				}
				draft, err := hub.Restore(c.Context(), repo.ID, base, number)
				if err != nil {
					return sayConflict(c, repo, err, nil, over)
				}
				if output == "json" {
					return printJSON(c, draft)
				}
				if _, err = fmt.Fprintf(c.OutOrStdout(), "version %d is the draft now, revision %d\n", number, draft.Revision); err != nil {
					return err
				}
				return sayMissing(c, hub, repo)
			})
		},
	}
	repoFlag(c, &repoName)
	baseFlag(c, &base)
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	outputFlag(c, &output)
	return c
}

// sayMissing names the draft's Variables without a value on stderr, and how to give them one.
func sayMissing(c *cobra.Command, hub *client.Client, repo schema.Repo) error {
	all, err := hub.DraftVariables(c.Context(), repo.ID)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.Status != "set" {
			fmt.Fprintf(c.ErrOrStderr(), "%s has no value. %s\n", v.Name, remedy(v, repo))
		}
	}
	return nil
}

// remedy says how to give a Variable without a value one.
func remedy(v schema.Variable, repo schema.Repo) string {
	if v.Kind == "link" {
		return "Enter it where it is kept: claude-hub shared set " + v.Link
	}
	return fmt.Sprintf("Enter it: claude-hub env variable set %s --repo %s", v.Name, repo.Name)
}
