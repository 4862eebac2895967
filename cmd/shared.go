package cmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

func sharedCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "shared", Short: "Shared variables of the Hub: list, create, set, note, rename, delete",
		Long: `Shared variables belong to the Hub and to no Repo: anyone signed in manages them. An Environment gets one by a Link
(claude-hub env variable link). A Sensitive one is write-only once saved.`,
		Example: "  claude-hub shared ls\n  claude-hub shared create SENTRY_DSN --sensitive --value-file dsn.txt\n  claude-hub shared set SENTRY_DSN < dsn.txt",
	}
	c.AddCommand(sharedListCommand(), sharedCreateCommand(), sharedSetCommand(), sharedNoteCommand(), sharedRenameCommand(), sharedRemoveCommand())
	return c
}

func sharedListCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the Shared variables and who links them", Args: cobra.NoArgs,
		Long: `List the Shared variables, with what may be shown of their values and the Repos whose draft or applied version links them.
Repos that you have no access to are only counted.`,
		Example: "  claude-hub shared ls\n  claude-hub shared ls -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := connect()
			if err != nil {
				return err
			}
			all, err := hub.AllShared(c.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, all)
			}
			rows := make([][]string, 0, len(all))
			for _, s := range all {
				v := schema.Variable{Kind: envspec.KindPlain, Value: s.Value, Status: s.Status, Digest: s.Digest}
				if s.Sensitive {
					v.Kind = envspec.KindSensitive
				}
				rows = append(rows, []string{s.Name, v.Kind, shown(v), since(s.SetAt), s.SetBy, linkedBy(s.Users), oneLine(s.Note)})
			}
			return printTable(c, "NAME|KIND|VALUE|CHANGED|BY|LINKED BY|NOTE", rows)
		},
	}
	outputFlag(c, &output)
	return c
}

func linkedBy(u *schema.Users) string {
	if u == nil {
		return ""
	}
	var all []string
	for _, r := range u.Repos {
		all = append(all, r.Name)
	}
	if u.Hidden > 0 {
		all = append(all, fmt.Sprintf("%d more", u.Hidden))
	}
	return strings.Join(all, ", ")
}

// onShared runs f with a client and the Shared variable called name.
func onShared(c *cobra.Command, name string, f func(hub *client.Client, s schema.Shared) error) error {
	if err := checkedName(name); err != nil {
		return err
	}
	hub, err := connect()
	if err != nil {
		return err
	}
	s, err := hub.Shared(c.Context(), name)
	if err != nil {
		return err
	}
	return f(hub, s)
}

func saidOfShared(c *cobra.Command, s schema.Shared, output, what string) error {
	if output == "json" {
		return printJSON(c, s)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%s %s\n", s.Name, what)
	return err
}

func sharedCreateCommand() *cobra.Command {
	var file, note, output string
	var plain, sensitive bool
	c := &cobra.Command{
		Use: "create NAME[=VALUE]", Short: "Make a Shared variable", Args: oneName("NAME[=VALUE]"),
		Long: `Make a Shared variable. Its value comes from --value-file or through a pipe, byte for byte, else from a prompt, without
echo if it is Sensitive; a Plain one's may stand in the argument. The value of a Sensitive one is never taken from the command
line, which every process of the host can read.`,
		Example: "  claude-hub shared create SENTRY_DSN --sensitive --value-file dsn.txt --note \"from ops\"\n  claude-hub shared create MIRROR=https://mirror.example.com --plain",
		RunE: func(c *cobra.Command, args []string) error {
			name, inline := nameValue(args[0])
			switch err := checkedName(name); {
			case err != nil:
				return err
			case plain == sensitive:
				return usageError{errors.New("say --plain (everyone signed in can read it) or --sensitive (nobody can, once it is saved)")}
			case inline != nil && sensitive:
				return onCommandLine(name)
			}
			hub, err := connect()
			if err != nil {
				return err
			}
			value, err := sharedValue(c, name, inline, file, sensitive)
			if err != nil {
				return err
			}
			s, err := hub.CreateShared(c.Context(), schema.CreateShared{Name: name, Note: note, Sensitive: sensitive, Value: schema.ValueOf(value)})
			if err != nil {
				return err
			}
			return saidOfShared(c, s, output, "is made. A Repo gets it by a Link: claude-hub env variable link "+s.Name)
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "its value can be read")
	c.Flags().BoolVar(&sensitive, "sensitive", false, "its value is encrypted, write-only and redacted")
	c.Flags().StringVar(&note, "note", "", "what it is for")
	valueFileFlag(c, &file)
	outputFlag(c, &output)
	return c
}

func sharedValue(c *cobra.Command, name string, inline *string, file string, sensitive bool) ([]byte, error) {
	switch {
	case inline != nil && file != "":
		return nil, usageError{errors.New("the value is given twice, as an argument and by --value-file")}
	case inline != nil:
		return []byte(*inline), nil
	}
	return readValue(c, name, file, sensitive)
}

func sharedSetCommand() *cobra.Command {
	var file, output string
	var plain, sensitive bool
	c := &cobra.Command{
		Use: "set NAME[=VALUE]", Short: "Give a Shared variable a new value", Args: oneName("NAME[=VALUE]"),
		Long: `Give a Shared variable a new value, and with --plain or --sensitive another kind. What that means for the Environments that
link it is said. The value comes as for shared create.`,
		Example: "  claude-hub shared set SENTRY_DSN --value-file dsn.txt\n  claude-hub shared set MIRROR=https://mirror.example.org",
		RunE: func(c *cobra.Command, args []string) error {
			name, inline := nameValue(args[0])
			switch {
			case plain && sensitive:
				return usageError{errors.New("a Shared variable is either --plain or --sensitive")}
			case inline != nil && sensitive:
				return onCommandLine(name)
			}
			return onShared(c, name, func(hub *client.Client, s schema.Shared) error {
				kept := s.Sensitive && !plain || sensitive
				if inline != nil && kept {
					return onCommandLine(name)
				}
				value, err := sharedValue(c, name, inline, file, kept)
				if err != nil {
					return err
				}
				after, err := hub.SetShared(c.Context(), name, schema.SetShared{Revision: s.Revision, Sensitive: kept, Value: schema.ValueOf(value)})
				if err != nil {
					return err
				}
				what := "has its new value. " + s.Consequence
				if s.Status == "lost" && kept {
					what = "has a value again, in place of the one that was lost: it applies at once, also at build"
				}
				return saidOfShared(c, after, output, what)
			})
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "from now on its value can be read")
	c.Flags().BoolVar(&sensitive, "sensitive", false, "from now on its value is encrypted, write-only and redacted")
	valueFileFlag(c, &file)
	outputFlag(c, &output)
	return c
}

func sharedNoteCommand() *cobra.Command {
	return besideTheValue(&cobra.Command{
		Use: "note NAME NOTE", Short: "Say what a Shared variable is for",
		Long:    "Change the note of a Shared variable, and nothing of its value. An empty one takes the note away.",
		Example: "  claude-hub shared note SENTRY_DSN \"project web, from ops\"",
	}, "has its new note", func(c *cobra.Command, hub *client.Client, s schema.Shared, note string) (schema.Shared, error) {
		return hub.NoteShared(c.Context(), s.Name, schema.NoteShared{Revision: s.Revision, Note: note})
	})
}

func sharedRenameCommand() *cobra.Command {
	return besideTheValue(&cobra.Command{
		Use: "rename NAME NEW", Short: "Give a Shared variable another name",
		Long:    "Give a Shared variable another name, and nothing of its value. It is refused while a draft or an applied version links it.",
		Example: "  claude-hub shared rename SENTRY_DSN SENTRY_DSN_WEB",
		PreRunE: func(_ *cobra.Command, args []string) error { return checkedName(args[1]) },
	}, "is its name now", func(c *cobra.Command, hub *client.Client, s schema.Shared, name string) (schema.Shared, error) {
		return hub.RenameShared(c.Context(), s.Name, schema.RenameShared{Revision: s.Revision, Name: name})
	})
}

// besideTheValue completes a command that changes something of the Shared variable of its first argument to its second, and then
// says what it is now.
func besideTheValue(c *cobra.Command, now string, change func(c *cobra.Command, hub *client.Client, s schema.Shared, to string) (schema.Shared, error)) *cobra.Command {
	var output string
	c.Args = cobra.ExactArgs(2)
	c.RunE = func(c *cobra.Command, args []string) error {
		return onShared(c, args[0], func(hub *client.Client, s schema.Shared) error {
			after, err := change(c, hub, s, args[1])
			if err != nil {
				return err
			}
			return saidOfShared(c, after, output, now)
		})
	}
	outputFlag(c, &output)
	return c
}

func sharedRemoveCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "rm NAME", Aliases: []string{"remove"}, Short: "Delete a Shared variable with its value", Args: cobra.ExactArgs(1),
		Long:    "Delete a Shared variable with its value, for good. It asks first. It is refused while a draft or an applied version links it.",
		Example: "  claude-hub shared rm SENTRY_DSN --yes",
		RunE: func(c *cobra.Command, args []string) error {
			return onShared(c, args[0], func(hub *client.Client, s schema.Shared) error {
				if !yes && !agree(c, fmt.Sprintf("Delete the Shared variable %s with its value for good?", s.Name)) {
					return errors.New("nothing was deleted")
				}
				if err := hub.DeleteShared(c.Context(), s.Name, s.Revision); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s is deleted\n", s.Name)
				return err
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	return c
}
