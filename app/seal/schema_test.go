package seal_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// own is the column that the key columns reference.
const own = "encryption_keys.key_id"

// schema is every column of the database, as table.column.
func schema(tx *store.Tx, postgres bool) ([]string, error) {
	q := `SELECT m.name || '.' || c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'`
	if postgres {
		q = `SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = current_schema()`
	}
	return store.All(tx, store.Scan1[string], q)
}

// references is every column that references the keys by a foreign key.
func references(tx *store.Tx, postgres bool) ([]string, error) {
	q := `SELECT m.name || '.' || f."from" FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table' AND f."table" = 'encryption_keys'`
	if postgres {
		q = `SELECT c.relname || '.' || a.attname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
			JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (k.conkey)
			WHERE k.contype = 'f' AND k.confrelid = to_regclass('encryption_keys')`
	}
	return store.All(tx, store.Scan1[string], q)
}

// leading is the columns of each index, in order: "table: a, b".
func leading(tx *store.Tx, postgres bool) ([]string, error) {
	q := `SELECT m.tbl_name || ': ' || (SELECT group_concat(name, ', ') FROM (SELECT name FROM pragma_index_info(m.name) ORDER BY seqno))
		FROM sqlite_master m WHERE m.type = 'index'`
	if postgres {
		q = `SELECT tablename || ': ' || substring(indexdef from '\((.*?)\)') FROM pg_indexes WHERE schemaname = current_schema()`
	}
	return store.All(tx, store.Scan1[string], q)
}

var keyColumn = regexp.MustCompile(`\.(.*_)?key_id$`)

// mistakes compares the schema with the list of sealed columns, in both directions.
func mistakes(tx *store.Tx, postgres bool, listed []seal.Column) (wrong []string, err error) {
	all, err := schema(tx, postgres)
	if err != nil {
		return nil, err
	}
	refs, err := references(tx, postgres)
	if err != nil {
		return nil, err
	}
	indexes, err := leading(tx, postgres)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(all, own) {
		return nil, fmt.Errorf("%s is not found in the schema, so this test sees nothing; it sees %q", own, all)
	}
	var keys []string
	for _, c := range listed {
		key := c.Table + "." + c.KeyColumn
		keys = append(keys, key)
		needed := []string{c.Column, c.KeyColumn, c.ID}
		if c.LostAt != "" {
			needed = append(needed, c.LostAt)
		}
		for _, n := range needed {
			if !slices.Contains(all, c.Table+"."+n) {
				wrong = append(wrong, fmt.Sprintf("%s.%s is listed and not in the schema", c.Table, n))
			}
		}
		if !slices.Contains(refs, key) {
			wrong = append(wrong, key+" doesn't reference encryption_keys")
		}
		if want := c.Table + ": " + c.KeyColumn + ", " + c.ID; !slices.ContainsFunc(indexes, func(i string) bool { return strings.HasPrefix(i, want) }) {
			wrong = append(wrong, "there is no index on "+want)
		}
	}
	for _, c := range all {
		if (keyColumn.MatchString(c) || slices.Contains(refs, c)) && c != own && !slices.Contains(keys, c) {
			wrong = append(wrong, c+" is not in the list of app/seal/columns.go")
		}
	}
	slices.Sort(wrong)
	return wrong, nil
}

// P11. Coder's rotation forgot three tables because its list was apart from its schema (coder/coder#25381).
func TestEveryKeyColumnOfTheSchemaIsListed(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		postgres := strings.HasSuffix(t.Name(), "/postgres")
		look := func(listed []seal.Column) (wrong []string) {
			t.Helper()
			if err := db.Read(t.Context(), func(tx *store.Tx) (err error) {
				wrong, err = mistakes(tx, postgres, listed)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return wrong
		}
		for _, m := range look(seal.Columns()) {
			t.Error(m)
		}

		// And it sees what it is there to see.
		makeTables(t, db)
		write(t, db, func(tx *store.Tx) error {
			_, err := tx.Exec(`CREATE TABLE forgotten (id TEXT PRIMARY KEY, v BYTEA, v_key_id TEXT, other TEXT REFERENCES encryption_keys (key_id))`)
			return err
		})
		listed := append(seal.Columns(), letters,
			seal.Column{Table: "pins", Column: "pin", KeyColumn: "pin_key_id", ID: "id"},
			seal.Column{Table: "forgotten", Column: "v", KeyColumn: "v_key_id", ID: "id"})
		want := []string{
			"forgotten.other is not in the list of app/seal/columns.go", "forgotten.v_key_id doesn't reference encryption_keys",
			"pins.id is listed and not in the schema", "there is no index on forgotten: v_key_id, id", "there is no index on pins: pin_key_id, id",
		}
		if got := look(listed); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}
