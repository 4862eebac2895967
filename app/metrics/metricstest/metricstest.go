// Package metricstest reads what package metrics shows, as strictly as Prometheus's text format is described.
package metricstest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	comment = regexp.MustCompile(`^# (HELP|TYPE) ([a-z_][a-z0-9_]*) (.+)$`)
	sample  = regexp.MustCompile(`^([a-z_][a-z0-9_]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)+\})? (\S+)$`)
	label   = regexp.MustCompile(`([a-z_]+)="`)
)

// allowed labels: none of a Repo or a person.
var allowed = strings.Fields("class status outcome operation quantile installation version name")

// Read returns each sample's value by its name with labels, and fails the test for what is no such text, a family without
// help and type, a family in two places, a sample twice, and a label that could name a Repo or a person.
func Read(t testing.TB, text string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	types := map[string]string{}
	family, helped := "", ""
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if c := comment.FindStringSubmatch(line); c != nil {
			if c[1] == "HELP" {
				helped = c[2]
				continue
			}
			if types[c[2]] != "" || helped != c[2] || !slices.Contains([]string{"counter", "gauge", "summary"}, c[3]) {
				t.Errorf("metrics: %q is a family twice, without help, or of an unknown type", line)
			}
			family, types[c[2]] = c[2], c[3]
			continue
		}
		s := sample.FindStringSubmatch(line)
		if s == nil {
			t.Errorf("metrics: %q is no sample", line)
			continue
		}
		name := s[1]
		if types[family] == "summary" {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
		}
		value, err := strconv.ParseFloat(s[3], 64)
		if _, twice := all[s[1]+s[2]]; twice || name != family || err != nil {
			t.Errorf("metrics: %q is there twice, not below its family, or no number", line)
		}
		if types[family] == "counter" && !strings.HasSuffix(family, "_total") {
			t.Errorf("metrics: the counter %s doesn't end in _total", family)
		}
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(allowed, l[1]) {
				t.Errorf("metrics: %q has the label %s", line, l[1])
			}
		}
		all[s[1]+s[2]] = value
	}
	return all
}

// Families are the names that have a type, of a text that Read takes.
func Families(text string) []string {
	var all []string
	for _, line := range strings.Split(text, "\n") {
		if c := comment.FindStringSubmatch(line); c != nil && c[1] == "TYPE" {
			all = append(all, c[2])
		}
	}
	return all
}
