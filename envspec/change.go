package envspec

import (
	"fmt"
	"reflect"
	"strings"
)

// Affects says what a change of a field touches (ADR 0009, "Test build").
type Affects string

const (
	// Build: the snapshot. It moves the build key and the test key, so it needs a Test build.
	Build Affects = "build"
	// Test: what a Test build proves, but not the snapshot. It moves the test key only.
	Test Affects = "test"
	// Nothing: neither. It applies straight away.
	Nothing Affects = "neither"
)

// fields is the one table of what a Spec has, but for its Variables: the keys are made from it, and the words for a change.
var fields = []field{
	{name: "image", affects: Build, noun: "image", value: func(s Spec) string { return s.Image }},
	{name: "bootstrap", affects: Build, noun: "bootstrap script", text: true, value: func(s Spec) string { return s.Bootstrap }},
	{name: "bootstrap.file", affects: Nothing, noun: "file of the bootstrap script", empty: "none", value: func(s Spec) string { return s.BootstrapFile }},
	{name: "start", affects: Test, noun: "start script", text: true, value: func(s Spec) string { return s.Start }},
	{name: "start.file", affects: Nothing, noun: "file of the start script", empty: "none", value: func(s Spec) string { return s.StartFile }},
	{name: "docker", affects: Build, noun: "Docker toggle", empty: "off", value: func(s Spec) string {
		if s.Docker {
			return "on"
		}
		return ""
	}},
	{name: "cpu", affects: Nothing, noun: "number of CPUs", empty: "what the Runner gives", value: func(s Spec) string { return FormatCPU(s.CPU) }},
	{name: "memory", affects: Nothing, noun: "memory", empty: "what the Runner gives", value: func(s Spec) string { return FormatMemory(s.Memory) }},
	{name: "dependency-folders", affects: Test, noun: "list of dependency folders", empty: "the defaults", value: folderText},
}

type field struct {
	name    string // as a Problem's and a Change's: the document's key, and what is below it after a dot
	affects Affects
	noun    string
	text    bool   // too long to be shown in a sentence
	empty   string // what stands in a sentence for no value
	value   func(Spec) string
}

// keys are the document's, in its order.
var keys = []string{"image", "bootstrap", "start", "docker", "cpu", "memory", "dependency-folders", "variables"}

var consequences = map[Affects]string{
	Build:   "This needs a passing Test build. Once applied, each Runner makes a new build, and Sessions move to it at their next wake.",
	Test:    "This needs a passing Test build. Builds stay as they are; Sessions run it at their next start or wake.",
	Nothing: "This applies without a Test build; Sessions get it at their next start or wake.",
}

// Change is one field that differs between two Specs.
type Change struct {
	Field    string  `json:"field"`
	Affects  Affects `json:"affects"`
	Sentence string  `json:"sentence"` // what changes and what that means, for a person
}

// Explain says what changes from one Spec to another, in the order of the document; none when they are the same. The
// zero Spec as the old one stands for no Environment: then all that the new one has is listed.
func Explain(old, new Spec) []Change {
	first := reflect.DeepEqual(old, Spec{})
	if !first {
		old = Normalize(old)
	}
	new = Normalize(new)
	var out []Change
	for _, f := range fields {
		a, b := f.value(old), f.value(new)
		if a == b {
			continue
		}
		var what string
		switch {
		case first && f.text:
			what = fmt.Sprintf("The %s is new.", f.noun)
		case first:
			what = fmt.Sprintf("The %s is %s.", f.noun, shorten(b))
		case f.text && a == "":
			what = fmt.Sprintf("The %s is added.", f.noun)
		case f.text && b == "":
			what = fmt.Sprintf("The %s is removed.", f.noun)
		case f.text:
			added, removed := lines(a, b)
			what = fmt.Sprintf("The %s changes (%s added, %s removed).", f.noun, count(added), count(removed))
		default:
			what = fmt.Sprintf("The %s changes from %s to %s.", f.noun, shorten(orEmpty(f, a)), shorten(orEmpty(f, b)))
		}
		out = append(out, Change{Field: f.name, Affects: f.affects, Sentence: what + " " + consequences[f.affects]})
	}
	return append(out, explainVariables(old.Variables, new.Variables)...)
}

// shorten cuts what is too long for a sentence.
func shorten(v string) string {
	const most = 300
	if r := []rune(v); len(r) > most {
		return string(r[:most]) + "…"
	}
	return v
}

func orEmpty(f field, v string) string {
	if v == "" {
		return f.empty
	}
	return v
}

// lines counts the lines that only one of two scripts has, however often they moved.
func lines(old, new string) (added, removed int) {
	n := map[string]int{}
	for l := range strings.Lines(old) {
		n[strings.TrimSuffix(l, "\n")]++
	}
	for l := range strings.Lines(new) {
		if l = strings.TrimSuffix(l, "\n"); n[l] > 0 {
			n[l]--
		} else {
			added++
		}
	}
	for _, left := range n {
		removed += left
	}
	return added, removed
}

func count(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", n)
}
