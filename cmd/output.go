package cmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// outputFlag adds -o text|json.
func outputFlag(c *cobra.Command, output *string) {
	c.Flags().VarP(&oneOf{value: output, allowed: []string{"text", "json"}}, "output", "o", "text or json")
	*output = "text"
}

// oneOf is a flag that takes one of a few words.
type oneOf struct {
	value   *string
	allowed []string
}

func (f *oneOf) String() string {
	if f.value == nil {
		return ""
	}
	return *f.value
}
func (f *oneOf) Type() string { return strings.Join(f.allowed, "|") }
func (f *oneOf) Set(s string) error {
	for _, a := range f.allowed {
		if s == a {
			*f.value = s
			return nil
		}
	}
	return fmt.Errorf("%q is none of %s", s, strings.Join(f.allowed, ", "))
}

// printTable writes rows under a header in aligned columns.
func printTable(c *cobra.Command, header string, rows [][]string) error {
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(header, "|", "\t"))
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// printJSON writes v as the whole of stdout.
func printJSON(c *cobra.Command, v any) error {
	enc := json.NewEncoder(c.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
