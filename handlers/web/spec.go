package web

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/envspec"
)

// fields of the draft's form, in its order; the names are those of the document.
var fields = []struct {
	name, label string
	script      bool
}{
	{"image", "Image", false},
	{"bootstrap", "Bootstrap script", true},
	{"start", "Start script", true},
	{"cpu", "CPU", false},
	{"memory", "Memory", false},
}

func fieldNames() []string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}

// formOf is a Spec as the form shows it.
func formOf(s envspec.Spec) map[string]string {
	return map[string]string{
		"image": s.Image, "bootstrap": s.Bootstrap, "start": s.Start, "cpu": envspec.FormatCPU(s.CPU), "memory": envspec.FormatMemory(s.Memory),
	}
}

// specOf reads what was typed, and says field by field what can't be taken: all of it at once.
func specOf(typed map[string]string) (envspec.Spec, map[string]string) {
	wrong := map[string]string{}
	s := envspec.Spec{Image: typed["image"], Bootstrap: typed["bootstrap"], Start: typed["start"]}
	var err error
	if s.CPU, err = envspec.ParseCPU(typed["cpu"]); err != nil {
		wrong["cpu"] = err.Error()
	}
	if s.Memory, err = envspec.ParseMemory(typed["memory"]); err != nil {
		wrong["memory"] = err.Error()
	}
	if len(wrong) > 0 {
		s.CPU, s.Memory = 0, 0
		for _, p := range envspec.Validate(envspec.Normalize(s)) {
			if _, said := wrong[p.Path]; !said && !p.Warning {
				wrong[p.Path] = p.Message
			}
		}
	}
	return s, wrong
}

// warnings are what a saved Spec may be meant to say otherwise.
func warnings(s envspec.Spec) (out []string) {
	for _, p := range envspec.Validate(s) {
		if p.Warning {
			out = append(out, p.Message)
		}
	}
	return out
}

// sentence begins with a capital and ends with a full stop: messages about a field are shared with the CLI, where they
// follow the field's place.
func sentence(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	s = string(unicode.ToUpper(r)) + s[n:]
	if !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, "…") {
		s += "."
	}
	return s
}

// unix gives text the newlines it has everywhere but in a browser's form.
func unix(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
