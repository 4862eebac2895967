package envspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

// beyond are the documents of the corpus that only Parse can refuse, and why a JSON Schema can't.
var beyond = map[string]string{
	"duplicate-key":                 "a JSON value has each key once",
	"two-documents":                 "a schema is asked about one document",
	"anchor":                        "anchors are gone when a document has become a value",
	"alias":                         "aliases are resolved when a document has become a value",
	"binary-tag":                    "tags are gone when a document has become a value",
	"own-tag":                       "tags are gone when a document has become a value",
	"image-yes":                     "yes is a text in YAML 1.2, and a text is what an image is",
	"start-date":                    "a date is a text in YAML 1.2, and a text is what a script is",
	"start-on":                      "on is a text in YAML 1.2, and a text is what a script is",
	"cpu-exponent":                  "1e1 is the number 10",
	"cpu-hexadecimal":               "0x10 is the number 16",
	"cpu-octal":                     "02 is the number 2",
	"cpu-underscore":                "1_0 is the number 10 to YAML 1.1",
	"cpu-three-decimals":            "multipleOf 0.01 would be computed in binary floating point by editors, which then refuse 0.25",
	"memory-too-little":             "an amount is a text, and a schema compares none",
	"memory-too-much":               "an amount is a text, and a schema compares none",
	"memory-not-whole":              "an amount is a text, and a schema doesn't compute",
	"folders-duplicate-key":         "a JSON value has each key once",
	"variables-duplicate":           "a JSON value has each key once",
	"variables-duplicate-key":       "a JSON value has each key once",
	"folders-twice-in-two-ways":     "a text and a group are different values, whatever they mean",
	"folders-anchor":                "anchors are gone when a document has become a value",
	"variables-alias":               "aliases are resolved when a document has become a value",
	"variables-tag":                 "tags are gone when a document has become a value",
	"variables-binary":              "tags are gone when a document has become a value",
	"variables-date":                "a date is a text in YAML 1.2",
	"variables-yes":                 "yes is a text in YAML 1.2",
	"variables-on":                  "on is a text in YAML 1.2",
	"variables-total":               "a schema adds no lengths up",
	"variables-large-text-in-bytes": "a schema counts characters, not bytes",
}

// broken are the documents of the corpus that are not YAML: there is no value a schema could be asked about.
var broken = map[string]bool{"not-yaml": true, "tab-indentation": true, "unclosed-quote": true, "unclosed-flow": true, "latin-1": true, "control-character": true}

// anyFile stands for a repository that has each file.
func anyFile(string) ([]byte, error) { return []byte("true\n"), nil }

func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("environment.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("environment.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance is a document as the value that an editor asks the schema about.
func instance(b []byte) (any, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	if doc.Kind == 0 {
		return nil, nil
	}
	return jsonValue(&doc)
}

func jsonValue(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.DocumentNode:
		return jsonValue(n.Content[0])
	case yaml.AliasNode:
		return jsonValue(n.Alias)
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			v, err := jsonValue(c)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		group := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, err := jsonValue(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			group[n.Content[i].Value] = v
		}
		return group, nil
	}
	var v any
	switch n.ShortTag() {
	case "!!int", "!!float":
		// As written, so that 0.07 is not what binary floating point makes of it.
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
		if b, err := json.Marshal(v); err == nil {
			return json.Number(b), nil
		}
		return n.Value, nil // .inf and .nan, which JSON has not
	case "!!bool":
		err := n.Decode(&v)
		return v, err
	case "!!null":
		return nil, nil
	}
	return n.Value, nil
}

func corpus(t testing.TB, kind string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "corpus", kind, "*.yml"))
	if err != nil || len(files) < 50 {
		t.Fatalf("the corpus has %d files of kind %s: %v", len(files), kind, err)
	}
	docs := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		docs[strings.TrimSuffix(filepath.Base(f), ".yml")] = b
	}
	return docs
}

func TestSchemaAndParseAgreeOnTheCorpus(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	for name, b := range corpus(t, "valid") {
		if _, err := Parse(name, b, anyFile); err != nil {
			t.Errorf("valid/%s: Parse refuses it: %v", name, err)
		}
		v, err := instance(b)
		if err != nil {
			t.Errorf("valid/%s: %v", name, err)
		} else if err := schema.Validate(v); err != nil {
			t.Errorf("valid/%s: the schema refuses it: %v", name, err)
		}
	}
	invalid := corpus(t, "invalid")
	for name, b := range invalid {
		var p Problems
		if _, err := Parse(name, b, anyFile); !errors.As(err, &p) {
			t.Errorf("invalid/%s: Parse takes it", name)
		}
		v, err := instance(b)
		if broken[name] {
			if err == nil {
				t.Errorf("invalid/%s is said not to be YAML, and is", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("invalid/%s: %v", name, err)
			continue
		}
		err = schema.Validate(v)
		switch reason := beyond[name]; {
		case err == nil && reason == "":
			t.Errorf("invalid/%s: the schema takes it", name)
		case err != nil && reason != "":
			t.Errorf("invalid/%s: the schema refuses it, so it is not beyond JSON Schema (%s): %v", name, reason, err)
		}
	}
	for name := range beyond {
		if invalid[name] == nil {
			t.Errorf("%s is said to be beyond JSON Schema, and is not in the corpus", name)
		}
	}
	for name := range broken {
		if invalid[name] == nil {
			t.Errorf("%s is said not to be YAML, and is not in the corpus", name)
		}
	}
}

func TestSchemaTakesWhatFormatWrites(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	for _, s := range []Spec{{}, full, {Image: "a/b", CPU: 0.01, Memory: 64 << 20}, {Image: "[::1]:5000/ab", CPU: 1024, Memory: 64 << 40},
		{Bootstrap: "\x01\x7f\n", Start: "\ud7ff\n"}, {CPU: 0.29, Memory: 1025 << 20}, {Start: strings.Repeat("x", MaxScript)}} {
		v, err := instance(Format(s))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%.80q: %v", Format(s), err)
		}
	}
	long := "start: \"" + strings.Repeat("x", MaxScript+1) + "\"\n"
	v, err := instance([]byte(long))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse("e.yml", []byte(long), anyFile); err == nil || schema.Validate(v) == nil {
		t.Error("a script that is too long is taken")
	}
}

// References are made of pieces that are each right or nearly so, in all orders.
func TestSchemaAndParseAgreeOnImages(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	pieces := []string{"node", "a", "bc", "B", "/", "/", ":", ":", "@", ".", "-", "_", "22", "example.com", "localhost:5000", "sha256:", "@sha256:" + strings.Repeat("ab", 32),
		" ", "$", "ü", "[::1]"}
	random := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 20_000 {
		ref := ""
		for range 1 + random.IntN(6) {
			ref += pieces[random.IntN(len(pieces))]
		}
		// Whether a host has room for two colons, or a port for none, is up to the net/url of the Go that builds us.
		if host, _, slash := strings.Cut(strings.TrimSpace(ref), "/"); slash && (strings.Count(host, ":") > 1 || strings.Contains(host, "[")) && !strings.HasPrefix(ref, "[::1]/") {
			continue
		}
		err := checkImage(strings.TrimSpace(ref))
		if strings.TrimSpace(ref) == "" {
			err = errors.New("empty")
		}
		says := schema.Validate(map[string]any{"image": ref})
		if (err == nil) != (says == nil) {
			t.Fatalf("image %q: Parse says %v, the schema %v", ref, err, says)
		}
		if err == nil {
			taken++
		}
	}
	if taken < 1000 || taken > 19_000 {
		t.Errorf("%d of 20000 references are right: too few or too many to compare", taken)
	}
}

// Patterns, files, names and Variables are made of pieces that are each right or nearly so, in all orders.
func TestSchemaAndParseAgreeOnWhatIsPutTogether(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	random := rand.New(rand.NewPCG(7, 8))
	of := func(pieces []string, most int) string {
		v := ""
		for range 1 + random.IntN(most) {
			v += pieces[random.IntN(len(pieces))]
		}
		return v
	}
	paths := []string{"a", "b.c", "/", "/", "..", ".", ".git", "~", " ", "\\", "é", "\t", "\u2028", "...", "-"}
	globs := append([]string{"*", "**", "**/", "?", "[", "]", "[a-z]", "[^a]", "^", "-"}, paths...)
	names := []string{"A", "b", "_", "1", "-", " ", "CLAUDE_HUB", "claude_hub_", "PWD", "UID", "É", "="}
	groups := map[string]string{"value": `"x"`, "sensitive": "true", "link": "B", "build": "true", "note": "why", "other": "z"}
	for what, c := range map[string]struct {
		make  func() string
		check func(string) error
		doc   func(string) any
	}{
		"pattern": {func() string { return of(globs, 5) }, func(v string) error { return checkPattern("p", v) }, func(v string) any {
			if random.IntN(2) == 0 {
				return map[string]any{"dependency-folders": []any{v}}
			}
			return map[string]any{"dependency-folders": []any{map[string]any{"pattern": v}}}
		}},
		"beside": {func() string { return of(globs, 3) }, func(v string) error { return checkBeside("b", v) }, func(v string) any {
			return map[string]any{"dependency-folders": []any{map[string]any{"pattern": "a", "beside": v}}}
		}},
		"file": {func() string { return of(paths, 5) }, func(v string) error { return checkFile("f", v) }, func(v string) any { return map[string]any{"start": map[string]any{"file": v}} }},
		"name": {func() string { return of(names, 3) }, CheckName, func(v string) any { return map[string]any{"variables": map[string]any{v: "x"}} }},
		"link": {func() string { return of(names, 3) }, CheckName, func(v string) any {
			return map[string]any{"variables": map[string]any{"A": map[string]any{"link": v}}}
		}},
		"variable": {func() string {
			v := "variables: {A: {"
			for key, value := range groups {
				if random.IntN(3) == 0 {
					if value == "true" && random.IntN(2) == 0 {
						value = "false"
					}
					v += key + ": " + value + ", "
				}
			}
			return v + "}}\n"
		}, func(v string) error {
			_, err := Parse("e", []byte(v), nil)
			return err
		}, func(v string) any {
			doc, err := instance([]byte(v))
			if err != nil {
				t.Fatal(err)
			}
			return doc
		}},
	} {
		taken := 0
		for range 4000 {
			v := c.make()
			err, says := c.check(v), schema.Validate(c.doc(v))
			if (err == nil) != (says == nil) {
				t.Fatalf("%s %q: Parse says %v, the schema %v", what, v, err, says)
			}
			if err == nil {
				taken++
			}
		}
		if taken < 200 || taken > 3800 {
			t.Errorf("%d of 4000 are right of what is a %s: too few or too many to compare", taken, what)
		}
	}
}

func TestSchemaSaysWhatTheCodeSays(t *testing.T) {
	t.Parallel()
	type property struct {
		Description   string
		Default       any
		MaxLength     int
		MaxItems      int
		MaxProperties int
		Minimum       float64
		Maximum       float64
	}
	var s struct {
		Schema               string `json:"$schema"`
		ID                   string `json:"$id"`
		AdditionalProperties any
		Properties           map[string]property
	}
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Schema != "http://json-schema.org/draft-07/schema#" || !strings.HasSuffix(s.ID, "/environment.v1.json") || s.AdditionalProperties != false {
		t.Errorf("the schema's head: %+v", s)
	}
	for _, key := range keys {
		if p, ok := s.Properties[key]; !ok || len(p.Description) < 40 || !strings.Contains(p.Description, "Left out") {
			t.Errorf("property %s doesn't say what it is and what leaving it out means: %+v", key, p)
		}
	}
	if len(s.Properties) != len(keys) {
		t.Errorf("%d properties for %d keys", len(s.Properties), len(keys))
	}
	got := map[string]any{"image": s.Properties["image"].Default, "image length": s.Properties["image"].MaxLength, "bootstrap": s.Properties["bootstrap"].MaxLength,
		"start": s.Properties["start"].MaxLength, "cpu": s.Properties["cpu"].Maximum,
		"folders": s.Properties["dependency-folders"].MaxItems, "variables": s.Properties["variables"].MaxProperties}
	want := map[string]any{"image": DefaultImage, "image length": MaxImage, "bootstrap": MaxScript, "start": MaxScript, "cpu": float64(maxCPU),
		"folders": MaxFolders, "variables": MaxVariables}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the schema says %v, the code %v", got, want)
	}
	first := Schema()
	first[0] = 'x'
	if Schema()[0] == 'x' {
		t.Error("a caller can change the schema for everybody")
	}
}
