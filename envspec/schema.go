package envspec

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema is the JSON Schema (draft-07) of the document, for editors: the descriptions are what they show. It takes every
// document that [Parse] takes. What it can't say, Parse alone refuses: keys that stand twice, unquoted words that only
// some YAML readers take for text, more than two decimals, sizes in bytes. Its $id has a version, which counts up when a
// document that was right is wrong.
func Schema() []byte { return slices.Clone(schema) }
