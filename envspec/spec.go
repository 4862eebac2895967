// Package envspec is the Environment as a document (ADR 0009): what .claude-hub/environment.yml and the web's form hold,
// its defaults, what is wrong with one and where, what a change affects, and the two keys that builds and Test builds
// go by.
//
// The document, with every key there is:
//
//	image: node:22-bookworm   # any OCI image; left out: buildpack-deps:bookworm
//	bootstrap: |              # installs tools, as root, without the Workspace; left out: skipped
//	  npm install -g pnpm
//	start:                    # runs in each new Sandbox, in the Workspace; left out: skipped
//	  file: scripts/start.sh  # either script may be a file of the repository, from its root
//	docker: true              # left out: false
//	cpu: 2                    # CPUs, at most two decimals; left out: what the Runner gives
//	memory: 4GiB              # KiB, MiB, GiB or TiB, in whole MiB; left out: what the Runner gives
//	dependency-folders:       # left out: DefaultFolders; []: none
//	  - "**/_build"
//	  - {pattern: "**/node_modules", beside: package.json}
//	variables:                # left out: none
//	  NODE_ENV: production    # Plain: always reaches the bootstrap
//	  NPM_TOKEN: {sensitive: true, build: true}  # its value is in the Hub; build: the bootstrap receives it, too
//	  SENTRY_DSN:
//	    link: SENTRY_DSN      # the Shared variable that it is
//	    note: from the ops team
//	  VERSION: {value: "3.10"}  # the long form of a Plain one
//
// A Runner that gives less CPU or memory than asked cuts them to its limit and says so ([Limits]).
package envspec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DefaultImage is the image of an Environment that names none (ADR 0009: Debian with the usual build tools).
const DefaultImage = "buildpack-deps:bookworm"

// What a document may hold at most, in bytes.
const (
	MaxDocument = 1 << 20
	MaxScript   = 256 << 10
	MaxImage    = 512
)

const (
	minMemory = 64 << 20
	maxMemory = 64 << 40
	maxCPU    = 1024
)

// Spec is the whole recipe. Its JSON is how it is stored and sent; its YAML is read by [Parse] and written by [Format].
type Spec struct {
	Image         string     `json:"image"`
	Bootstrap     string     `json:"bootstrap,omitempty"`      // a script; empty: the phase is skipped
	BootstrapFile string     `json:"bootstrap_file,omitempty"` // the file of the repository it was read from; empty: written inline
	Start         string     `json:"start,omitempty"`          // as Bootstrap
	StartFile     string     `json:"start_file,omitempty"`     // as BootstrapFile
	Docker        bool       `json:"docker,omitempty"`
	CPU           float64    `json:"cpu,omitempty"`                // CPUs, at most two decimals; 0: what the Runner gives
	Memory        int64      `json:"memory,omitempty"`             // bytes, whole MiB; 0: what the Runner gives
	Folders       *[]Folder  `json:"dependency_folders,omitempty"` // nil: DefaultFolders; empty: none
	Variables     []Variable `json:"variables,omitempty"`          // by name, each name once
}

// Default is what an empty document says.
func Default() Spec { return Spec{Image: DefaultImage} }

// Normalize brings what a person typed into a form, or a program sent, to the form that is stored: scripts and notes with LF
// (browsers send CRLF, facts/recipes.md B4) and without a byte order mark, a script of white space only as none, the
// image without surrounding white space and never empty, dependency folders that are the defaults as nil, Variables by name.
// Values of Variables stay what they are, byte for byte. Normalizing twice changes nothing more, and s is left as it is.
func Normalize(s Spec) Spec {
	s.Image = strings.TrimSpace(s.Image)
	if s.Image == "" {
		s.Image = DefaultImage
	}
	s.Bootstrap, s.Start = script(s.Bootstrap), script(s.Start)
	s.Folders, s.Variables = normalizeFolders(s.Folders), normalizeVariables(s.Variables)
	return s
}

func script(v string) string {
	v = lineFeeds(strings.TrimLeft(v, "\ufeff"))
	if strings.TrimSpace(v) == "" {
		return ""
	}
	return v
}

// lineFeeds ends lines with LF, however often they ended with CR before.
func lineFeeds(v string) string {
	for strings.Contains(v, "\r\n") {
		v = strings.ReplaceAll(v, "\r\n", "\n")
	}
	return v
}

// Limits is what one Runner gives a Sandbox at most. 0 is no limit.
type Limits struct {
	Runner string // its name, for the sentences
	CPU    float64
	Memory int64
}

// Cut returns s with CPU and memory as the Runner gives them, and a sentence for each that is less than asked. What s
// leaves open becomes the limit.
func (l Limits) Cut(s Spec) (Spec, []string) {
	var notes []string
	if l.CPU > 0 && (s.CPU == 0 || s.CPU > l.CPU) {
		if s.CPU > 0 {
			notes = append(notes, fmt.Sprintf("asked %s, runner %s gives %s", CPUs(s.CPU), l.Runner, FormatCPU(l.CPU)))
		}
		s.CPU = l.CPU
	}
	if l.Memory > 0 && (s.Memory == 0 || s.Memory > l.Memory) {
		if s.Memory > 0 {
			notes = append(notes, fmt.Sprintf("asked %s of memory, runner %s gives %s",
				roundMemory(s.Memory), l.Runner, roundMemory(l.Memory)))
		}
		s.Memory = l.Memory
	}
	return s, notes
}

// CPUs says a number of CPUs in a sentence.
func CPUs(c float64) string {
	if c == 1 {
		return "1 CPU"
	}
	return FormatCPU(c) + " CPUs"
}

// FormatCPU writes a number of CPUs as a document has it, "" for 0.
func FormatCPU(c float64) string {
	if c == 0 {
		return ""
	}
	return strconv.FormatFloat(c, 'f', -1, 64)
}

// ParseCPU reads a number of CPUs as a document or a form has it; "" is 0. Its errors are sentences about "cpu".
func ParseCPU(v string) (float64, error) {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0, nil
	}
	whole, decimals, _ := strings.Cut(v, ".")
	if !digits(whole) || strings.Contains(v, ".") && !digits(decimals) {
		return 0, fmt.Errorf("cpu is a number of CPUs such as 2 or 0.5, not %s", quote(v))
	}
	if len(whole) > 1 && whole[0] == '0' {
		return 0, fmt.Errorf("cpu %s begins with a 0: write %s", quote(v), quote(strings.TrimLeft(v, "0")))
	}
	c, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return 0, fmt.Errorf("cpu %s is too large: at most %d", quote(v), maxCPU)
	}
	if c == 0 {
		return 0, fmt.Errorf("cpu is more than 0; leave it out to get what the Runner gives")
	}
	return c, checkCPU(c)
}

func checkCPU(c float64) error {
	switch {
	case math.IsNaN(c) || c <= 0:
		return fmt.Errorf("cpu is more than 0; leave it out to get what the Runner gives")
	case c > maxCPU:
		return fmt.Errorf("cpu is at most %d", maxCPU)
	case math.Abs(c*100-math.Round(c*100)) > 1e-6:
		return fmt.Errorf("cpu has at most two decimals, as in 0.25")
	case c < 0.01:
		return fmt.Errorf("cpu is at least 0.01")
	}
	return nil
}

var units = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// FormatMemory writes bytes in the largest unit that gives a whole number, "" for 0.
func FormatMemory(b int64) string {
	if b == 0 {
		return ""
	}
	for _, u := range units {
		if b%u.bytes == 0 {
			return strconv.FormatInt(b/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(b, 10) + "B"
}

// roundMemory is FormatMemory for a sentence: where that has more than four digits it is rounded, as 18513063KiB is to
// 17.7GiB.
func roundMemory(b int64) string {
	for _, u := range units {
		if b >= u.bytes && len(FormatMemory(b)) > len("9999KiB") {
			return strconv.FormatFloat(float64(b)/float64(u.bytes), 'f', 1, 64) + u.name
		}
	}
	return FormatMemory(b)
}

// ParseMemory reads an amount of memory as a document or a form has it ("4GiB", "1.5 GiB", "4096MiB"); "" is 0. Its
// errors are sentences about "memory".
func ParseMemory(v string) (int64, error) {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0, nil
	}
	end := strings.IndexFunc(v, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return 0, fmt.Errorf("memory %s has no unit: write %s or %s", quote(v), quote(v+"MiB"), quote(v+"GiB"))
	}
	number, unit := v[:end], strings.TrimSpace(v[end:])
	whole, decimals, point := strings.Cut(number, ".")
	if !digits(whole) || point && !digits(decimals) {
		return 0, fmt.Errorf("memory is an amount such as 4GiB or 512MiB, not %s", quote(v))
	}
	var size int64
	for _, u := range units {
		switch {
		case unit == u.name:
			size = u.bytes
		case strings.EqualFold(unit, u.name), strings.EqualFold(unit, u.name[:1]), strings.EqualFold(unit, u.name[:2]),
			strings.EqualFold(unit, u.name[:1]+"B"):
			return 0, fmt.Errorf("memory %s has a unit that is not known: write %s", quote(v), quote(number+u.name))
		}
	}
	if size == 0 {
		return 0, fmt.Errorf("memory %s has a unit that is not known: KiB, MiB, GiB and TiB are", quote(v))
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n*float64(size) > maxMemory {
		return 0, fmt.Errorf("memory is at most %s", FormatMemory(maxMemory))
	}
	b := int64(math.Round(n * float64(size)))
	return b, checkMemory(b)
}

func checkMemory(b int64) error {
	switch {
	case b < minMemory:
		return fmt.Errorf("memory is at least %s", FormatMemory(minMemory))
	case b > maxMemory:
		return fmt.Errorf("memory is at most %s", FormatMemory(maxMemory))
	case b%(1<<20) != 0:
		return fmt.Errorf("memory is counted in whole MiB")
	}
	return nil
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// quote shows what a person wrote, cut to a length that fits into a sentence.
func quote(v string) string {
	const most = 60
	if r := []rune(v); len(r) > most {
		v = string(r[:most]) + "…"
	}
	return strconv.Quote(v)
}
