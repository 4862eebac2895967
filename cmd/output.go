package cmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode"

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

// visible is a text that somebody else may have written, as a terminal shows it and does nothing else: of what isn't printed,
// only line breaks and tabs stay.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) || r == '\u200d' || unicode.Is(unicode.Variation_Selector, r) { // the last two join emoji
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// oneLine is visible in a cell of a table.
func oneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(visible(text))
}

// printJSON writes v as the whole of stdout.
func printJSON(c *cobra.Command, v any) error {
	enc := json.NewEncoder(c.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
