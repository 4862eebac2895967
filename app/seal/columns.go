package seal

import (
	"fmt"
	"regexp"
)

// Column is a column of sealed values. What the schema must have for it (a test looks, on both databases):
//
//	value        BYTEA,
//	value_key_id TEXT REFERENCES encryption_keys (key_id),
//	CHECK ((value IS NULL) = (value_key_id IS NULL))
//
// and an index that begins with the key column and the row's id. NULL is a row without a value, also one that Reset
// cleared. Table and Column are part of what a value is bound to: after renaming one, nothing opens any more.
type Column struct {
	Table, Column string
	KeyColumn     string // holds the id of the key that sealed it
	ID            string // the TEXT column with the row's id, its primary key
	LostAt        string // "", or a BIGINT column that Reset sets to the time (Unix ms) when it clears the row's value
}

// columns is every column of sealed values in the schema. Checking at start, rotating and resetting walk this list and
// nothing else.
var columns = []Column{
	{Table: "variable_values", Column: "sealed", KeyColumn: "sealed_key_id", ID: "id", LostAt: "lost_at"},
	{Table: "shared_variables", Column: "sealed", KeyColumn: "sealed_key_id", ID: "id", LostAt: "lost_at"},
	{Table: "github_secrets", Column: "sealed", KeyColumn: "sealed_key_id", ID: "id", LostAt: "lost_at"},
	{Table: "github_people", Column: "tokens", KeyColumn: "tokens_key_id", ID: "person_id"},
}

// Columns is every column of sealed values in the schema.
func Columns() []Column { return append([]Column(nil), columns...) }

func (c Column) place(row string) Place { return Place{c.Table, c.Column, row} }

var identifier = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// valid: the names become part of SQL text.
func (c Column) valid() error {
	for _, name := range []string{c.Table, c.Column, c.KeyColumn, c.ID} {
		if !identifier.MatchString(name) {
			return fmt.Errorf("seal: %q in %+v is not the name of a table or column", name, c)
		}
	}
	if c.LostAt != "" && !identifier.MatchString(c.LostAt) {
		return fmt.Errorf("seal: %q in %+v is not the name of a column", c.LostAt, c)
	}
	return nil
}
