package dotenv

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
)

func pairs(entries []Entry) map[string]string {
	out := map[string]string{}
	for _, e := range entries {
		out[e.Name] = e.Value
	}
	return out
}

func TestParseReadsTheGrammar(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]map[string]string{
		"":                                   {},
		"\n\n# c\n  # d\n":                   {},
		"A=b":                                {"A": "b"},
		"A=b\r\nC=d\r\n":                     {"A": "b", "C": "d"},
		"\ufeffA=b\n":                        {"A": "b"},
		"export A=b\nexport\tB=c\n":          {"A": "b", "B": "c"},
		"export=b\n":                         {"export": "b"},
		"A =  b c  \n":                       {"A": "b c"},
		"A=\nB=''\nC=\"\"\nD=``\n":           {"A": "", "B": "", "C": "", "D": ""},
		"A=\"\"  # comment\n":                {"A": ""},
		"A=b #c\nB=c#d\nC=#d\nD= #e\n":       {"A": "b", "B": "c#d", "C": "#d", "D": ""},
		"A=false # needed … \n":              {"A": "false"},
		"A='b # c' # d\n":                    {"A": "b # c"},
		"A='b\\n$C'\n":                       {"A": `b\n$C`},
		"A=\"b\\n\\r\\t\\\\n\\\"\\$\\q\"\n":  {"A": "b\n\r\t\\n\"$\\q"},
		"A=\"b\\\\\"\n":                      {"A": `b\`},
		"A=`b'c\"d`\n":                       {"A": `b'c"d`},
		"A=b'c'd\"e\"\n":                     {"A": `b'c'd"e"`},
		"A={\"a\":[\"b\"]}\n":                {"A": `{"a":["b"]}`},
		"A='{\"a\":[\"b\"]}'\n":              {"A": `{"a":["b"]}`},
		"A=cn=admin,dc=example,dc=com\n":     {"A": "cn=admin,dc=example,dc=com"},
		"A=equals==\n":                       {"A": "equals=="},
		"A=https://u:p@h/x?y=z&q=%20+/\n":    {"A": "https://u:p@h/x?y=z&q=%20+/"},
		"EDITOR=\"code --wait\"\n":           {"EDITOR": "code --wait"},
		"A=♀♂🙂\n":                            {"A": "♀♂🙂"},
		"A=<generate with mix>\n":            {"A": "<generate with mix>"},
		"MAIL_FROM_NAME=\"${APP_NAME}\"\n":   {"MAIL_FROM_NAME": "${APP_NAME}"},
		"A=C:\\new\\table\n":                 {"A": `C:\new\table`},
		"A=\"l1\nl2\n\"\nB=c\n":              {"A": "l1\nl2\n", "B": "c"},
		"A='\n-----BEGIN X-----\nMI+/=\n'\n": {"A": "\n-----BEGIN X-----\nMI+/=\n"},
		"A=`l1\r\nl2`\r\nB=c":                {"A": "l1\nl2", "B": "c"},
		"A=b\nA=c\n":                         {"A": "c"},
		"NUGET_XMLDOC_MODE=\n":               {"NUGET_XMLDOC_MODE": ""},
		"PATH=./node_modules/.bin:$PATH\n":   {"PATH": "./node_modules/.bin:$PATH"},
		"A='x\nabcd=\n'\n":                   {"A": "x\nabcd=\n"},
		"A=it's\n":                           {"A": "it's"},
		"A=pa$$word$2a$10$x\n":               {"A": "pa$$word$2a$10$x"},
		"_=x\n":                              {},
		"A=\"\ufeff\"\n":                     {"A": "\ufeff"},
		"A=b\x0bc\n":                         {"A": "b\x0bc"},
	} {
		got, problems := Parse("e", []byte(in))
		if !reflect.DeepEqual(pairs(got), want) || len(got) != len(want) || problems.Failed() && len(want) > 0 {
			t.Errorf("%q is read as %q, want %q; %v", in, pairs(got), want, problems)
		}
	}
}

func TestEntriesSayWhereTheyStandAndWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	in := "# top\nA=b # c\n\nB=\"x\ny\"   # d\nAPI_TOKEN=short\nC=\"${A}\"\nD=`l1\r\nl2`\n"
	got, problems := Parse("e.env", []byte(in))
	want := []Entry{
		{Line: 2, Name: "A", Value: "b", Notes: []string{"comment dropped"}},
		{Line: 4, Name: "B", Value: "x\ny", Notes: []string{"comment dropped"}},
		{Line: 6, Name: "API_TOKEN", Value: "short", Sensitive: true, Notes: []string{"it has fewer than 8 bytes, so it can only be Plain"}},
		{Line: 7, Name: "C", Value: "${A}", Notes: []string{"${…} is kept as it is"}},
		{Line: 8, Name: "D", Value: "l1\nl2", Notes: []string{"line endings are LF now"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if problems.Error() != "e.env:7:1: warning: C has ${…} or $(…) in it, which is not expanded: the value has it as it stands there" {
		t.Errorf("problems: %v", problems)
	}
}

func TestProblemsHaveTheirLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"A=b\nhunter2\n":                               "e:2:1: this line has no =: write NAME=value, or # before a comment",
		"export A\n":                                   "e:1:1: this line has no =: write NAME=value, or # before a comment",
		"A-B=hunter2\n":                                `e:1:1: the name of a Variable has letters, digits and _ only, and the character after "A" is '-'`,
		"A.B=hunter2\n":                                `e:1:1: the name of a Variable has letters, digits and _ only, and the character after "A" is '.'`,
		"A: hunter2=x\n":                               `e:1:1: the name of a Variable has letters, digits and _ only, and the character after "A" is ':'`,
		"set A=hunter2\n":                              `e:1:1: the name of a Variable has letters, digits and _ only, and the character after "set" is a space`,
		"1INVALID=hunter2\n":                           "e:1:1: the name of a Variable begins with a letter or _, not with a digit",
		"=hunter2\n":                                   "e:1:1: a Variable needs a name",
		"CLAUDE_HUB_X=hunter2\n":                       `e:1:1: the name "CLAUDE_HUB_X" is reserved: those that begin with CLAUDE_HUB_ are set by claude-hub itself`,
		"\nA='hunter2\nB=c\n":                          "e:2:1: A begins with the quote ', which is never closed: close it, or put the value into other quotes",
		"A=\"hunter2\\\"\n":                            "e:1:1: A begins with the quote \", which is never closed: close it, or put the value into other quotes",
		"A='x\ny'hunter2\n":                            "e:2:1: A has text after the quote ' that closes it: put all of it into quotes, or leave them out",
		"A='x'hunter2":                                 "e:1:1: A has text after the quote ' that closes it: put all of it into quotes, or leave them out",
		"A='x'#hunter2\n":                              "e:1:1: A has text after the quote ' that closes it: put all of it into quotes, or leave them out",
		"A=b\nB=hun\x00ter2\n":                         "e:2:1: there is a NUL byte in this line, which no process can be given",
		"A=b\nB=hunter2\xe9\n":                         "e:2:1: this line is not UTF-8: save the file as UTF-8",
		"\xff\xfeA\x00=\x00b\x00":                      "e:1:1: the file is UTF-16: save it as UTF-8",
		"A=hunter2\nB=c\n\nA=hunter3\n":                "e:1:1: warning: A stands here and again in line 4: the last one counts",
		"A='hunter2\nB=c\nC=`d`'\n":                    "e:1:1: warning: A goes over lines 1 to 3, and some of them look like names with values of their own: is the quote closed where it should be?",
		"A=" + strings.Repeat("x", envspec.MaxValue+1): "e:1:1: A: the value is 65537 bytes long: at most 65536; put what is longer into a file",
		strings.Repeat("x", MaxFile+1):                 "e:1:1: the file is 1024 KiB long: at most 1024 KiB",
	} {
		_, problems := Parse("e", []byte(in))
		if got := problems.Error(); got != want {
			t.Errorf("%.60q:\ngot  %s\nwant %s", in, got, want)
		}
		if strings.Contains(problems.Error(), "hunter") {
			t.Errorf("%.60q: a value is told: %s", in, problems)
		}
	}
}

func TestAWrongLineLeavesTheOthersRight(t *testing.T) {
	t.Parallel()
	got, problems := Parse("e", []byte("A=b\nB-C='x\ny'\nD=\"e\nF=g\n"))
	if want := map[string]string{"A": "b", "F": "g"}; !reflect.DeepEqual(pairs(got), want) || len(problems) != 2 {
		t.Errorf("got %q, %v", pairs(got), problems)
	}
}

func TestLimitsAreKept(t *testing.T) {
	t.Parallel()
	var many, large strings.Builder
	for i := range envspec.MaxVariables + 1 {
		fmt.Fprintf(&many, "A%d=x\n", i)
	}
	for i := range 9 {
		fmt.Fprintf(&large, "A%d=%s\n", i, strings.Repeat("x", envspec.MaxValue))
	}
	for in, want := range map[string]int{many.String(): envspec.MaxVariables, large.String(): 7, "A=" + strings.Repeat("x", envspec.MaxValue): 1} {
		got, problems := Parse("e", []byte(in))
		if len(got) != want || problems.Failed() != (want > 1) {
			t.Errorf("%.20q…: %d entries, %v", in, len(got), problems)
		}
	}
	_, problems := Parse("e", []byte(strings.Repeat("x\n", 1000)+"A=${B}\n"))
	if len(problems) != maxProblems+1 || problems[maxProblems].Message != "951 more problems are not shown" || problems[maxProblems].Warning {
		t.Errorf("%d problems, the last %v", len(problems), problems[len(problems)-1])
	}
}

func TestHostileFilesAreAnsweredSoon(t *testing.T) {
	t.Parallel()
	for what, unit := range map[string]string{"quotes": "A='\n", "double quotes": "A=\"", "open": "A=\"\n", "names": "A=b\n", "comments": " #", "backslashes": `\`, "lines": "\n", "expansions": "A=${\n", "assignments": "A=`\nB=c\n"} {
		begin := time.Now()
		Parse("e", []byte(strings.Repeat(unit, MaxFile/4/len(unit))))
		Parse("e", []byte("A=\""+strings.Repeat(unit, MaxFile/4/len(unit)-2)))
		// A hang is what this is for: the limit is far above what a busy machine needs.
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("%s took %v", what, d)
		}
	}
}

func TestNamesTellWhatLooksSensitive(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"API_KEY": true, "NPM_TOKEN": true, "CLIENT_SECRET": true, "DB_PASSWORD": true, "PGPASSWORD": true, "PRIVATE_PEM": true, "SSH_PRIVATE_KEY": true, "TOKEN": true, "KEY": true,
		"APIKEY": true, "AWS_SECRET_ACCESS_KEY": true, "db_password": true, "GOOGLE_CREDENTIALS": true, "GPG_PASSPHRASE": true, "SECRET_KEY_BASE": true, "KEY_B64": true, "MYSQL_PASS": true, "TOKENS": true,
		"NEXT_PUBLIC_API_KEY": false, "PUBLIC_KEY": false, "NODE_ENV": false, "KEYBOARD": false, "TOKENIZER": false, "PATH": false, "PASSENGERS": false, "MONKEY": false, "COMPASS": false, "PORT": false,
	} {
		if got := LooksSensitive(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The corpus has files as other products write them, and beside each what is read: NAME="value" as Go quotes it.
func TestCorpus(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/corpus/*.env")
	if err != nil || len(files) < 5 {
		t.Fatalf("the corpus has %d files: %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".env") + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		entries, problems := Parse(filepath.Base(file), b)
		var got strings.Builder
		for _, e := range entries {
			fmt.Fprintf(&got, "%d %s=%q", e.Line, e.Name, e.Value)
			if e.Sensitive {
				got.WriteString(" sensitive")
			}
			for _, n := range e.Notes {
				got.WriteString(" (" + n + ")")
			}
			got.WriteByte('\n')
		}
		for _, p := range problems {
			got.WriteString(p.String() + "\n")
		}
		if got.String() != string(want) {
			t.Errorf("%s is read as\n%s\nwant\n%s", file, got.String(), want)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/corpus/*.env")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{"A=b", "export A='b\nc' # d", "A=\"\\n\\q\"", "A=`\r\n`", "\ufeffA=${B}\nA=\n", "=", "A='", "A=\"\\", "\x00", "\xff\xfe", "A-B='x\ny'"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, problems := Parse("e", b)
		lines := 1 + strings.Count(string(b), "\n")
		for _, p := range problems {
			if p.Line < 1 || p.Line > lines || p.File != "e" || p.Message == "" || strings.Contains(p.Message, "%!") {
				t.Fatalf("%q: a problem without a right place or sentence: %#v", b, p)
			}
		}
		before, seen := 0, map[string]bool{}
		var again strings.Builder
		for _, e := range entries {
			if e.Line <= before || e.Line > lines || seen[e.Name] || envspec.CheckName(e.Name) != nil || envspec.CheckValue([]byte(e.Value)) != nil {
				t.Fatalf("%q: a wrong entry: %+v", b, e)
			}
			before, seen[e.Name] = e.Line, true
			fmt.Fprintf(&again, "%s=\"%s\"\n", e.Name, strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", `\r`).Replace(e.Value))
		}
		// What was read, written in double quotes, is read the same.
		back, _ := Parse("e", []byte(again.String()))
		if !reflect.DeepEqual(pairs(back), pairs(entries)) {
			t.Fatalf("%q is read as %q, and written as\n%s\nis read as %q", b, pairs(entries), again.String(), pairs(back))
		}
	})
}
