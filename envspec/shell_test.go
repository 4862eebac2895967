package envspec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func uses(script string) []Use {
	return Unavailable(Spec{Bootstrap: script, Variables: []Variable{{Name: "PLAIN", Value: "x"}, {Name: "TICKED", Sensitive: true, Build: true},
		{Name: "TOKEN", Sensitive: true}, {Name: "LINK", Link: "S"}, {Name: "TOK", Sensitive: true}}})
}

func TestUsesOfVariablesThatTheBuildHasNotAreFound(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][]Use{
		"echo $TOKEN":                               {{"TOKEN", 1}},
		"true\necho \"x${TOKEN}y\"\n":               {{"TOKEN", 2}},
		"echo ${TOKEN:-none} $TOKEN\n":              {{"TOKEN", 1}},
		"echo ${#TOKEN} ${!LINK}\n":                 {{"TOKEN", 1}, {"LINK", 1}},
		"echo $TOKEN_X $TOKENS ${TOK}\n":            {{"TOK", 1}},
		"echo $(\n  curl -H \"A: $TOKEN\"\n)":       {{"TOKEN", 2}},
		"echo `echo $TOKEN`":                        {{"TOKEN", 1}},
		"echo \"`echo $TOKEN`\"":                    {{"TOKEN", 1}},
		"echo \"$(echo '$LINK' \"$TOKEN\")\"":       {{"TOKEN", 1}},
		"echo $((TOKEN + $LINK << 2))\necho $TOKEN": {{"LINK", 1}, {"TOKEN", 2}},
		"cat <<E\n$TOKEN '$LINK'\nE\n":              {{"TOKEN", 2}, {"LINK", 2}},
		"cat <<-E > x\n\t${TOKEN}\n\tE\necho $LINK": {{"TOKEN", 2}, {"LINK", 4}},
		"cat <<A <<'B'\n$TOKEN\nA\n$LINK\nB\n":      {{"TOKEN", 2}},
		"cat <<E\n\"$TOKEN\nE\necho '$LINK'":        {{"TOKEN", 2}},
		"cat <<< $TOKEN\necho '$LINK'":              {{"TOKEN", 1}},
		"TOKEN=$TOKEN npm i":                        {{"TOKEN", 1}},
		"echo ${PLAIN:-$TOKEN}":                     {{"TOKEN", 1}},
		"echo \"${PLAIN:-\"$TOKEN\"}\"":             {{"TOKEN", 1}},
		"echo a#$TOKEN":                             {{"TOKEN", 1}},
		"echo it\\'s $TOKEN":                        {{"TOKEN", 1}},
		"echo \\\\$TOKEN":                           {{"TOKEN", 1}},
		"case x in a) echo $TOKEN;; esac":           {{"TOKEN", 1}},
		"#!/bin/sh\necho $TOKEN":                    {{"TOKEN", 2}},
		"#!/usr/bin/env -S bash -e\necho $TOKEN":    {{"TOKEN", 2}},
		"if [ -n \"$TOKEN\" ]; then :; fi":          {{"TOKEN", 1}},
		"[[ $TOKEN ]] && (( LINK )) && echo $LINK":  {{"TOKEN", 1}, {"LINK", 1}},
		"export TOKEN\necho $TOKEN":                 {{"TOKEN", 2}},
		"x=1 # it's\necho $TOKEN":                   {{"TOKEN", 2}},
		"f() { echo \"$TOKEN\"; }\n":                {{"TOKEN", 1}},
		"echo $'it\\'s' $TOKEN":                     {{"TOKEN", 1}},
		"echo \"$'\" $TOKEN":                        {{"TOKEN", 1}},

		"echo $PLAIN $TICKED $OTHER TOKEN":                        nil,
		"echo '$TOKEN'":                                           nil,
		"echo \\$TOKEN \"\\${TOKEN}\"":                            nil,
		"# $TOKEN\ntrue # $TOKEN\n":                               nil,
		"echo $'\\'$TOKEN'":                                       nil,
		"cat <<'E'\n$TOKEN\nE\n":                                  nil,
		"cat <<\"E\"\n$TOKEN\nE\n":                                nil,
		"cat <<\\E\n$TOKEN\nE\n":                                  nil,
		"cat <<E\n\\$TOKEN\nE\n":                                  nil,
		"cat > /etc/profile.d/x.sh <<'END'\nexport A=$TOKEN\nEND": nil,
		"TOKEN=x\necho $TOKEN":                                    nil,
		"export TOKEN=x; echo $TOKEN":                             nil,
		"for TOKEN in a b; do echo $TOKEN; done":                  nil,
		"read -r TOKEN < x; echo $TOKEN":                          nil,
		"bash -c 'echo $TOKEN'":                                   nil,
		"echo \"'\\$TOKEN'\"":                                     nil,
		"#!/usr/bin/python3\nprint(\"$TOKEN\")":                   nil,
		"#!/usr/bin/env node\n`${TOKEN}`":                         nil,
		"":                                                        nil,
	} {
		if got := uses(script); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", script, got, want)
		}
	}
}

func TestUsesAreWarnedOfAtTheirPlace(t *testing.T) {
	t.Parallel()
	const says = "bootstrap uses $TOKEN, but this Variable is not available at build and is unset there: give it build: true, or use it in the start script"
	end := "variables: {TOKEN: {sensitive: true}}\n"
	for doc, want := range map[string]string{
		"bootstrap: |\n  true\n    echo $TOKEN\n" + end:    "e.yml:3:5: warning: " + says,
		"bootstrap: echo $TOKEN\n" + end:                   "e.yml:1:12: warning: " + says,
		"bootstrap: \"true\\necho $TOKEN\"\n" + end:        "e.yml:1:12: warning: " + says + " (line 2 of the script)",
		"bootstrap: {file: a/setup.sh}\n" + end:            "a/setup.sh:2:1: warning: " + says,
		"start: echo $TOKEN\n" + end:                       "",
		"bootstrap: echo $TOKEN\nvariables: {TOKEN: a}":    "",
		"bootstrap: echo $TOKEN\nvariables: {LINK: \"a\"}": "",
	} {
		_, p := Check("e.yml", []byte(doc), func(string) ([]byte, error) { return []byte("true\necho $TOKEN\n"), nil })
		if got := p.Error(); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", doc, got, want)
		}
	}
	p := Validate(Spec{Bootstrap: "\n\necho $TOKEN", Variables: []Variable{{Name: "TOKEN", Sensitive: true}}})
	if len(p) != 1 || p[0].String() != "warning: "+says+" (line 3 of the script)" || p[0].Path != "bootstrap" {
		t.Errorf("without a document: %v", p)
	}
}

func TestHostileScriptsAreReadSoon(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"$(", "${A:-", "\"", "`", "cat <<E\n", "<<", "((", "'", "$((", "\\", "\"$(", "cat <<A <<B\n$(\n", "$'"} {
		begin := time.Now()
		uses(strings.Repeat(unit, MaxScript/len(unit)))
		// A hang is what this is for: the limit is far above what a busy machine needs.
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("%q took %v", unit, d)
		}
	}
}

func FuzzUnavailable(f *testing.F) {
	for _, s := range []string{"echo $TOKEN ${LINK:-`x`}", "cat <<-'E'\n$TOKEN\nE", "$(( 1 << 2 ))", "\"$(\"", "${", "$'\\", "<<", "(("} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script string) {
		lines := 1 + strings.Count(script, "\n")
		for _, u := range uses(script) {
			if u.Line < 1 || u.Line > lines || !strings.Contains(script, u.Name) {
				t.Fatalf("%q: %+v", script, u)
			}
		}
	})
}
