package envspec

import (
	"strconv"
	"strings"
)

// Format writes a Spec as the canonical document: keys in their order, scripts as blocks or as the files they were read
// from, Variables by name, nothing that is a default but the image. [Parse] reads the same Spec from it, normalized, given the
// same files; what no document has, ids of values and values that aren't Plain, is not in it.
func Format(s Spec) []byte {
	s = Normalize(s)
	var b strings.Builder
	for _, key := range keys {
		if v := value(s, key); key == "image" || v != value(Default(), key) {
			b.WriteString(key + ":" + v)
		}
	}
	return []byte(b.String())
}

// value is what stands after a key and a colon, to the end of its last line. It has no comments.
func value(s Spec, key string) string {
	switch key {
	case "image":
		return " " + scalar(s.Image) + "\n"
	case "bootstrap":
		return scriptValue(s.Bootstrap, s.BootstrapFile)
	case "start":
		return scriptValue(s.Start, s.StartFile)
	case "docker":
		return " " + strconv.FormatBool(s.Docker) + "\n"
	case "cpu":
		return " " + FormatCPU(s.CPU) + "\n"
	case "memory":
		return " " + FormatMemory(s.Memory) + "\n"
	case "dependency-folders":
		return collection(folderItems(s), "  ", "[]")
	case "variables":
		return collection(variableItems(s), "  ", "{}")
	}
	return "\n"
}

func scriptValue(script, file string) string {
	switch {
	case file != "":
		return " {file: " + scalar(file) + "}\n"
	case script == "":
		return " \"\"\n"
	}
	return " " + block(script, "  ")
}

// collection puts each item on its own lines.
func collection(items []string, indent, none string) string {
	if len(items) == 0 {
		return " " + none + "\n"
	}
	return "\n" + indent + strings.Join(items, indent)
}

// folderItems are the list of a Spec's own patterns, or the default ones when it has none.
func folderItems(s Spec) []string {
	var out []string
	for _, f := range s.DependencyFolders() {
		if f.Beside == "" {
			out = append(out, "- "+scalar(f.Pattern)+"\n")
		} else {
			out = append(out, "- {pattern: "+scalar(f.Pattern)+", beside: "+scalar(f.Beside)+"}\n")
		}
	}
	return out
}

func variableItems(s Spec) []string {
	var out []string
	for _, v := range s.Variables {
		out = append(out, nameKey(v.Name)+":"+variableValue(v))
	}
	return out
}

// nameKey writes a name as a key, in quotes where a reader may take it for something else.
func nameKey(name string) string {
	if words.MatchString(name) || strings.EqualFold(name, "null") {
		return strconv.Quote(name)
	}
	return name
}

func variableValue(v Variable) string {
	var parts []string
	switch {
	case v.Link != "":
		parts = append(parts, "link: "+nameKey(v.Link))
	case v.Sensitive:
		parts = append(parts, "sensitive: true")
	case v.Note == "":
		return " " + text(v.Value, "    ")
	}
	if !v.Plain() && v.Build {
		parts = append(parts, "build: true")
	}
	if v.Note == "" {
		return " {" + strings.Join(parts, ", ") + "}\n"
	}
	var b strings.Builder
	b.WriteByte('\n')
	if v.Plain() {
		b.WriteString("    value: " + text(v.Value, "      "))
	}
	for _, p := range parts {
		b.WriteString("    " + p + "\n")
	}
	b.WriteString("    note: " + text(v.Note, "      "))
	return b.String()
}

// text writes a text of one line or several.
func text(v, indent string) string {
	if strings.Contains(v, "\n") {
		return block(v, indent)
	}
	return scalar(v) + "\n"
}

// block writes a text as a literal block, or in quotes where a block can't hold it.
func block(v, indent string) string {
	if !blockable(v) {
		return strconv.Quote(v) + "\n"
	}
	var b strings.Builder
	b.WriteByte('|')
	// Without the number a reader takes the first line's own indentation for the block's.
	if strings.IndexByte(" \t\n", v[0]) >= 0 {
		b.WriteByte('2')
	}
	body := strings.TrimRight(v, "\n")
	switch len(v) - len(body) {
	case 0:
		b.WriteByte('-')
	case 1:
	default:
		b.WriteByte('+')
	}
	b.WriteByte('\n')
	for l := range strings.Lines(v) {
		if l != "\n" {
			b.WriteString(indent)
		}
		b.WriteString(l)
	}
	if !strings.HasSuffix(v, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

func blockable(v string) bool {
	for _, r := range v {
		switch {
		case r == '\t' || r == '\n':
		case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffd, r == 0xfffe, r == 0xffff:
			return false
		}
	}
	return strings.Trim(v, " \t\n") != ""
}

// scalar writes a short text, in quotes unless it is certain that it needs none.
func scalar(v string) string {
	if v != "" && strings.Trim(v, "abcdefghijklmnopqrstuvwxyz0123456789./:_-@") == "" && strings.IndexByte("abcdefghijklmnopqrstuvwxyz", v[0]) >= 0 &&
		!strings.HasSuffix(v, ":") && !words.MatchString(v) && v != "null" {
		return v
	}
	return strconv.Quote(v)
}
