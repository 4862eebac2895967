package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func sessionForwardCommand() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use: "port-forward SESSION PORT[:PORT]…", Short: "Bring ports of a Session here", Args: cobra.MinimumNArgs(2),
		Long: `Listen here, and connect who connects to a port of the Sandbox's own loopback: 8080, or 8080:80 for port 80 there; 0 takes a free port here. It
runs until Ctrl-C. A connection that is open keeps the Session awake; listening does not. Sensitive values in what comes are masked, as in all output.`,
		Example: "  claude-hub session port-forward 1a2b3c4d 8080\n  claude-hub session port-forward 1a2b3c4d 5432 8080:80",
		RunE: func(c *cobra.Command, args []string) error {
			var all []forward
			for _, arg := range args[1:] {
				f, err := parseForward(arg)
				if err != nil {
					return usage(c, err)
				}
				all = append(all, f)
			}
			return onSession(c, args[0], func(hub *client.Client, s schema.Session) error {
				ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
				defer stop()
				var serving sync.WaitGroup
				defer serving.Wait()
				defer stop()
				for _, f := range all {
					l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(f.here))))
					if err != nil {
						return err
					}
					fmt.Fprintf(c.OutOrStdout(), "%s -> %d\n", l.Addr(), f.there)
					context.AfterFunc(ctx, func() { l.Close() })
					serving.Go(func() { f.serve(ctx, c, hub, s, l, &serving) })
				}
				<-ctx.Done()
				return nil
			})
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1", "address to listen at")
	return c
}

type forward struct{ here, there uint16 }

func parseForward(arg string) (f forward, err error) {
	here, there, two := strings.Cut(arg, ":")
	if !two {
		there = here
	}
	h, err1 := strconv.ParseUint(here, 10, 16)
	t, err2 := strconv.ParseUint(there, 10, 16)
	if err1 != nil || err2 != nil || t == 0 {
		return f, fmt.Errorf("%q is not PORT or PORT:PORT, with numbers up to 65535", arg)
	}
	return forward{uint16(h), uint16(t)}, nil
}

func (f forward) serve(ctx context.Context, c *cobra.Command, hub *client.Client, s schema.Session, l net.Listener, serving *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed, by the end of this command
		}
		serving.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			var says strings.Builder
			exit, err := hub.Run(ctx, s.Repo.ID, s.ID, wire.ChannelSpec{Port: f.there}, client.Stdio{In: conn, Out: conn, Err: &says})
			switch {
			case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			case err != nil:
				fmt.Fprintf(c.ErrOrStderr(), "claude-hub: %v\n", err)
			case exit.Failed != "":
				fmt.Fprintf(c.ErrOrStderr(), "claude-hub: %s\n", exit.Failed)
			case exit.Code != 0:
				fmt.Fprint(c.ErrOrStderr(), says.String())
			}
		})
	}
}
