package redact

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/runner/redact/redacttest"
)

// hard holds what encoders treat differently.
const hard = `pa'ss"w\o/rd &$1<2>+=#~é€ !`

func addTo(tb testing.TB, set *Set, name, value string) {
	tb.Helper()
	if err := set.Add(name, []byte(value)); err != nil {
		tb.Fatal(err)
	}
}

// formTable is written by hand, or by programs that are not this package, from the value hard.
var formTable = map[string]string{
	"as it is":                             hard,
	"spaced":                               strings.Join(strings.Split("pa'ss\"w\\o/rd", ""), " ") + " &$1<2>+=#~é€ !",
	"in UTF-16, but for what is not ASCII": "p\x00a\x00'\x00s\x00s\x00\"\x00w\x00\\\x00o\x00/\x00r\x00d\x00 \x00&\x00$\x001\x00<\x002\x00>\x00+\x00=\x00#\x00~\x00é€ !",
	"coloured":                             "\x1b[1mpa's\x1b[0;32ms\"w\\o/rd &$1<2>+=\x1b[K#~é€ !",
	"in a window title":                    "\x1b]0;" + hard + "\a",
	"base64":                               "cGEnc3Mid1xvL3JkICYkMTwyPis9I37DqeKCrCAh",
	"base64, wrapped":                      "cGEnc3Mid1xvL3JkIC\nYkMTwyPis9I37DqeKCrCAh",
	"base64 after a byte":                  "OnBhJ3NzIndcby9yZCAmJDE8Mj4rPSN+w6nigqwgIQ==",
	"base64 after two bytes":               "dTpwYSdzcyJ3XG8vcmQgJiQxPDI+Kz0jfsOp4oKsICE=",
	"base64url after two bytes":            "dTpwYSdzcyJ3XG8vcmQgJiQxPDI-Kz0jfsOp4oKsICE",
	"hex":                                  "7061277373\n22775c6f2f7264202624313c323e2b3d237ec3a9e282ac2021",
	"HEX":                                  "706127737322775C6F2F7264202624313C323E2B3D237EC3A9E282AC2021",
	"hex as od prints it":                  "70 61 27 73 73 22 77 5c 6f 2f 72 64 20 26 24 31\n 3c 32 3e 2b 3d 23 7e c3 a9 e2 82 ac 20 21",
	"query":                                "pa%27ss%22w%5Co%2Frd+%26%241%3C2%3E%2B%3D%23~%C3%A9%E2%82%AC+%21",
	"query, %20":                           "pa%27ss%22w%5Co%2Frd%20%26%241%3C2%3E%2B%3D%23~%C3%A9%E2%82%AC%20%21",
	"query, lower case":                    "pa%27ss%22w%5co%2frd%20%26%241%3c2%3e%2b%3d%23~%c3%a9%e2%82%ac%20%21",
	"encodeURIComponent":                   "pa'ss%22w%5Co%2Frd%20%26%241%3C2%3E%2B%3D%23~%C3%A9%E2%82%AC%20!",
	"encodeURI":                            "pa'ss%22w%5Co/rd%20&$1%3C2%3E+=#~%C3%A9%E2%82%AC%20!",
	"path":                                 "pa%27ss%22w%5Co%2Frd%20&$1%3C2%3E+=%23~%C3%A9%E2%82%AC%20%21",
	"form":                                 "pa%27ss%22w%5Co%2Frd+%26%241%3C2%3E%2B%3D%23%7E%C3%A9%E2%82%AC+%21",
	"JSON":                                 `pa'ss\"w\\o/rd &$1<2>+=#~é€ !`,
	"JSON for HTML":                        `pa'ss\"w\\o/rd \u0026$1\u003c2\u003e+=#~é€ !`,
	"JSON in ASCII":                        `pa'ss\"w\\o/rd &$1<2>+=#~\u00e9\u20ac !`,
	"JSON with escaped slashes":            `pa'ss\"w\\o\/rd &$1<2>+=#~é€ !`,
	"JSON in JSON":                         `pa'ss\\\"w\\\\o/rd &$1<2>+=#~é€ !`,
	"Go %q":                                `pa'ss\"w\\o/rd &$1<2>+=#~é€ !`,
	"Go %+q":                               `pa'ss\"w\\o/rd &$1<2>+=#~\u00e9\u20ac !`,
	"Python repr of bytes":                 `pa\'ss"w\\o/rd &$1<2>+=#~\xc3\xa9\xe2\x82\xac !`,
	"Python repr":                          `pa\'ss"w\\o/rd &$1<2>+=#~é€ !`,
	"shell, single quotes":                 `pa'\''ss"w\o/rd &$1<2>+=#~é€ !`,
	"shell, single quotes in double":       `pa'"'"'ss"w\o/rd &$1<2>+=#~é€ !`,
	"shell, double quotes":                 `pa'ss\"w\\o/rd &\$1<2>+=#~é€ !`,
	"bash %q":                              `pa\'ss\"w\\o/rd\ \&\$1\<2\>+=#~é€\ \!`,
	"bash $''":                             `pa\'ss"w\\o/rd &$1<2>+=#~\303\251\342\202\254 !`,
	"quotes escaped":                       `pa'ss\"w\o/rd &$1<2>+=#~é€ !`,
	"HTML of Go":                           `pa&#39;ss&#34;w\o/rd &amp;$1&lt;2&gt;+=#~é€ !`,
	"HTML of others":                       `pa&#x27;ss&quot;w\o/rd &amp;$1&lt;2&gt;+=#~é€ !`,
	"XML":                                  `pa&apos;ss&quot;w\o/rd &amp;$1&lt;2&gt;+=#~é€ !`,
	"SQL":                                  `pa''ss"w\o/rd &$1<2>+=#~é€ !`,
	"CSV":                                  `pa'ss""w\o/rd &$1<2>+=#~é€ !`,
	"in a longer line":                     "x" + hard + "y",
}

func TestEveryFormIsMasked(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "V", hard)
	for name, form := range formTable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := set.Text("<" + form + ">").String()
			rest := strings.Trim(strings.Replace(got, Mask, "", 1), "<>")
			// What may stay: an escape sequence before the value, base64 characters that belong half to a neighbour.
			if !strings.Contains(got, Mask) || len(rest) > 6 || strings.Contains(rest, "rd") {
				t.Errorf("%q came out as %q", form, got)
			}
		})
	}
}

// TestBashPrintsNoValue lets bash itself print values in each of its ways, so that the table is not all there is.
func TestBashPrintsNoValue(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal("this test needs bash: install the package bash")
	}
	values := map[string]string{
		"hard":      hard,
		"key":       "-----BEGIN KEY-----\nMIIEowIBAAKCAQEAx1\nb3BlbnNzaC1rZXktdjE\n-----END KEY-----\n",
		"control":   "tab\there\x01bell\a esc\x1b[31m end\x7f del",
		"backslash": `C:\temp\new "x" 'y'`,
		"hash":      "#not a comment~",
		"tilde":     "~root/secret,key",
		"globs":     "a*b?c[d]e{f,g}h;i|j(k)^l`m`",
	}
	ways := map[string]string{
		"echo":         `echo "$V"`,
		"printf %q":    `printf '%q\n' "$V"`,
		"@Q":           `echo "${V@Q}"`,
		"declare":      `declare -p V`,
		"export":       `export -p`,
		"set":          `set`,
		"trace":        `set -x; : "$V"`,
		"trace, split": `set -f -x; : $V`,
		"assigned":     `set -x; W=$V`,
		"base64":       `printf %s "$V" | base64`,
		"echo base64":  `echo "user:$V" | base64 -w20`,
		"od":           `printf %s "$V" | od -An -v -tx1`,
		"indented":     `echo "$V" | sed 's/^/    /'`,
		"CRLF":         `echo "$V" | sed 's/$/\r/'`,
		"spread":       `printf %s "$V" | sed 's/./& /g'`,
		"reversed no":  `echo "${V:0:0}nothing"`,
	}
	for vname, v := range values {
		for _, locale := range []string{"C", "C.UTF-8"} {
			for way, script := range ways {
				t.Run(vname+"/"+locale+"/"+way, func(t *testing.T) {
					t.Parallel()
					var set Set
					addTo(t, &set, "V", v)
					c := exec.Command(bash, "--norc", "-c", script)
					c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=" + locale, "V=" + v}
					out, err := c.CombinedOutput()
					if err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					got := set.Text(string(out)).String()
					if way == "reversed no" {
						if got != "nothing\n" {
							t.Errorf("ordinary output became %q", got)
						}
						return
					}
					if !strings.Contains(got, Mask) {
						t.Errorf("bash printed %q, which came out as %q", out, got)
					}
					for _, part := range []string{"rd &$1", "MIIEow", "b3Blbn", "bell", "temp", "not a com", "secret,", "[d]"} {
						if strings.Contains(v, part) && strings.Contains(got, part) {
							t.Errorf("%q is left in %q", part, got)
						}
					}
				})
			}
		}
	}
}

func TestOneLineOfALongValueIsMasked(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "KUBECONFIG", "apiVersion: v1\nshort\n  token: abcdefghijkl \"q\"\n------------\nlast-line-of-it\n")
	for in, want := range map[string]string{
		"token: abcdefghijkl \"q\"":   "***",
		`token: abcdefghijkl \"q\"`:   "***",
		"see last-line-of-it, please": "see ***, please",
		"short":                       "short",
		"------------":                "------------",
		"apiVersion: v1":              "***",
	} {
		if got := set.Text(in).String(); got != want {
			t.Errorf("%q came out as %q, want %q", in, got, want)
		}
	}
}

func TestStringsInsideJSONAndURLsAreValuesThemselves(t *testing.T) {
	t.Parallel()
	var set Set
	addTo(t, &set, "ACCOUNT", `{"type":"account","key":"-----BEGIN X-----\nMIIEowIBAAKC\n-----END X-----\n","deep":[{"pw":"hunter2hunter2"}],"n":1}`)
	addTo(t, &set, "DATABASE_URL", "postgres://app:s%40cretpass@db:5432/x")
	for _, in := range []string{"MIIEowIBAAKC", "hunter2hunter2", "s@cretpass", "s%40cretpass",
		base64.StdEncoding.EncodeToString([]byte("hunter2hunter2!!"))} {
		got := set.Text(in).String()
		if !strings.Contains(got, Mask) || len(got) > len(Mask)+6 {
			t.Errorf("%q came out as %q", in, got)
		}
	}
	for _, in := range []string{`{"a":["b"],"n":1}`, "account", "type", "postgres://app:other@db:5432/x"} {
		if got := set.Text(in).String(); got != in {
			t.Errorf("%q came out as %q", in, got)
		}
	}
}

func TestALongValueIsOneMaskAndItsPartsAreMaskedToo(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for i := 0; b.Len() < 64<<10; i++ {
		fmt.Fprintf(&b, "%x,", i*i)
	}
	v := b.String()[:64<<10]
	var set Set
	addTo(t, &set, "BIG", v)
	for name, form := range map[string]string{
		"plain":  v,
		"base64": base64.StdEncoding.EncodeToString([]byte(v)),
		"hex":    fmt.Sprintf("%x", v),
	} {
		if got := set.Text("[" + form + "]").String(); strings.TrimRight(got, "=]") != "["+Mask {
			t.Errorf("%s came out as %.100q of %d bytes", name, got, len(got))
		}
	}
	if got := set.Text(v[1000:2000]).String(); !strings.Contains(got, Mask) || len(got) > 500 {
		t.Errorf("a part came out as %.100q of %d bytes", got, len(got))
	}
}

func TestAValueTooShortToHideIsRefused(t *testing.T) {
	t.Parallel()
	for v, ok := range map[string]bool{"12345678": true, "1234567": false, "1234567 ": false, "        \n": false,
		"1 2 3 4 5 6 7 8": true, "éééé": true, "": false} {
		var set Set
		if err := set.Add("V", []byte(v)); (err == nil) != ok {
			t.Errorf("Add(%q) = %v", v, err)
		}
		if n := set.Len(); (n == 1) != ok {
			t.Errorf("after Add(%q) the Set has %d values", v, n)
		}
		if err := Check([]byte(v)); (err == nil) != ok {
			t.Errorf("Check(%q) = %v", v, err)
		}
	}
}

func TestOrdinaryOutputIsLeftAlone(t *testing.T) {
	t.Parallel()
	var set Set
	for i, v := range redacttest.Values(1000) {
		addTo(t, &set, fmt.Sprint("V", i), v)
	}
	log := string(redacttest.Log(2 << 20))
	if got := set.Text(log).String(); got != log {
		t.Error("something was masked in a log without values")
	}
}
