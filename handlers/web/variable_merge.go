package web

import (
	"maps"
	"strings"

	"github.com/claude-hub/claude-hub/envspec"
)

// typedHere is no input: in a form that is compared it says how a value came that its text doesn't show.
const typedHere = "value-given"

// merge compares a Variable's form with what somebody else saved of it, and with what both began with (nil: unknown), as
// threeWay does: what only they changed is taken over into the form. What is a Sensitive value is never in it. again tells
// that a value was given which has to be given again.
func (t typedVariable) merge(theirs, was map[string]string) (conflicts []FieldConflict, taken []TakenField, again bool) {
	form, theirs := t.form, maps.Clone(theirs)
	exposes := was["kind"] == envspec.KindPlain && form["kind"] == envspec.KindPlain && theirs["kind"] == envspec.KindSensitive && (t.isFile || saidWhat(form) != saidWhat(was))
	switch {
	case form["kind"] == envspec.KindLink:
	case t.isFile || t.again || exposes, form["kind"] == envspec.KindSensitive && t.given:
		form[typedHere] = "yours"
		theirs[typedHere] = "theirs" // whether two Sensitive values are the same is not for a page to say
	}
	again = t.retype()
	takesWhat := false
	conflicts, taken = threeWay([]compared{
		{"Name", func(f map[string]string) string { return f["name"] }, func(to, from map[string]string) { to["name"] = from["name"] }},
		// One choice: what was given as a value of one kind must not be saved as one of another.
		{"Kind and value", saidWhat, func(to, from map[string]string) {
			takesWhat = true
			to["kind"], to["value"], to["link"] = from["kind"], from["value"], from["link"]
		}},
		{"Note", func(f map[string]string) string { return f["note"] }, func(to, from map[string]string) { to["note"] = from["note"] }},
	}, form, theirs, was)
	delete(form, typedHere)
	switch {
	case takesWhat:
		again = false
	case exposes: // what they made Sensitive stays so, and what was given meanwhile isn't shown, unless somebody decides otherwise
		form["kind"], again = envspec.KindSensitive, true
		taken = append(taken, TakenField{"Kind", sentenceCase(envspec.KindSensitive)})
	}
	if again {
		form["value"] = ""
	}
	if form["kind"] != envspec.KindPlain && theirs["kind"] != envspec.KindPlain { // a Plain one has no choice there
		c, k := threeWay([]compared{{"Available at build", saidBuild, func(to, from map[string]string) { to["build"] = from["build"] }}}, form, theirs, was)
		conflicts, taken = append(conflicts, c...), append(taken, k...)
	}
	return conflicts, taken, again
}

// retype tells that a value was given which the form can't be shown with: a file's, or a Sensitive one.
func (t typedVariable) retype() bool {
	return t.again || t.isFile || t.given && t.form["kind"] != envspec.KindPlain
}

// saidWhat is what a Variable's form says of kind and value, as a person reads it.
func saidWhat(form map[string]string) string {
	given := form[typedHere]
	switch form["kind"] {
	case envspec.KindLink:
		return "Link to the Shared variable " + form["link"]
	case envspec.KindSensitive:
		switch given {
		case "yours":
			return "Sensitive, with the value that you gave (hidden)"
		case "theirs":
			return "Sensitive, with the value that is saved now (hidden)"
		}
		return "Sensitive (hidden)"
	}
	switch value := strings.ReplaceAll(unix(form["value"]), "\r", "\n"); { // as browsers send it back
	case given == "yours":
		return "Plain, with the value that you gave (not shown)"
	case value == "":
		return "Plain, empty"
	default:
		return "Plain: " + value
	}
}

func saidBuild(form map[string]string) string {
	if form["build"] == "" {
		return "no"
	}
	return "yes"
}
