package cmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func sessionRunCommand() *cobra.Command {
	var in schema.StartRun
	var limit time.Duration
	var detach, yes bool
	c := &cobra.Command{
		Use: "run SESSION -- COMMAND [ARG…]", Short: "Run a command in a Session that goes on without you", Args: cobra.MinimumNArgs(2),
		Long: `Run a command in a Session's Workspace as a headless run: it belongs to the Session, not to this command, and goes on when this one ends, and
through restarts of Hub and Runner. What it prints, stdout and stderr in one, is kept as a log; its stdin is empty. A Session that sleeps is woken, as session wake does, which asks where that replaces the root filesystem; the run
begins when the start script has ended, and keeps the Session awake. It ends with the Session's Sandbox: by sleep, restart or a crash.

The log comes here until the run ends, and its exit code is this command's, as with session exec; 124 when its time limit was over. Ctrl-C ends the following, not the
run. With --detach the run's id goes to stdout at once.`,
		Example: "  claude-hub session run 1a2b3c4d -- claude -p 'Mend the failing test'\n" +
			"  claude-hub session run 1a2b3c4d --detach --time-limit 1h -- make release",
		RunE: func(c *cobra.Command, args []string) error {
			in.Argv = args[1:]
			if limit != 0 && limit < time.Second {
				return usage(c, errors.New("--time-limit is a second at least"))
			}
			in.TimeLimitMS = limit.Milliseconds()
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				if s.State == asleep {
					if err := agreeToFresh(c, hub, s, "Wake it?", yes); err != nil {
						return err
					}
				}
				r, err := hub.StartRun(c.Context(), s.Repo.ID, s.ID, in)
				if err != nil {
					return err
				}
				if s.State == asleep {
					fmt.Fprintf(c.ErrOrStderr(), "-- the Session is asleep: it is woken first\n")
				}
				if detach {
					_, err := fmt.Fprintln(c.OutOrStdout(), r.ID)
					return err
				}
				fmt.Fprintf(c.ErrOrStderr(), "-- run %s\n", r.ID)
				exit, err := followRun(c, hub, s, r.ID)
				return ended(c, exit, err)
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait for it; print its id")
	c.Flags().BoolVar(&yes, "yes", false, "don't ask, where waking it gives it a fresh root filesystem")
	c.Flags().StringVarP(&in.User, "user", "u", "", "user in the Sandbox; default: the image's")
	c.Flags().StringVarP(&in.Dir, "dir", "C", "", "folder it runs in; default: /workspace")
	c.Flags().DurationVar(&limit, "time-limit", 0, "end it after so long, such as 30m; default: no limit")
	return c
}

// followRun copies a run's log until the run has ended, and says how.
func followRun(c *cobra.Command, hub *client.Client, s schema.Session, run string) (wire.ChannelExit, error) {
	exit, err := runToEnd(c.Context(), c, hub, s, run)
	if c.Context().Err() != nil {
		return exit, fmt.Errorf("stopped following; the run goes on. See: claude-hub session run-log %s %s -f; end it: claude-hub session run-stop %s %s", s.ID, run, s.ID, run)
	}
	return exit, err
}

func runToEnd(ctx context.Context, c *cobra.Command, hub *client.Client, s schema.Session, run string) (exit wire.ChannelExit, err error) {
	if _, err := hub.CopyLog(ctx, client.RunLog(s.Repo.ID, s.ID, run), client.Follow{Live: true, Dropped: sayDropped(c)}, c.OutOrStdout()); err != nil {
		return exit, err
	}
	r, err := hub.WaitRun(ctx, s.Repo.ID, s.ID, run)
	if err != nil {
		return exit, err
	}
	return *r.Exit, nil
}

func sessionRunsCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "runs SESSION", Short: "List a Session's headless runs", Args: cobra.ExactArgs(1), Example: "  claude-hub session runs 1a2b3c4d",
		RunE: func(c *cobra.Command, args []string) error {
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				all, err := hub.Runs(c.Context(), s.Repo.ID, s.ID)
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(c, all)
				}
				rows := make([][]string, 0, len(all))
				for _, r := range all {
					state, code := r.State, ""
					if r.Stopping {
						state = "stopping"
					}
					if r.Exit != nil {
						code = fmt.Sprint(r.Exit.Code)
					}
					rows = append(rows, []string{r.ID, state, code, r.CreatedAt.Format(time.DateTime), r.CreatedBy, oneLine(r.Command)})
				}
				return printTable(c, "ID|STATE|CODE|ASKED FOR|BY|COMMAND", rows)
			})
		},
	}
	outputFlag(c, &output)
	return c
}

// onRun runs f with a run that arguments name: SESSION, and RUN by the start or the end of its id, or “newest”.
func onRun(c *cobra.Command, args []string, f func(hub *client.Client, s schema.Session, run string) error) error {
	return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
		all, err := hub.Runs(c.Context(), s.Repo.ID, s.ID)
		if err != nil {
			return err
		}
		ids := make([]string, 0, len(all))
		for _, r := range slices.Backward(all) {
			ids = append(ids, r.ID)
		}
		id, err := named("run", args[1], ids)
		if err != nil {
			return err
		}
		return f(hub, s, id)
	})
}

func sessionRunLogCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "run-log SESSION RUN", Short: "Print what a headless run printed", Args: cobra.ExactArgs(2),
		Long: `Print what a headless run printed. RUN is its id, the start or the end of it (6 characters at least), or “newest”. With -f more is waited for until
the run ends, and its exit code is this command's.`,
		Example: "  claude-hub session run-log 1a2b3c4d newest -f",
		RunE: func(c *cobra.Command, args []string) error {
			return onRun(c, args, func(hub *client.Client, s schema.Session, run string) error {
				if follow {
					exit, err := followRun(c, hub, s, run)
					return ended(c, exit, err)
				}
				_, err := hub.CopyLog(c.Context(), client.RunLog(s.Repo.ID, s.ID, run), client.Follow{Dropped: sayDropped(c)}, c.OutOrStdout())
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until it ends; Ctrl-C ends the following only")
	return c
}

func sessionRunStopCommand() *cobra.Command {
	var detach bool
	c := &cobra.Command{
		Use: "run-stop SESSION RUN", Short: "End a headless run", Args: cobra.ExactArgs(2),
		Long:    "End a headless run: its process gets SIGTERM, and after ten seconds SIGKILL. RUN is named as for run-log.",
		Example: "  claude-hub session run-stop 1a2b3c4d newest",
		RunE: func(c *cobra.Command, args []string) error {
			return onRun(c, args, func(hub *client.Client, s schema.Session, run string) error {
				if _, err := hub.StopRun(c.Context(), s.Repo.ID, s.ID, run); err != nil {
					return err
				}
				if detach {
					return nil
				}
				r, err := hub.WaitRun(c.Context(), s.Repo.ID, s.ID, run)
				if c.Context().Err() != nil {
					return errors.New("stopped waiting; the run is being ended")
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.ErrOrStderr(), "run %s has ended with code %d\n", r.ID, r.Exit.Code)
				return err
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "don't wait until it has ended")
	return c
}
