package envspec

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func TestParseReadsDockerFoldersVariablesAndFiles(t *testing.T) {
	t.Parallel()
	files := func(file string) ([]byte, error) { return []byte("\ufeffecho " + file + "\r\n"), nil }
	for in, want := range map[string]Spec{
		"docker: true\n":           {Docker: true},
		"docker: false\n":          {},
		"dependency-folders: []\n": {Folders: &[]Folder{}},
		"dependency-folders: ['b', {pattern: a, beside: c}, {pattern: a}]\n":                                                                                                    {Folders: &[]Folder{{"b", ""}, {"a", "c"}, {"a", ""}}},
		"dependency-folders: [{pattern: '**/target', beside: Cargo.toml}, {pattern: '**/.venv', beside: pyproject.toml}, {pattern: '**/node_modules', beside: package.json}]\n": {},
		"bootstrap: {file: a/b.sh}\nstart:\n  file: c.sh\n":                                                                                                                     {Bootstrap: "echo a/b.sh\n", BootstrapFile: "a/b.sh", Start: "echo c.sh\n", StartFile: "c.sh"},
		"variables: {}\n": {},
		"variables:\n  B: x\n  A: ''\n  C: {value: \"on\", note: why}\n  D: {sensitive: false, value: x}\n":               {Variables: []Variable{{Name: "A"}, {Name: "B", Value: "x"}, {Name: "C", Value: "on", Note: "why"}, {Name: "D", Value: "x"}}},
		"variables:\n  S: {sensitive: true}\n  T: {sensitive: true, build: true}\n  U: {sensitive: true, build: false}\n": {Variables: []Variable{{Name: "S", Sensitive: true}, {Name: "T", Sensitive: true, Build: true}, {Name: "U", Sensitive: true}}},
		"variables:\n  L: {link: SHARED}\n  M: {link: SHARED, build: true, note: n!}\n":                                   {Variables: []Variable{{Name: "L", Link: "SHARED"}, {Name: "M", Link: "SHARED", Build: true, Note: "n!"}}},
		"variables:\n  A: |\n    -----BEGIN\n    a=b\n  B: \"a\\r\\nb \"\n":                                               {Variables: []Variable{{Name: "A", Value: "-----BEGIN\na=b\n"}, {Name: "B", Value: "a\r\nb "}}},
	} {
		want.Image = DefaultImage
		got, err := Parse("e.yml", []byte(in), files)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestParseSaysWhatIsWrongWithDockerFoldersVariablesAndFiles(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"docker: yes\n":                                        `e:1:9: docker is true or false, without quotes`,
		"docker: \"true\"\n":                                   `e:1:9: docker is true or false, without quotes`,
		"docker: {version: 27}\n":                              `e:1:9: docker is a group of keys: it should be true or false`,
		"start: {file: /s.sh}\n":                               `e:1:15: start names the file "/s.sh": a path begins at the repository's root, without / or ~ before it`,
		"start: {file: ../s.sh}\n":                             `e:1:15: start names the file "../s.sh": a path has no .. in it, and begins at the repository's root`,
		"start: {file: a//s.sh}\n":                             `e:1:15: start names the file "a//s.sh": write the path without empty parts and dots alone, as in scripts/setup.sh`,
		"start: {file: .git/x}\n":                              `e:1:15: start names the file ".git/x": what is in .git is no part of a commit`,
		"start: {fil: s.sh}\n":                                 `e:1:9: fil is no key of a script: did you mean file?`,
		"start: {file: s.sh, run: x}\n":                        `e:1:21: run is no key of a script: did you mean file?`,
		"start: {}\n":                                          `e:1:8: start is a group without keys: write the script here, or file: and its path in the repository`,
		"start: {file: 1}\n":                                   `e:1:15: start is a text, and 1 is a number in YAML: write it in quotes, "1"`,
		"start: !x {file: a}\n":                                `e:1:8: start has a tag, which is not supported: leave it out`,
		"start: {file: a, file: b}\n":                          `e:1:18: file stands here a second time, the first is in line 1`,
		"dependency-folders:\n":                                `e:1:20: dependency-folders says nothing: give it a value or leave the line out`,
		"dependency-folders: node_modules\n":                   `e:1:21: dependency-folders is a single value: it should be a list of patterns, such as ["**/node_modules"]; [] is none`,
		"dependency-folders: [/a]\n":                           `e:1:22: dependency-folders[0] is "/a": a pattern begins in the Workspace, without / or ~ before it`,
		"dependency-folders: [../a]\n":                         `e:1:22: dependency-folders[0] is "../a": a pattern has no .. in it, since only folders of the Workspace can be kept`,
		"dependency-folders: [a/]\n":                           `e:1:22: dependency-folders[0] is "a/": write it without the / at its end`,
		"dependency-folders: [a//b]\n":                         `e:1:22: dependency-folders[0] is "a//b": write it without empty parts and dots alone`,
		"dependency-folders:\n  - a\n  - '**'\n":               `e:3:5: dependency-folders[1] is "**": the last part names a folder, as in **/node_modules; ** would be any`,
		"dependency-folders: [a**b]\n":                         `e:1:22: dependency-folders[0] is "a**b": ** stands alone between two /, as in **/node_modules`,
		"dependency-folders: ['{a,b']\n":                       `e:1:22: dependency-folders[0] is "{a,b": a { in it is not closed`,
		"dependency-folders: ['[a']\n":                         `e:1:22: dependency-folders[0] is "[a": "[a" has a [ that is not closed, or nothing between [ and ]`,
		"dependency-folders: ['.git']\n":                       `e:1:22: dependency-folders[0] is ".git": .git belongs to the Workspace itself`,
		"dependency-folders: [{pattern: a, besides: b}]\n":     `e:1:35: besides is no key of a dependency folder: did you mean beside?`,
		"dependency-folders: [{beside: b}]\n":                  `e:1:22: dependency-folders[0] has no pattern, as in {pattern: "**/node_modules", beside: package.json}`,
		"dependency-folders:\n  - {pattern: a, beside: b/c}\n": `e:2:5: dependency-folders[0].beside is "b/c": it should be the name of one file, without folders and wildcards, as in package.json`,
		"dependency-folders: [{pattern: a, beside: ''}]\n":     `e:1:43: dependency-folders[0].beside is empty: name a file, or leave it out`,
		"dependency-folders: [a, b, a]\n":                      `e:1:28: dependency-folders[2] is the same as dependency-folders[0]: write it once`,
		"dependency-folders: [1]\n":                            `e:1:22: dependency-folders[0] is a text, and 1 is a number in YAML: write it in quotes, "1"`,
		"dependency_folders: []\n":                             `e:1:1: dependency_folders is no key of an Environment: did you mean dependency-folders?`,
		"env: {}\n":                                            `e:1:1: env is no key of an Environment: did you mean variables?`,
		"variable: {}\n":                                       `e:1:1: variable is no key of an Environment: did you mean variables?`,
		"variables:\n":                                         `e:1:11: variables says nothing: give it a value or leave the line out`,
		"variables: [A]\n":                                     `e:1:12: variables is a list: it should be names and values, such as NODE_ENV: production`,
		"variables: {A: 3.10}\n":                               `e:1:16: variables.A is a text, and what stands here is a number in YAML: write it in quotes`,
		"variables: {A: on}\n":                                 `e:1:16: variables.A is a text, and what stands here is true or false in YAML: write it in quotes`,
		"variables: {A: }\n":                                   `e:1:16: variables.A says nothing: give it a value or leave the line out; an empty text is ""`,
		"variables: {A: null}\n":                               `e:1:16: variables.A says null, which is nothing in YAML: give it a value or leave the line out; an empty text is ""`,
		"variables: {A: 2026-11-30}\n":                         `e:1:16: variables.A is a text, and what stands here is a date in YAML: write it in quotes`,
		"variables: {A: {sensitive: true, value: x}}\n":        `e:1:41: variables.A: a Sensitive Variable has no value in a document: whoever reads the repository would read the secret. Remove it here, give it to the Hub, and if it was ever committed or sent to somebody, replace it by a new one`,
		"variables: {A: {value: x, build: true}}\n":            `e:1:34: variables.A: a Plain Variable always reaches the bootstrap: leave build out`,
		"variables: {A: {link: B, sensitive: true}}\n":         `e:1:37: variables.A: the Shared variable says whether a Link is Sensitive: leave sensitive out`,
		"variables: {A: {link: B, value: c}}\n":                `e:1:33: variables.A: a Link has the value of the Shared variable: leave value out, or link`,
		"variables: {A: {}}\n":                                 `e:1:16: variables.A has neither a value, nor sensitive: true, nor link`,
		"variables: {A: {secret: true}}\n":                     `e:1:17: secret is no key of a Variable: did you mean sensitive?`,
		"variables: {A: {sensitive: yes}}\n":                   `e:1:28: variables.A.sensitive is true or false, without quotes`,
		"variables: {A-B: c}\n":                                `e:1:13: the name of a Variable has letters, digits and _ only, and the character after "A" is '-'`,
		"variables: {1A: c}\n":                                 `e:1:13: the name of a Variable begins with a letter or _, not with a digit`,
		"variables: {CLAUDE_HUB_X: c}\n":                       `e:1:13: the name "CLAUDE_HUB_X" is reserved: those that begin with CLAUDE_HUB_ are set by claude-hub itself`,
		"variables: {PATH: x, PWD: y, SHELLOPTS: z}\n": `e:1:22: the name PWD is reserved: each shell sets it itself, so the value would never arrive
e:1:30: the name SHELLOPTS is reserved: it changes what bash does with every script`,
		"variables:\n  A: b\n  A: c\n":                                `e:3:3: A stands here a second time, the first is in line 2`,
		"variables: {a_b: c}\n":                                       `e:1:13: warning: the name a_b has lower case letters, which is allowed, but names of Variables are in upper case as a rule: A_B`,
		"variables: {A: \"b\\0\"}\n":                                  `e:1:16: variables.A: the value has a NUL byte in it, which no process can be given`,
		"variables: {A: {value: \"b\\0\"}}\n":                         `e:1:24: variables.A: the value has a NUL byte in it, which no process can be given`,
		"variables: {A: *b}\n":                                        `e:1:16: an alias, which is what begins with *, is not supported: write the value out, and a text that begins with * in quotes`,
		"variables: {A: @b}\n":                                        "e:1:1: this is not YAML: found character that cannot start any token; a text that begins with @, ` or % is written in quotes",
		"variables: {A: '" + strings.Repeat("x", MaxValue+1) + "'}\n": `e:1:16: variables.A: the value is 65537 bytes long: at most 65536; put what is longer into a file`,
		"variables: {A: {sensitive: true, note: '" + strings.Repeat("x", MaxNote+1) + "'}}\n": `e:1:40: variables.A: the note is 1025 bytes long: at most 1024`,
	} {
		_, problems := Check("e", []byte(in), func(string) ([]byte, error) { return nil, nil })
		if got := problems.Error(); got != want {
			t.Errorf("%.80q:\ngot  %s\nwant %s", in, got, want)
		}
	}
}

// hunter2 stands where a person may have put a secret, rightly or not.
func TestNoProblemRepeatsAValue(t *testing.T) {
	t.Parallel()
	docs := []string{"variables: hunter2\n", "variables: [A=hunter2]\n", "variables: *hunter2\n", "variables: &hunter2 {}\n", "variables: !hunter2 {}\n", "variables:\n A=hunter2\n",
		"variables:\n  A=hunter2: x\n", "variables: {A=hunter2}\n", "variables: {A=hunter2, A=hunter2}\n", "variables:\n  ? [hunter2]\n  : x\n", "variables:\n  <<: hunter2\n", "variables:\n  *hunter2 : x\n"}
	for _, value := range []string{"*hunter2", "&hunter2", "&hunter2 x", "!hunter2", "!!hunter2 x", "!hunter2!x y", "!<hunter2", "@hunter2", "`hunter2", "%hunter2", "hunter2: x", "\"hunter2\\q\"", "\"hunter2", "'hunter2",
		"[hunter2]", "[hunter2", "{hunter2}", "{hunter2", "{hunter2: x}", "{? [hunter2] : x}", "|x hunter2", "- hunter2", "\n  - hunter2", "{sensitive: hunter2}", "{sensitive: true, build: hunter2}", "{link: [hunter2]}", "{link: A=hunter2}",
		"{value: hunter2, sensitive: true}", "{value: hunter2, link: B}", "{value: hunter2, build: true}", "{value: hunter2, values: x}", "{value: hunter2, value: hunter2}", "{value: [hunter2]}", "{value: *hunter2}", "{value: {a: hunter2}}",
		"{note: hunter2}", "{sensitive: true, note: [hunter2]}", "\"hunter2\\0\"", "hunter2" + strings.Repeat("x", MaxValue), "{value: \"hunter2\\0\"}"} {
		docs = append(docs, "variables:\n  A: "+value+"\n", "variables:\n  GOOD: x\n  A: "+value+"\n  OTHER: z\nimage: [x]\n")
	}
	for _, doc := range docs {
		_, p := Check("e.yml", []byte(doc), nil)
		if !p.Failed() || strings.Contains(p.Error(), "hunter2") {
			t.Errorf("%.100q: %s", doc, p)
		}
		for _, one := range p {
			if strings.Contains(one.Path, "hunter2") {
				t.Errorf("%.100q: the path %s", doc, one.Path)
			}
		}
	}
	for _, v := range []Variable{{Name: "A", Value: "hunter2\x00"}, {Name: "A", Value: "hunter2\xff"}, {Name: "A", Value: "hunter2", Sensitive: true}, {Name: "A", Value: "hunter2", Link: "B"}, {Name: "A=hunter2"},
		{Name: "A", Value: "hunter2", Build: true}, {Name: "A", Link: "A=hunter2"}, {Name: "A", Note: "hunter2\x00"}, {Name: "A", Value: strings.Repeat("hunter2", MaxValue)}} {
		p := Validate(Spec{Variables: []Variable{v}})
		if !p.Failed() || strings.Contains(p.Error(), "hunter2") || strings.Contains(p[0].Path, "hunter2") {
			t.Errorf("%.100v: %s", v, p)
		}
	}
}

func TestValidateNamesTheVariableAndThePattern(t *testing.T) {
	t.Parallel()
	var many []Variable
	for i := range MaxVariables + 1 {
		many = append(many, Variable{Name: fmt.Sprint("A", i)})
	}
	var large []Variable
	for i := range 9 {
		large = append(large, Variable{Name: fmt.Sprint("A", i), Value: strings.Repeat("x", 60<<10)})
	}
	for path, s := range map[string]Spec{
		"variables.A":                  {Variables: []Variable{{Name: "A"}, {Name: "A", Link: "B"}}},
		"variables.PWD":                {Variables: []Variable{{Name: "PWD"}}},
		"variables.B":                  {Variables: []Variable{{Name: "B", Build: true}}},
		"variables":                    {Variables: many},
		"dependency-folders[1]":        {Folders: &[]Folder{{"a", ""}, {"/b", ""}}},
		"dependency-folders[0].beside": {Folders: &[]Folder{{"a", "b/c"}}},
		"dependency-folders":           {Folders: new([]Folder)},
		"bootstrap":                    {BootstrapFile: "../x"},
		"start":                        {StartFile: "/x"},
	} {
		if path == "dependency-folders" {
			*s.Folders = make([]Folder, MaxFolders+1)
		}
		if p := Validate(s); len(p) != 1 || p[0].Path != path || !p.Failed() {
			t.Errorf("%s: %v", path, p)
		}
	}
	if p := Validate(Spec{Variables: large}); len(p) != 1 || p[0].Path != "variables" || p[0].Message != "names and values of the Variables have 540 KiB together: at most 512 KiB" {
		t.Errorf("too large together: %v", p)
	}
	if p := Validate(Spec{Variables: []Variable{{Name: "my_var", Value: strings.Repeat("x", MaxValue)}, {Name: "http_proxy"}, {Name: "TF_VAR_x"}, {Name: "npm_config_registry"}}}); len(p) != 1 ||
		!p[0].Warning || p[0].Path != "variables.my_var" {
		t.Errorf("a name in lower case, and the longest value: %v", p)
	}
	if p := Validate(everything); len(p) != 0 {
		t.Errorf("everything: %v", p)
	}
}

// readBack checks that a value and a note are the same bytes when a document had them.
func readBack(t *testing.T, value, note string) {
	t.Helper()
	more := note
	if CheckNote(note) != nil {
		note = "n!"
	}
	s := Normalize(Spec{Variables: []Variable{{Name: "A", Value: value}, {Name: "B", Value: value, Note: note}, {Name: "C", Sensitive: true, Note: note}, {Name: "D", Link: "A", Build: true, Note: note}, {Name: "E", Value: more}}})
	if Validate(s).Failed() {
		return
	}
	doc := Format(s)
	got, err := Parse("e.yml", doc, nil)
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("%q, %q became\n%s\nwhich is read as %+v, %v", value, note, doc, got, err)
	}
	if again, err := Reformat("e.yml", doc); err != nil || string(again) != string(doc) {
		t.Fatalf("%q, %q is formatted again as\n%s\n%v, and was\n%s", value, note, again, err, doc)
	}
}

func TestValuesAreReadBackByteForByte(t *testing.T) {
	t.Parallel()
	pieces := []string{"a", "B", " ", "  ", "\n", "\n\n", "\t", "\r", "\r\n", "#", " #", ":", ": ", "- ", "? ", "{", "}", "[", "]", ",", "&", "*", "!", "|", ">", "'", "\"", "%", "@", "`", "\\", "\\n", "=", "$", "${A}", "0", "1.0", "0x1f",
		"on", "null", "~", "---", "...", "\x01", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufffd", "\ufffe", "é", "🙂", "\U000e0001", "-----BEGIN PRIVATE KEY-----\nMIIE+/=\n-----END PRIVATE KEY-----\n", `{"a":["b"]}`, "<<", "2026-11-30"}
	random := rand.New(rand.NewPCG(9, 10))
	text := func() string {
		v := ""
		for range random.IntN(5) {
			v += pieces[random.IntN(len(pieces))]
		}
		return v
	}
	for _, a := range pieces {
		for _, b := range pieces {
			readBack(t, a+b, b)
		}
	}
	for range 1000 {
		readBack(t, text(), text())
	}
	readBack(t, strings.Repeat("x\n", MaxValue/2), strings.Repeat("é", MaxNote/2))
}

func FuzzValue(f *testing.F) {
	for _, s := range []string{"", "a", "a\nb\n", " a", "a\n \n", "\n\n", "#", "on", "\u0085", "a: b", "\ta\n", "🙂\r\n"} {
		f.Add(s, "note")
		f.Add("value", s)
	}
	f.Fuzz(func(t *testing.T, value, note string) { readBack(t, value, note) })
}
