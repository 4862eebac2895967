package envspec

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseReadsADocument(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Spec{
		"":                             {Image: DefaultImage},
		"# only a comment\n":           {Image: DefaultImage},
		"---\n":                        {Image: DefaultImage},
		"{}\n":                         {Image: DefaultImage},
		"\ufeffimage: node:22\n":       {Image: "node:22"},
		"image: node:22\r\ncpu: 2\r\n": {Image: "node:22", CPU: 2},
		"image: 'ghcr.io/o/n@sha256:" + strings.Repeat("ab", 32) + "'\nbootstrap: |\n  apt-get update\n  echo \"$X\"\nstart: npm ci\ncpu: 1.5\nmemory: 4GiB\n": {
			Image: "ghcr.io/o/n@sha256:" + strings.Repeat("ab", 32), Bootstrap: "apt-get update\necho \"$X\"\n", Start: "npm ci", CPU: 1.5, Memory: 4 << 30},
		"memory: 1.5 GiB\n":                        {Image: DefaultImage, Memory: 1536 << 20},
		"memory: 4096MiB":                          {Image: DefaultImage, Memory: 4 << 30},
		"memory: \"512MiB\"":                       {Image: DefaultImage, Memory: 512 << 20},
		"start: \"\"\nbootstrap: \"  \\n\"\n":      {Image: DefaultImage},
		"bootstrap: \"a\\r\\nb\\r\\n\"\n":          {Image: DefaultImage, Bootstrap: "a\nb\n"},
		"bootstrap: |\r\n  a\r\n  b\r\n":           {Image: DefaultImage, Bootstrap: "a\nb\n"},
		"start: !!str 3.10\n":                      {Image: DefaultImage, Start: "3.10"},
		"start: \"on\"\nbootstrap: |\n  true\n":    {Image: DefaultImage, Start: "on", Bootstrap: "true\n"},
		"start: |\n  echo 日本 héllo 🙂\n":            {Image: DefaultImage, Start: "echo 日本 héllo 🙂\n"},
		"image: localhost:5000/a/b:c\ncpu: 0.01\n": {Image: "localhost:5000/a/b:c", CPU: 0.01},
	} {
		got, err := Parse("environment.yml", []byte(in), nil)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"image: 3.10\n":              `e.yml:1:8: image is a text, and 3.10 is a number in YAML: write it in quotes, "3.10"`,
		"start: on\n":                `e.yml:1:8: start is a text, and on is true or false in YAML: write it in quotes, "on"`,
		"start: true\n":              `e.yml:1:8: start is a text, and true is true or false in YAML: write it in quotes, "true"`,
		"bootstrap: 0123\n":          `e.yml:1:12: bootstrap is a text, and 0123 is a number in YAML: write it in quotes, "0123"`,
		"start: 2026-11-30\n":        `e.yml:1:8: start is a text, and 2026-11-30 is a date in YAML: write it in quotes, "2026-11-30"`,
		"start: ~\n":                 `e.yml:1:8: start says ~, which is nothing in YAML: give it a value or leave the line out`,
		"start:\ncpu: 1\n":           `e.yml:1:7: start says nothing: give it a value or leave the line out`,
		"start: !!binary aGk=\n":     `e.yml:1:8: start has the tag binary, which is not supported`,
		"start: !mine x\n":           `e.yml:1:8: start has the tag mine, which is not supported`,
		"image: \"\"\n":              `e.yml:1:8: image is empty: leave the line out to get buildpack-deps:bookworm`,
		"image: [a]\n":               `e.yml:1:8: image is a list: it should be a text`,
		"bootstrap:\n  file: x.sh\n": `e.yml:2:9: bootstrap names the file "x.sh": a file can only be named in a document of a repository; write the script here`,
		"image: \"a b\"\n":           `e.yml:1:8: image "a b" has a space or line break in it`,
		"image: https://ghcr.io/a/b": `e.yml:1:8: image "https://ghcr.io/a/b" is a URL: write it without "https://", as in "ghcr.io/a/b"`,
		"image: Node:22":             `e.yml:1:8: image "Node:22" has capital letters: write "node:22"`,
		"image: a:b:c":               `e.yml:1:8: image "a:b:c" is no image reference: one is written as in node:22, ghcr.io/owner/name:tag or name@sha256:…`,
		"imgae: x\n":                 `e.yml:1:1: imgae is no key of an Environment: did you mean image?`,
		"Image: x\n":                 `e.yml:1:1: Image is no key of an Environment: did you mean image?`,
		"setup: x\n":                 `e.yml:1:1: setup is no key of an Environment: did you mean bootstrap?`,
		"cpus: 2\n":                  `e.yml:1:1: cpus is no key of an Environment: did you mean cpu?`,
		"tools: x\n":                 `e.yml:1:1: tools is no key of an Environment: there are image, bootstrap, start, docker, cpu, memory, dependency-folders and variables`,
		"\"a b\": x\n":               `e.yml:1:1: "a b" is no key of an Environment: there are image, bootstrap, start, docker, cpu, memory, dependency-folders and variables`,
		"cpu: 1\n\ncpu: 2\n":         `e.yml:3:1: cpu stands here a second time, the first is in line 1`,
		"[a]: 1\n":                   `e.yml:1:1: a key is a list: it should be one of image, bootstrap, start, docker, cpu, memory, dependency-folders and variables`,
		"- a\n":                      `e.yml:1:1: the document is a list: it should be keys and values, such as image: buildpack-deps:bookworm`,
		"hello\n":                    `e.yml:1:1: the document is a single value: it should be keys and values, such as image: buildpack-deps:bookworm`,
		"cpu: 1\n---\ncpu: 2\n":      `e.yml:2:1: there is a second document after ---: one Environment is one document`,
		"cpu: \"2\"\n":               `e.yml:1:6: cpu is a number: write it without quotes`,
		"cpu: two\n":                 `e.yml:1:6: cpu is a value such as 2 or 0.5, not "two"`,
		"cpu: 02\n":                  `e.yml:1:6: cpu "02" begins with a 0: write "2"`,
		"cpu: 0\n":                   `e.yml:1:6: cpu is more than 0; leave it out to get what the Runner gives`,
		"cpu: 0.00\n":                `e.yml:1:6: cpu is more than 0; leave it out to get what the Runner gives`,
		"cpu: -1\n":                  `e.yml:1:6: cpu is a number of CPUs such as 2 or 0.5, not "-1"`,
		"cpu: .inf\n":                `e.yml:1:6: cpu is a number of CPUs such as 2 or 0.5, not ".inf"`,
		"cpu: 1e3\n":                 `e.yml:1:6: cpu is a number of CPUs such as 2 or 0.5, not "1e3"`,
		"cpu: 0.125\n":               `e.yml:1:6: cpu has at most two decimals, as in 0.25`,
		"cpu: 5000\n":                `e.yml:1:6: cpu is at most 1024`,
		"memory: 4\n":                `e.yml:1:9: memory "4" has no unit: write "4MiB" or "4GiB"`,
		"memory: 4GB\n":              `e.yml:1:9: memory "4GB" has a unit that is not known: write "4GiB"`,
		"memory: 512m\n":             `e.yml:1:9: memory "512m" has a unit that is not known: write "512MiB"`,
		"memory: 4Gi\n":              `e.yml:1:9: memory "4Gi" has a unit that is not known: write "4GiB"`,
		"memory: 4 potatoes\n":       `e.yml:1:9: memory "4 potatoes" has a unit that is not known: KiB, MiB, GiB and TiB are`,
		"memory: lots\n":             `e.yml:1:9: memory is an amount such as 4GiB or 512MiB, not "lots"`,
		"memory: 63MiB\n":            `e.yml:1:9: memory is at least 64MiB`,
		"memory: 100TiB\n":           `e.yml:1:9: memory is at most 64TiB`,
		"memory: 100000KiB\n":        `e.yml:1:9: memory is counted in whole MiB`,
		"memory: true\n":             `e.yml:1:9: memory is a value such as 4GiB, not "true"`,
		"start: &a x\n":              `e.yml:1:8: the anchor &a is not supported: write the value out where it is needed`,
		"start: &a x\nbootstrap: *a\n": "e.yml:1:8: the anchor &a is not supported: write the value out where it is needed\n" +
			"e.yml:2:12: the alias *a is not supported: write the value out",
		"<<: {cpu: 1}\n":       `e.yml:1:1: merging with << is not supported: write the keys out`,
		"start: \"a\\0b\"\n":   `e.yml:1:8: start has a NUL byte in it, which no shell reads`,
		"start: |\n\techo\n":   `e.yml:2:1: this line is indented with a tab: YAML takes only spaces`,
		"image: a\n  cpu: 1\n": `e.yml:2:1: this is not YAML: mapping values are not allowed in this context`,
		"start: caf\xe9\n":     `e.yml:1:11: the document is not UTF-8 here: save it as UTF-8`,
		"start: a\n\x1bb: 1\n": `e.yml:2:1: there is a control character (U+001B) here, which YAML doesn't allow: in quotes, "\u001b" stands for it`,
		"imgae: x\ncpu: x\nmemory: 1\n": "e.yml:1:1: imgae is no key of an Environment: did you mean image?\n" +
			"e.yml:2:6: cpu is a value such as 2 or 0.5, not \"x\"\n" +
			"e.yml:3:9: memory \"1\" has no unit: write \"1MiB\" or \"1GiB\"",
		"start: |\n" + strings.Repeat("  echo 0123456789\n", 20000): `e.yml:1:8: start is 312 KiB long: at most 256 KiB; put what is longer into the image or the repository`,
		strings.Repeat("# comment\n", 200_000):                      `e.yml:1:1: the document is 1953 KiB long: at most 1024 KiB`,
	} {
		_, err := Parse("e.yml", []byte(in), nil)
		var p Problems
		if !errors.As(err, &p) || !p.Failed() {
			t.Errorf("%.60q: %v, want Problems", in, err)
			continue
		}
		if got := p.Error(); got != want {
			t.Errorf("%.60q:\ngot  %s\nwant %s", in, got, want)
		}
	}
}

func TestWarningsDoNotFailADocument(t *testing.T) {
	t.Parallel()
	in := "bootstrap: \"a\\rb\"\nstart: \"\\n#!/bin/sh\\n\"\n"
	s, p := Check("e.yml", []byte(in), nil)
	want := "e.yml:1:12: warning: bootstrap has carriage returns in it, which shells take for part of a word: use LF line endings\n" +
		"e.yml:2:8: warning: start has its #! line not at the very beginning, where it counts"
	if p.Failed() || p.Error() != want || s.Bootstrap != "a\rb" {
		t.Errorf("got %+v and\n%s", s, p)
	}
	if got, err := Parse("e.yml", []byte(in), nil); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("Parse: %+v, %v", got, err)
	}
}

func TestProblemsOfAHugeBadDocumentAreCut(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 500 {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	_, p := Check("e.yml", []byte(b.String()), nil)
	if len(p) != maxProblems+1 || p[maxProblems].Message != "450 more problems are not shown" || !p.Failed() {
		t.Errorf("%d problems, the last: %v", len(p), p[len(p)-1])
	}
}

func TestHostileDocumentsAreAnsweredSoon(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 9), ","))
	}
	for name, in := range map[string]string{
		"aliases":            bomb,
		"brackets":           strings.Repeat("[", MaxDocument),
		"braces":             strings.Repeat("{a: ", MaxDocument/4),
		"dashes":             strings.Repeat("- ", MaxDocument/2),
		"keys":               strings.Repeat("a: 1\n", MaxDocument/5),
		"one line":           "start: \"" + strings.Repeat("x", MaxDocument-10) + "\"",
		"quotes":             strings.Repeat("\"\" ", MaxDocument/3),
		"anchors":            strings.Repeat("&", MaxDocument),
		"one variable often": "variables:\n" + strings.Repeat(" A: b\n", MaxDocument/6-10),
		"many variables":     numbered("variables:\n", " A%d: b\n"),
		"many wrong names":   numbered("variables:\n", " %d: b\n"),
		"many keys":          numbered("", "a%d: b\n"),
		"many keys of one":   numbered("variables:\n A:\n", "  a%d: b\n"),
		"nested variables":   "variables: " + strings.Repeat("{A: ", MaxDocument/4-10),
		"nested groups":      nested("variables:\n", "A:\n"),
		"nested folders":     "dependency-folders: " + strings.Repeat("[", MaxDocument/2-10) + strings.Repeat("]", MaxDocument/2-11),
		"many folders":       "dependency-folders:\n" + strings.Repeat("- a\n", MaxDocument/4-10),
		"aliases of values":  "variables:\n A: &a b\n" + strings.Repeat(" B: *a\n", MaxDocument/7-10),
		"a name":             "variables:\n  " + strings.Repeat("A", MaxDocument-20) + ": b\n",
	} {
		begin := time.Now()
		_, p := Check("e.yml", []byte(in), nil)
		if !p.Failed() {
			t.Errorf("%s: no problem", name)
		}
		// A hang is what this is for: the limit is far above what a busy machine needs.
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

// numbered is a document of lines that each have a number of their own.
func numbered(begin, line string) string {
	var b strings.Builder
	b.WriteString(begin)
	for i := 0; b.Len() < MaxDocument-30; i++ {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

// nested is a document in which each line is deeper than the one before.
func nested(begin, line string) string {
	var b strings.Builder
	b.WriteString(begin)
	for i := 1; b.Len() < MaxDocument-i-len(line); i++ {
		b.WriteString(strings.Repeat(" ", i) + line)
	}
	return b.String()
}

func TestFormatIsReadBackTheSame(t *testing.T) {
	t.Parallel()
	scripts := []string{"", "a", "a\n", "a\n\n\n", "\na", "  indented\nless\n", "\t tab\n", "a\n  b\n\n  c", "trailing  \n", "# comment\n", "a\r\nb",
		"one\rtwo", "é\u0085\u2028x", "\x01\x7f", "---\n", "...\n", "- a\n", "key: value\n", "'\"\\", "a\n \n", " \na\n", "#!/bin/sh\necho \"$X\" | cat\n",
		"🙂\ufffd", "\ufeffbom", "on", "a\n\tb\n", strings.Repeat("long ", 1000) + "\n", "\n\n\na\n", "a\n   ", "\n \tx"}
	for _, b := range scripts {
		for _, start := range []string{"", "npm ci\n", b} {
			for _, image := range []string{"", "node:22", "null", "on", "0123", "1.5", "a-b.c/d_e:f", "localhost:5000/xy@sha256:" + strings.Repeat("0", 64)} {
				s := Normalize(Spec{Image: image, Bootstrap: b, Start: start, CPU: 0.25, Memory: 1536 << 20})
				doc := Format(s)
				got, err := Parse("e.yml", doc, nil)
				if err != nil || !reflect.DeepEqual(got, s) {
					t.Fatalf("%+v became\n%s\nwhich is read as %+v, %v", s, doc, got, err)
				}
				if again := Format(got); string(again) != string(doc) {
					t.Fatalf("formatted twice:\n%s\n%s", doc, again)
				}
			}
		}
	}
	want := "image: node:22-bookworm\nbootstrap: |\n  set -e\n\n  apt-get update\nstart: |-\n  npm ci\ncpu: 2\nmemory: 4GiB\n"
	if got := Format(Spec{Image: "node:22-bookworm", Bootstrap: "set -e\n\napt-get update\n", Start: "npm ci", CPU: 2, Memory: 4 << 30}); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := string(Format(Spec{})); got != "image: buildpack-deps:bookworm\n" {
		t.Errorf("an empty Spec is\n%s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, kind := range []string{"valid", "invalid"} {
		for _, b := range corpus(f, kind) {
			f.Add(b)
		}
	}
	for _, s := range []string{"", "image: node:22\nbootstrap: |\n  a\n  b\nstart: x\ncpu: 1.5\nmemory: 4GiB\n", "cpu: 0123\nmemory: ~\n", "start: &a x\nbootstrap: *a\n",
		"imgae: x\n", "start: \"\\u0085\\x00\"\n", "? a\n: b\n", "start: >+2\n   a\n\n", "image: !!str on\n", "\ufeff---\n...\n---\n", "{image: a, cpu: 1}", "start: |\r\n  a\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse("e.yml", b, anyFile)
		if err != nil {
			var p Problems
			if !errors.As(err, &p) || !p.Failed() {
				t.Fatalf("the error is not Problems: %v", err)
			}
			for _, one := range p {
				if one.Line < 1 || one.Column < 1 || one.Message == "" || one.File != "e.yml" || strings.Contains(one.Message, "%!") {
					t.Fatalf("a problem without a place or sentence: %#v", one)
				}
			}
			return
		}
		if p := Validate(s); p.Failed() {
			t.Fatalf("Parse takes what Validate refuses: %v", p)
		}
		if again := Normalize(s); !reflect.DeepEqual(again, s) {
			t.Fatalf("not normalized: %+v, %+v", s, again)
		}
		back, err := Parse("e.yml", Format(s), anyFile)
		if err != nil || !reflect.DeepEqual(back, s) {
			t.Fatalf("%+v is formatted as\n%s\nand read as %+v, %v", s, Format(s), back, err)
		}
		if TestKey(back) != TestKey(s) || len(Explain(s, back)) != 0 {
			t.Fatal("the same Spec has two keys")
		}
	})
}

// BenchmarkValidate reads a document of 1 MiB that has as much of everything as one may.
func BenchmarkValidate(b *testing.B) {
	var doc strings.Builder
	echoes := ""
	for i := range MaxVariables {
		echoes += fmt.Sprintf("  echo $A%d\n", i)
	}
	doc.WriteString("image: node:22\nbootstrap: |\n" + strings.Repeat("  echo \"${A2}\" $(true) # é\n", MaxScript/36) + echoes + "start: |\n" + strings.Repeat("  npm ci\n", MaxScript/10))
	doc.WriteString("docker: true\ndependency-folders:\n")
	for i := range MaxFolders {
		fmt.Fprintf(&doc, "  - {pattern: \"**/a%d/[a-z]*\", beside: package.json}\n", i)
	}
	doc.WriteString("variables:\n")
	for i := range MaxVariables {
		if i%4 == 1 {
			fmt.Fprintf(&doc, "  A%d: {sensitive: true} # why\n", i)
		} else {
			fmt.Fprintf(&doc, "  A%d: \"%s\" # why\n", i, strings.Repeat("x=é ", 400))
		}
	}
	for doc.Len() < MaxDocument-100 {
		doc.WriteString("# " + strings.Repeat("x", 97) + "\n")
	}
	text := []byte(doc.String())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s, p := Check("e.yml", text, nil)
		if p.Failed() || len(s.Variables) != MaxVariables || len(p) != MaxVariables/4 {
			b.Fatal(p)
		}
	}
}
