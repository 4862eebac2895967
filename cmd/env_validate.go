package cmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/envspec/lint"
)

func envValidateCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "validate [FILE]", Short: "Check an environment.yml, without a Hub", Args: cobra.MaximumNArgs(1),
		Long: "Check an Environment's document: " + environmentFile + ` unless a file is named, - for stdin. Scripts that it names as files
are read from the repository that it stands in. Each problem is printed as file:line:column. Where bash is on this host, it is asked for the syntax of the scripts that it would run (bash -n: nothing
is run). With -o github, problems are annotations of a GitHub workflow.`,
		Example: "  claude-hub env validate\n  claude-hub env validate other.yml -o json\n  cat x.yml | claude-hub env validate -",
		RunE: func(c *cobra.Command, args []string) error {
			name, b, err := readDocument(c, args)
			if err != nil {
				return err
			}
			files, done, err := repositoryFiles(name)
			if err != nil {
				return err
			}
			defer done()
			spec, problems := envspec.Check(name, b, files)
			if !problems.Failed() {
				problems = append(problems, lint.Check(c.Context(), name, b, spec)...)
				slices.SortStableFunc(problems, func(a, b envspec.Problem) int {
					return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
				})
			}
			switch output {
			case "json":
				if problems == nil {
					problems = envspec.Problems{}
				}
				if err := printJSON(c, map[string]any{"valid": !problems.Failed(), "problems": problems}); err != nil {
					return err
				}
			case "github":
				for _, p := range problems {
					fmt.Fprintln(c.OutOrStdout(), annotation(p))
				}
			default:
				for _, p := range problems {
					fmt.Fprintln(c.ErrOrStderr(), p)
				}
			}
			if problems.Failed() {
				return exitError{exitFailed}
			}
			if output == "text" {
				fmt.Fprintf(c.OutOrStdout(), "%s is valid: image %s\n", name, spec.Image)
			}
			return nil
		},
	}
	c.Flags().VarP(&oneOf{value: &output, allowed: []string{"text", "json", "github"}}, "output", "o", "text, json or github")
	output = "text"
	return c
}

// annotation is a problem as a command that a GitHub workflow understands, at the line of a pull request's file.
func annotation(p envspec.Problem) string {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	level := "error"
	if p.Warning {
		level = "warning"
	}
	return fmt.Sprintf("::%s file=%s,line=%d,col=%d,title=Environment::%s", level, property.Replace(p.File), p.Line, p.Column, data.Replace(p.Message))
}
