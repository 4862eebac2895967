package web

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// maxParts is how many fields a form has at most: the preview of an import has four for each Variable.
const maxParts = 4000

// posted is a form that arrived. Files are held in memory only: net/http's own reading may put them on the disk, and they
// hold values of Variables.
type posted struct {
	values url.Values
	files  map[string]file
}

type file struct {
	name string
	data []byte
}

// readForm reads a form in both ways that browsers send one. How large it may be is for the server to say (bodyLimit).
func readForm(r *http.Request) (posted, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		err := parseForm(r)
		return posted{values: r.PostForm}, err
	}
	in := posted{url.Values{}, map[string]file{}}
	parts, err := r.MultipartReader()
	if err != nil {
		return in, errors.Join(errInput, err)
	}
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return in, nil
		}
		if err != nil || n == maxParts {
			return in, unreadable(err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return in, unreadable(err)
		}
		switch name := part.FormName(); {
		case part.FileName() != "":
			in.files[name] = file{part.FileName(), data}
		default: // a file field that was left empty has no name and no bytes
			in.values.Add(name, string(data))
		}
	}
}

// Get is a field as it was sent.
func (p posted) Get(field string) string { return p.values.Get(field) }

// text is a field that may have several lines. Browsers send each line break as CR LF, whatever stood there: it is LF again.
func (p posted) text(field string) string { return unix(p.values.Get(field)) }

// number is a field that only the page itself fills in.
func (p posted) number(field string) (int64, error) {
	n, err := strconv.ParseInt(p.values.Get(field), 10, 64)
	if err != nil {
		return 0, errInput
	}
	return n, nil
}

// input is the value that a person gave, from the text field of that name or byte for byte from the file field beside it.
// both says that there were two.
func (p posted) input(field string) (value string, given, both bool) {
	typed := p.text(field)
	f, isFile := p.files[field+"-file"]
	switch {
	case isFile:
		return string(f.data), true, typed != ""
	default:
		return typed, typed != "", false
	}
}

// again tells that a value was given before, isn't in the form any more, and wasn't given again: without it the rest would be
// saved as if it had never been given.
func (p posted) again(given bool) bool { return p.values.Get("retype") != "" && !given }

// giveAgain is said at its field then.
const giveAgain = "give the value again: the one that you gave before was not kept"

// unix gives text the newlines it has everywhere but in a browser's form.
func unix(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// kept is what was typed, unless that is what a browser makes of before: then nobody changed anything, and before stays as
// it is byte for byte. A browser takes each CR, alone or before LF, for a line break.
func kept(before, typed string) string {
	if typed == strings.ReplaceAll(unix(before), "\r", "\n") {
		return before
	}
	return typed
}

// variableName is the one in the address.
func variableName(r *http.Request) string { return mux.Vars(r)["variable"] }

func statusOf(f *fault.Error) int { return request.Status(f.Code) }
