package envspec

import (
	"bytes"

	"gopkg.in/yaml.v3"
)

// Place says where a line of a script, from 1, stands in a document that [Parse] takes: line and column from 1. exact
// is false when lines of the script are no lines of the document (folded, or in quotes): then it is where the value begins.
func Place(doc []byte, path string, line int) (docLine, column int, exact bool) {
	return newPlaces(doc).of(path, line)
}

// places finds places in one document.
type places struct {
	doc     []byte
	root    *yaml.Node // nil when the document has no keys
	entries []entry
}

func newPlaces(doc []byte) places {
	p := places{doc: bytes.TrimPrefix(doc, []byte("\ufeff"))}
	var root yaml.Node
	if yaml.Unmarshal(p.doc, &root) == nil && root.Kind == yaml.DocumentNode && root.Content[0].Kind == yaml.MappingNode {
		p.root = root.Content[0]
		p.entries = scan(p.doc, p.root).entries
	}
	return p
}

func (p places) of(path string, line int) (docLine, column int, exact bool) {
	doc := p.doc
	for n, e := range p.entries {
		if e.key != path {
			continue
		}
		value := p.root.Content[2*n+1]
		docLine = 1
		begin := 0
		for i := 0; i < e.value; {
			size := lineBreak(doc[i:])
			if size > 0 {
				docLine, begin = docLine+1, i+size
			}
			i += max(1, size)
		}
		column = 1 + len([]rune(string(doc[begin:e.value])))
		switch {
		case value.Style&yaml.LiteralStyle != 0:
			i := e.value
			for range line {
				for i < len(doc) && lineBreak(doc[i:]) == 0 {
					i++
				}
				i += lineBreak(doc[i:])
			}
			rest := doc[i:]
			return docLine + line, 1 + len(rest) - len(bytes.TrimLeft(rest, " ")), true
		case line == 1 && value.Style&yaml.FoldedStyle == 0:
			return docLine, column, true
		}
		return docLine, column, false
	}
	return 1, 1, false
}
