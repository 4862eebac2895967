package web

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/envspec"
)

// How a form says which dependency folders there are.
const (
	foldersDefault = "default"
	foldersNone    = "none"
	foldersOwn     = "own"
)

// fields of the draft's form, in its order; the names are those of the document, but for dependency-folders.
var fields = []struct {
	name, label string
	long        bool
}{
	{"image", "Image", false},
	{"bootstrap", "Bootstrap script", true},
	{"start", "Start script", true},
	{"docker", "Docker", false},
	{"cpu", "CPU", false},
	{"memory", "Memory", false},
	{"folders", "Dependency folders", true},
}

// inputs are the form's inputs: dependency folders are a choice and a list.
var inputs = []string{"image", "bootstrap", "start", "docker", "cpu", "memory", "folders", "patterns"}

// formOf is a Spec as the form shows it.
func formOf(s envspec.Spec) map[string]string {
	v := map[string]string{
		"image": s.Image, "bootstrap": s.Bootstrap, "start": s.Start, "docker": "", "cpu": envspec.FormatCPU(s.CPU), "memory": envspec.FormatMemory(s.Memory),
		"folders": foldersDefault, "patterns": patternsOf(s.DependencyFolders()),
	}
	if s.Docker {
		v["docker"] = "on"
	}
	if s.Folders != nil {
		v["folders"] = foldersOwn
		if len(*s.Folders) == 0 {
			v["folders"] = foldersNone
		}
	}
	return v
}

// said is what a form says in one field, as a person reads it; equal texts are the same choice.
func said(form map[string]string, field string) string {
	switch {
	case field == "docker" && form["docker"] == "":
		return "off"
	case field != "folders":
		return form[field]
	case form["folders"] == foldersOwn:
		return strings.TrimSpace(form["patterns"])
	case form["folders"] == foldersNone:
		return "None."
	}
	return "The defaults."
}

// copyField takes a field over from another form.
func copyField(to, from map[string]string, field string) {
	to[field] = from[field]
	if field == "folders" {
		to["patterns"] = from["patterns"]
	}
}

const besideWord = " beside "

// patternsOf writes dependency folders one a line.
func patternsOf(all []envspec.Folder) string {
	var b strings.Builder
	for _, f := range all {
		b.WriteString(f.Pattern)
		if f.Beside != "" {
			b.WriteString(besideWord + f.Beside)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func foldersOf(text string) []envspec.Folder {
	all := []envspec.Folder{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		f := envspec.Folder{Pattern: line}
		if i := strings.LastIndex(line, besideWord); i > 0 {
			f = envspec.Folder{Pattern: strings.TrimSpace(line[:i]), Beside: strings.TrimSpace(line[i+len(besideWord):])}
		}
		all = append(all, f)
	}
	return all
}

// specOf puts what was typed into the draft that the form was made from, and says field by field what can't be taken: all of
// it at once. What the form doesn't show stays, and what nobody changed stays byte for byte. That the draft was saved
// meanwhile is for Save to find.
func specOf(typed map[string]string, draft envspec.Spec) (envspec.Spec, map[string]string) {
	wrong := map[string]string{}
	s, before := draft, formOf(draft)
	s.Image = typed["image"]
	if s.Bootstrap = kept(draft.Bootstrap, typed["bootstrap"]); s.Bootstrap != draft.Bootstrap {
		s.BootstrapFile = ""
	}
	if s.Start = kept(draft.Start, typed["start"]); s.Start != draft.Start {
		s.StartFile = ""
	}
	s.Docker = typed["docker"] != ""
	if said(typed, "folders") != said(before, "folders") {
		switch typed["folders"] {
		case foldersOwn:
			own := foldersOf(typed["patterns"])
			if s.Folders = &own; len(own) == 0 {
				wrong["folders"] = "Write at least one pattern, or choose none."
			}
		case foldersNone:
			s.Folders = &[]envspec.Folder{}
		default:
			s.Folders = nil
		}
	}
	var err error
	if s.CPU, err = envspec.ParseCPU(typed["cpu"]); err != nil {
		wrong["cpu"] = err.Error()
	}
	if s.Memory, err = envspec.ParseMemory(typed["memory"]); err != nil {
		wrong["memory"] = err.Error()
	}
	for field, message := range problems(envspec.Validate(envspec.Normalize(s))) {
		if _, said := wrong[field]; !said {
			wrong[field] = message
		}
	}
	return s, wrong
}

// problems are what is wrong with the fields of the form; each is said at the input it belongs to.
func problems(all envspec.Problems) map[string]string {
	wrong := map[string]string{}
	for _, p := range all {
		if p.Warning {
			continue
		}
		field, message := p.Path, p.Message
		if strings.HasPrefix(field, "dependency-folders") {
			field = "folders"
		}
		if strings.HasPrefix(field, "variables") {
			continue // they have pages of their own, and Save says it
		}
		if _, said := wrong[field]; !said {
			wrong[field] = message
		}
	}
	return wrong
}

// warnings are what a saved Spec may be meant to say otherwise, but for what unavailable says.
func warnings(s envspec.Spec) (out []string) {
	told := envspec.Unavailable(s)
	for _, p := range envspec.Validate(s) {
		ours := slices.ContainsFunc(told, func(u envspec.Use) bool { return strings.HasPrefix(p.Message, "bootstrap uses $"+u.Name+",") })
		if p.Warning && !ours {
			out = append(out, p.Message)
		}
	}
	return out
}

// UnavailableRow is a Variable that the bootstrap script uses and doesn't receive.
type UnavailableRow struct {
	Name string
	Line int
	Mark string
}

func unavailable(s envspec.Spec) (rows []UnavailableRow) {
	for _, u := range envspec.Unavailable(s) {
		rows = append(rows, UnavailableRow{Name: u.Name, Line: u.Line, Mark: markOf(s, u.Name)})
	}
	return rows
}

// sentence begins with a capital and ends with a full stop: messages about a field are shared with the CLI, where they
// follow the field's place.
func sentence(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	s = string(unicode.ToUpper(r)) + s[n:]
	if rest, ok := strings.CutPrefix(s, "Cpu "); ok { // a key of the document, which begins the messages about it
		s = "CPU " + rest
	}
	if !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, "…") && !strings.HasSuffix(s, "?") {
		s += "."
	}
	return s
}
