package cmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func sessionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "session", Short: "Sessions: start, work in, sleep, wake, restart, archive, delete",
		Long: `A Session is a person or Claude Code at work on a branch, in a Sandbox of a Runner. Its Workspace outlives every
Sandbox. Sessions are named by their id, or by the start or the end of it (6 characters at least).`,
		Example: "  claude-hub session start --repo acme/rocket\n  claude-hub session shell 1a2b3c4d\n  claude-hub session exec 1a2b3c4d -- make test",
	}
	c.AddCommand(sessionStartCommand(), sessionListCommand(), sessionShowCommand(), sessionExecCommand(), sessionShellCommand(), sessionCopyCommand(), sessionForwardCommand(), sessionLogsCommand(),
		sessionRunCommand(), sessionRunsCommand(), sessionRunLogCommand(), sessionRunStopCommand(),
		sessionDo("sleep", "Stop the Sandbox; Workspace and disks stay", asleep, (*client.Client).Sleep),
		sessionWakeCommand(), sessionRestartCommand(),
		sessionDo("retry", "Start a failed Session again", running, (*client.Client).Retry),
		sessionArchiveCommand(), sessionRestoreCommand(), sessionGrowCommand(), sessionDeleteCommand())
	return c
}

const (
	running  = "running"
	asleep   = "asleep"
	archived = "archived"
)

// settled tells that a Session is where it was going, or failed. A running one has its start script behind it, so that
// what is run next finds what the script made.
func settled(state string) func(schema.Session) bool {
	return func(s schema.Session) bool {
		there := s.State == state && (state != running || newestPhase(s).State != wire.StateRunning)
		return there || s.State == "failed" || s.Unreachable
	}
}

func newestPhase(s schema.Session) wire.Phase {
	if n := len(s.Detail.Phases); n > 0 {
		return s.Detail.Phases[n-1]
	}
	return wire.Phase{}
}

// waitFor waits until the Session is in state, saying phases on stderr. Those of the boot before are passed over.
func waitFor(c *cobra.Command, hub *client.Client, s schema.Session, state string) (schema.Session, error) {
	shown, asked := newestPhase(s), s
	s, err := hub.WaitSession(c.Context(), s.Repo.ID, s.ID, settled(state), func(s schema.Session) {
		p := newestPhase(s)
		if state == running && p.Name != "" && (p.Name != shown.Name || p.Started != shown.Started) {
			shown = p
			fmt.Fprintf(c.ErrOrStderr(), "-- %s\n", p.Name)
		}
	})
	if c.Context().Err() != nil {
		return asked, fmt.Errorf("stopped waiting; the Session goes on. See: claude-hub session show %s", asked.ID)
	}
	if err != nil {
		return asked, err
	}
	if state == running {
		for _, note := range s.Detail.Notes {
			fmt.Fprintf(c.ErrOrStderr(), "note: %s\n", note)
		}
		if f := s.Detail.StartFailed; f != nil {
			fmt.Fprintf(c.ErrOrStderr(), "started, but the start script failed: %s\nIts log: claude-hub session logs %s\n", f.Message, s.ID)
		}
	}
	switch {
	case s.State == "failed" && s.Detail.Failure != nil:
		return s, fmt.Errorf("the Session failed in phase %s: %s\nIts log: claude-hub session logs %s; try again: claude-hub session retry %s",
			s.Detail.Failure.Phase, s.Detail.Failure.Message, s.ID, s.ID)
	case s.State == "failed":
		return s, fmt.Errorf("the Session failed. Its log: claude-hub session logs %s", s.ID)
	case s.State != state:
		return s, fmt.Errorf("the Runner of the Session does not answer; the Session is %s. Nothing of it is lost", s.State)
	}
	return s, nil
}

func sessionStartCommand() *cobra.Command {
	var repoName, output string
	var in schema.StartSession
	var detach bool
	c := &cobra.Command{
		Use: "start", Short: "Start a Session on a Repo", Args: cobra.NoArgs,
		Long: `Start a Session on a Repo with an applied Environment, and wait until it runs and its start script has ended. Its id
goes to stdout. Ctrl-C ends the waiting, not the Session.`,
		Example: "  claude-hub session start --repo acme/rocket\n  id=$(claude-hub session start --repo acme/rocket --work-branch fix-42)",
		RunE: func(c *cobra.Command, _ []string) error {
			return onRepo(c, repoName, func(hub *client.Client, repo schema.Repo) error {
				s, err := hub.StartSession(c.Context(), repo.ID, in)
				if err != nil {
					return err
				}
				var failed error
				if !detach {
					s, failed = waitFor(c, hub, s, running)
				}
				if output == "json" {
					err = printJSON(c, s)
				} else {
					_, err = fmt.Fprintln(c.OutOrStdout(), s.ID)
				}
				return errors.Join(failed, err)
			})
		},
	}
	repoFlag(c, &repoName)
	c.Flags().StringVar(&in.Runner, "runner", "", "Runner, by name or id; default: the least loaded")
	c.Flags().StringVar(&in.Branch, "branch", "", "branch to clone; default: the default branch")
	c.Flags().StringVar(&in.WorkBranch, "work-branch", "", "branch made in the Workspace; default: claude-hub/<end of the id>")
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it runs")
	outputFlag(c, &output)
	return c
}

func sessionListCommand() *cobra.Command {
	var output string
	var putAway bool
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List Sessions", Args: cobra.NoArgs, Example: "  claude-hub session ls -o json\n  claude-hub session ls --archived",
		Long: "List the Sessions of every Repo that you may use, newest first. Archived ones are apart: --archived lists them.",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			every, err := hub.AllSessions(c.Context())
			if err != nil {
				return err
			}
			all := []schema.Session{}
			for _, s := range every {
				if (s.State == archived) == putAway {
					all = append(all, s)
				}
			}
			if n := len(every) - len(all); n > 0 && !putAway {
				fmt.Fprintf(c.ErrOrStderr(), "%d archived: claude-hub session ls --archived\n", n)
			}
			if output == "json" {
				return printJSON(c, all)
			}
			rows := make([][]string, 0, len(all))
			for _, s := range all {
				state := s.State
				if s.Unreachable {
					state += " (unreachable)"
				}
				rows = append(rows, []string{s.ID, s.Repo.Name, s.WorkBranch, state, fmt.Sprint(s.Version), s.Runner.Name, s.CreatedBy})
			}
			return printTable(c, "ID|REPO|BRANCH|STATE|VERSION|RUNNER|BY", rows)
		},
	}
	outputFlag(c, &output)
	c.Flags().BoolVar(&putAway, "archived", false, "list archived Sessions")
	return c
}

// onSession runs f with a client and the Session that an argument names.
func onSession(c *cobra.Command, id string, f func(hub *client.Client, s schema.Session) error) error {
	hub, err := connect()
	if err != nil {
		return err
	}
	s, err := hub.FindSession(c.Context(), id)
	if err != nil {
		return err
	}
	return f(hub, s)
}

func sessionShowCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "show SESSION", Short: "Show a Session", Args: cobra.ExactArgs(1), Example: "  claude-hub session show 1a2b3c4d",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(_ *client.Client, s schema.Session) error {
				if output == "json" {
					return printJSON(c, s)
				}
				out := c.OutOrStdout()
				fmt.Fprintf(out, "%s on %s, branch %s\n%s on Runner %s, Environment version %d, started by %s on %s\n%s\n",
					s.ID, s.Repo.Name, s.WorkBranch, s.State, s.Runner.Name, s.Version, s.CreatedBy, s.CreatedAt.Format(time.DateTime), s.Unsaved)
				for _, p := range s.Detail.Phases {
					fmt.Fprintf(out, "  %-10s %-8s %s\n", p.Name, p.State, p.Note)
				}
				if len(s.Detail.Stages) > 0 {
					fmt.Fprintf(out, "newest boot: %s\n", wire.BootText(s.Detail.Stages))
				}
				for _, n := range s.Detail.Notes {
					fmt.Fprintf(out, "  %s\n", n)
				}
				if f := s.Detail.StartFailed; f != nil {
					fmt.Fprintf(out, "%s\n%s\n", f.Message, f.LastLines)
				}
				if f := s.Detail.Failure; f != nil {
					fmt.Fprintf(out, "failed in phase %s: %s\n%s\n", f.Phase, f.Message, f.LastLines)
				}
				return nil
			})
		},
	}
	outputFlag(c, &output)
	return c
}

func sessionDo(name, short, state string, ask func(*client.Client, context.Context, int64, string) (schema.Session, error)) *cobra.Command {
	var output string
	var detach bool
	c := &cobra.Command{
		Use: name + " SESSION", Short: short, Args: cobra.ExactArgs(1), Example: "  claude-hub session " + name + " 1a2b3c4d",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				s, err := ask(hub, c.Context(), s.Repo.ID, s.ID)
				if err != nil {
					return err
				}
				return done(c, hub, s, state, detach, output)
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it is done")
	outputFlag(c, &output)
	return c
}

// done waits, unless detached, until a change of the Session is done, and says what it is then.
func done(c *cobra.Command, hub *client.Client, s schema.Session, state string, detach bool, output string) (err error) {
	var failed error
	if !detach {
		s, failed = waitFor(c, hub, s, state)
	}
	if output == "json" {
		err = printJSON(c, s)
	} else if failed == nil {
		_, err = fmt.Fprintf(c.ErrOrStderr(), "%s is %s\n", s.ID, s.State)
	}
	return errors.Join(failed, err)
}

// countLimit is how long a fresh count of unsaved work may take before the last one has to do.
const countLimit = 15 * time.Second

func sessionDeleteCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "rm SESSION", Aliases: []string{"remove", "delete"}, Short: "Delete a Session with its Workspace", Args: cobra.ExactArgs(1),
		Long: `Delete a Session with its Workspace and disks. What was never pushed is gone: uncommitted files and unpushed commits are
counted and named first, and the deletion has to be confirmed by typing yes, or with --yes.`,
		Example: "  claude-hub session rm 1a2b3c4d\n  claude-hub session rm 1a2b3c4d --yes",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				s = counted(c.Context(), hub, s)
				fmt.Fprintf(c.ErrOrStderr(), "%s on %s, branch %s. %s\n", s.ID, s.Repo.Name, s.WorkBranch, s.Unsaved)
				if !yes && !agree(c, "Delete it with its Workspace?") {
					return errors.New("nothing was deleted")
				}
				if err := hub.DeleteSession(c.Context(), s.Repo.ID, s.ID, s.ID); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.ErrOrStderr(), "%s is being deleted\n", s.ID)
				return err
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	return c
}

// counted asks a running Session's Runner to count what is unsaved now.
func counted(ctx context.Context, hub *client.Client, s schema.Session) schema.Session {
	if s.State != running || s.Unreachable {
		return s
	}
	before := int64(0)
	if s.Detail.Unsaved != nil {
		before = s.Detail.Unsaved.At
	}
	if _, err := hub.Count(ctx, s.Repo.ID, s.ID); err != nil {
		return s
	}
	limited, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	fresh, err := hub.WaitSession(limited, s.Repo.ID, s.ID, func(s schema.Session) bool {
		return s.State != running || s.Detail.Unsaved != nil && s.Detail.Unsaved.At > before
	}, nil)
	if err != nil {
		return s
	}
	return fresh
}

func sessionLogsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "logs SESSION", Short: "Print a Session's log: clone, builds, start scripts", Args: cobra.ExactArgs(1),
		Example: "  claude-hub session logs 1a2b3c4d -f",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				_, err := hub.CopyLog(c.Context(), client.SessionLog(s.Repo.ID, s.ID), client.Follow{Live: follow, Dropped: sayDropped(c)}, c.OutOrStdout())
				if follow && c.Context().Err() != nil {
					return nil
				}
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until Ctrl-C")
	return c
}
