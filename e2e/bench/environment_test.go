package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/redact/redacttest"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// redaction writes 4 MiB of output in pieces of 100 bytes through a redactor that knows 1,000 Variables in all their forms. The
// peers look for the values only: one as Buildkite's agent does, one with strings.Replacer, which misses what is split.
func redaction(t *testing.T, b *bench) {
	values := redacttest.Values(1000)
	log := redacttest.Log(4 << 20)
	set := &redact.Set{}
	pairs := make([]string, 0, 2*len(values))
	for i, v := range values {
		if err := set.Add(fmt.Sprint("V", i), []byte(v)); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, v, redacttest.Mask)
	}
	out := 0
	w := set.Writer(func(text redact.Text) error { out += text.Len(); return nil })
	rate := func(write func([]byte)) float64 {
		began := time.Now()
		for i := 0; i < len(log); i += 100 {
			write(log[i:min(i+100, len(log))])
		}
		return float64(len(log)) / 1e6 / time.Since(began).Seconds()
	}
	ours := func() float64 {
		return rate(func(p []byte) {
			if _, err := w.Write(p); err != nil {
				t.Fatal(err)
			}
		})
	}
	partial := redacttest.NewPartial(values)
	replacer := strings.NewReplacer(pairs...)
	var replaced []float64
	peer := func() float64 {
		replaced = append(replaced, rate(func(p []byte) { out += len(replacer.Replace(string(p))) }))
		return rate(partial.Write)
	}
	a, p := b.inTurns(ours, peer)
	record("redact", "MB/s", a, "partial matches, values only", p)
	if b.peers {
		replaced = replaced[b.warmUps:]
	}
	record("redact_replacer", "MB/s", a, "strings.Replacer, values only", replaced)
}

// validate reads and checks a document of 1 MiB with as much of everything as one may have.
func validate(t *testing.T, b *bench) {
	doc := largest()
	ours := func() float64 {
		began := time.Now()
		s, problems := envspec.Check("environment.yml", doc, nil)
		took := ms(time.Since(began))
		if problems.Failed() || len(s.Variables) != envspec.MaxVariables {
			t.Fatalf("the document was read as one of %d Variables, with %d problems", len(s.Variables), len(problems))
		}
		return took
	}
	a, _ := b.inTurns(ours, nil)
	record("validate", "ms", a, "", nil)
}

func largest() []byte {
	var doc bytes.Buffer
	line := "  echo \"${HOME}\" # é\n"
	fmt.Fprintf(&doc, "bootstrap: |\n%sstart: |\n%s", strings.Repeat(line, envspec.MaxScript/len(line)), strings.Repeat(line, envspec.MaxScript/len(line)))
	doc.WriteString("variables:\n")
	for i := range envspec.MaxVariables {
		fmt.Fprintf(&doc, "  A%d: \"%s\"\n", i, strings.Repeat("x=é ", 400))
	}
	doc.WriteString(strings.Repeat("# a comment\n", (envspec.MaxDocument-doc.Len())/12))
	return doc.Bytes()
}

// sealing seals 10,000 values of 100 bytes and opens them again.
func sealing(t *testing.T, b *bench) {
	keys := newKeys(t)
	value := bytes.Repeat([]byte("x"), 100)
	sealed := make([][]byte, 10_000)
	ours := func() float64 {
		began := time.Now()
		for i := range sealed {
			var err error
			if sealed[i], _, err = keys.Seal(place(fmt.Sprint(i)), value); err != nil {
				t.Fatal(err)
			}
		}
		for i := range sealed {
			if plain, err := keys.Open(place(fmt.Sprint(i)), sealed[i]); err != nil || !bytes.Equal(plain, value) {
				t.Fatalf("value %d was opened as %q, %v", i, plain, err)
			}
		}
		return ms(time.Since(began))
	}
	a, _ := b.inTurns(ours, nil)
	record("seal", "ms", a, "", nil)
}

func place(row string) seal.Place {
	return seal.Place{Table: "variable_values", Column: "sealed", Row: row}
}

func newKeys(t *testing.T) seal.Keys {
	t.Helper()
	keys, err := seal.ParseKeys(seal.Given{Text: seal.NewKey(), From: "the benchmark"})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// hubStartSQLite is from the start of a Hub's process, with 10,000 Repos and 100,000 Variables in its store, until it is ready.
func hubStartSQLite(t *testing.T, b *bench) {
	record("hub_start", "ms", hubStart(t, b, ""), "", nil)
}

func hubStartPostgreSQL(t *testing.T, b *bench) {
	record("hub_start_postgres", "ms", hubStart(t, b, storetest.PostgreSQL(t)), "", nil)
}

func hubStart(t *testing.T, b *bench, database string) []float64 {
	key := seal.NewKey()
	w := world.Empty(t, world.Options{Database: database, Hub: map[string]string{"encryption_keys": "[" + key + "]"}})
	w.StartHub() // makes the schema, and registers the key
	w.Hub.Stop()
	url := database
	if url == "" {
		url = filepath.Join(w.Dir, "data", "hub.db")
	}
	fill(t, url, key)
	ours := func() float64 {
		began := time.Now()
		w.Hub = w.Start("Hub", "serve", "--config", w.Config)
		for !answers(w.URL + "/readyz") {
			if !w.Hub.Running() || time.Since(began) > time.Minute {
				t.Fatalf("the Hub did not get ready:\n%s", w.Hub.Log())
			}
			time.Sleep(time.Millisecond)
		}
		took := ms(time.Since(began))
		w.Hub.Stop()
		return took
	}
	a, _ := b.inTurns(ours, nil)
	return a
}

func answers(url string) bool {
	r, err := http.Get(url)
	if err != nil {
		return false
	}
	return r.Body.Close() == nil && r.StatusCode == http.StatusOK
}

const (
	manyRepos    = 10_000
	manyVariable = 10 // of each Repo, half of them Sensitive
)

// fill puts 10,000 Repos into a store, each with an Environment and ten Variables' values.
func fill(t *testing.T, url, key string) {
	t.Helper()
	ctx := context.Background()
	db, err := store.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.ParseKeys(seal.Given{Text: key, From: "the benchmark"})
	if err != nil {
		t.Fatal(err)
	}
	const each = 500
	for from := 0; from < manyRepos; from += each {
		if err := db.Write(ctx, func(tx *store.Tx) error {
			for i := from; i < from+each; i++ {
				if err := fillRepo(tx, keys, i); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func fillRepo(tx *store.Tx, keys seal.Keys, i int) error {
	now, environment := tx.Now().UnixMilli(), store.NewID()
	if _, err := tx.Exec(`INSERT INTO repos (id, source, name, clone_url, seen_at) VALUES ($1, 'github', $2, $3, $4)`,
		1000+i, fmt.Sprintf("acme/app-%d", i), fmt.Sprintf("https://github.example/acme/app-%d.git", i), now); err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO environments (id, repo_id, current, created_at, created_by) VALUES ($1, $2, 0, $3, 'bench')`,
		environment, 1000+i, now); err != nil {
		return err
	}
	for n := range manyVariable {
		id := store.NewID()
		if n%2 == 0 {
			if _, err := tx.Exec(`INSERT INTO variable_values (id, environment_id, sensitive, plain, plain_digest, set_at, set_by) VALUES ($1, $2, 0, $3, $4, $5, 'bench')`,
				id, environment, strings.Repeat("p", 100), fmt.Sprint(n), now); err != nil {
				return err
			}
			continue
		}
		sealed, keyID, err := keys.Seal(place(id), bytes.Repeat([]byte("s"), 100))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO variable_values (id, environment_id, sensitive, sealed, sealed_key_id, set_at, set_by) VALUES ($1, $2, 1, $3, $4, $5, 'bench')`,
			id, environment, sealed, keyID, now); err != nil {
			return err
		}
	}
	return nil
}
