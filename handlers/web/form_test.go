package web

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/envspec"
)

func formRequest(t *testing.T, write func(*multipart.Writer)) *http.Request {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	write(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", &b)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

func TestAFormIsReadWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	field := func(w *multipart.Writer, name, value string) {
		if err := w.WriteField(name, value); err != nil {
			t.Fatal(err)
		}
	}
	attach := func(w *multipart.Writer, name, file, content string) {
		f, err := w.CreateFormFile(name, file)
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in, err := readForm(formRequest(t, func(w *multipart.Writer) {
		field(w, "value", "one\r\ntwo\r\n")
		attach(w, "value-file", "", "")
		attach(w, "other-file", "a.bin", "\r\n\x00\xff")
		attach(w, "empty-file", "empty", "")
	}))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string][3]any{
		"value": {"one\ntwo\n", true, false}, "other": {"\r\n\x00\xff", true, false}, "empty": {"", true, false}, "absent": {"", false, false},
	} {
		value, given, both := in.input(field)
		if got := [3]any{value, given, both}; got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if _, err := readForm(formRequest(t, func(w *multipart.Writer) {
		for i := range maxParts + 1 {
			field(w, "f"+strconv.Itoa(i), "")
		}
	})); err == nil {
		t.Error("a form of any number of fields is read")
	}
	r := formRequest(t, func(w *multipart.Writer) { field(w, "base", "1") })
	cut, _ := http.NewRequest(http.MethodPost, "/", strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"base\"\r\n\r\n1"))
	cut.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	limited := httptest.NewRequest(http.MethodPost, "/", http.MaxBytesReader(nil, r.Body, 10))
	limited.Header = r.Header
	nameless, _ := http.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	nameless.Header.Set("Content-Type", "multipart/form-data")
	for what, c := range map[string]struct {
		bad  *http.Request
		says string
	}{
		"cut off": {cut, "did not arrive whole"}, "too long": {limited, "larger than the 10 bytes that are possible"}, "without a boundary": {nameless, "did not arrive whole"},
	} {
		if _, err := readForm(c.bad); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("a form that is %s: %v", what, err)
		}
	}
}

func TestWhatNobodyChangedStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, typed, want string }{
		{"a\r\nb\rc\n", "a\nb\nc\n", "a\r\nb\rc\n"}, {"a\r\nb", "a\nb\n", "a\nb\n"}, {"", "", ""}, {"a", "", ""}, {"\r", "\n", "\r"}, {"a\r\r\n", "a\n\n", "a\r\r\n"},
	} {
		if got := kept(c.before, c.typed); got != c.want {
			t.Errorf("kept(%q, %q) = %q, want %q", c.before, c.typed, got, c.want)
		}
	}
}

func TestDependencyFoldersAreWrittenOneALine(t *testing.T) {
	t.Parallel()
	for _, all := range [][]envspec.Folder{
		envspec.DefaultFolders(), {}, {{Pattern: "**/a b", Beside: "c d.json"}, {Pattern: "beside"}, {Pattern: "x/beside", Beside: "beside"}},
	} {
		if got := foldersOf(strings.ReplaceAll(patternsOf(all), "\n", "  \n\n")); !reflect.DeepEqual(got, all) {
			t.Errorf("%v comes back as %v", all, got)
		}
	}
}

func TestWhatAPageCarriesOpensOnlyForItsBrowserAndPurpose(t *testing.T) {
	t.Parallel()
	one, other := &Web{}, &Web{}
	with := func(cookie string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: "claude-hub", Value: cookie})
		}
		return r
	}
	sealed, err := one.carry(with("a-cookie"), "purpose", []byte("a value"))
	if err != nil || strings.Contains(sealed, "value") {
		t.Fatalf("%q, %v", sealed, err)
	}
	if text, ok, err := other.uncarry(with("a-cookie"), "purpose", sealed); string(text) != "a value" || !ok || err != nil {
		t.Errorf("another Hub can't go on: %q, %v, %v", text, ok, err)
	}
	changed := "A"
	if sealed[0] == 'A' {
		changed = "B"
	}
	for what, open := range map[string]func() (bool, error){
		"another browser": func() (bool, error) { _, ok, err := one.uncarry(with("b-cookie"), "purpose", sealed); return ok, err },
		"another purpose": func() (bool, error) { _, ok, err := one.uncarry(with("a-cookie"), "else", sealed); return ok, err },
		"a changed text": func() (bool, error) {
			_, ok, err := one.uncarry(with("a-cookie"), "purpose", changed+sealed[1:])
			return ok, err
		},
		"no text":   func() (bool, error) { _, ok, err := one.uncarry(with("a-cookie"), "purpose", ""); return ok, err },
		"no base64": func() (bool, error) { _, ok, err := one.uncarry(with("a-cookie"), "purpose", "?"); return ok, err },
	} {
		if ok, err := open(); ok || err != nil {
			t.Errorf("it opens for %s, or is an error: %v", what, err)
		}
	}
	if _, err := one.carry(with(""), "purpose", nil); err == nil {
		t.Error("who isn't signed in can have something carried")
	}
}
