package canary

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

// tap is a proxy before the Hub that keeps everything the Hub answers.
type tap struct {
	*httptest.Server

	mu      sync.Mutex
	answers map[string]*bytes.Buffer // by path, heads and bodies
}

func newTap(hub string) (*tap, error) {
	target, err := url.Parse(hub)
	if err != nil {
		return nil, err
	}
	w := &tap{answers: map[string]*bytes.Buffer{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("Accept-Encoding", "identity")
		},
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			var head bytes.Buffer
			fmt.Fprintf(&head, "\n%s %s\n", r.Proto, r.Status)
			_ = r.Header.Write(&head) // into memory
			head.WriteString("\n")
			w.keep(r.Request.URL.Path, head.Bytes())
			r.Body = tee{r.Body, func(b []byte) { w.keep(r.Request.URL.Path, b) }}
			return nil
		},
	}
	w.Server = httptest.NewServer(proxy)
	return w, nil
}

func (w *tap) keep(path string, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answers[path] == nil {
		w.answers[path] = &bytes.Buffer{}
	}
	w.answers[path].Write(b)
}

type tee struct {
	io.ReadCloser
	keep func([]byte)
}

func (t tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.keep(p[:n])
	return n, err
}

var jsonData = regexp.MustCompile(`"data":"([A-Za-z0-9+/]+=*)"`)

// look searches all answers, and what they carry in base64.
func (w *tap) look(s *search) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, b := range w.answers {
		place := "web answers"
		if strings.HasPrefix(path, "/api/") {
			place = "API answers"
		}
		s.look(place, b.Bytes())
		s.look("wire to the browser", b.Bytes())
		var carried bytes.Buffer
		for _, m := range jsonData.FindAllSubmatch(b.Bytes(), -1) {
			if d, err := base64.StdEncoding.DecodeString(string(m[1])); err == nil {
				carried.Write(d)
			}
		}
		s.look(place, carried.Bytes())
	}
}

// processes samples the command lines and environments of all processes of this host that are in no Sandbox, until ctx ends.
type processes struct {
	mu                     sync.Mutex
	seen                   map[string]bool
	commands, environments bytes.Buffer
	inside                 map[int]bool // processes of Sandboxes, which were passed over
}

func watchProcesses(ctx context.Context) *processes {
	p := &processes{seen: map[string]bool{}, inside: map[int]bool{}}
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			p.sample()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return p
}

func (p *processes) sample() {
	host, _ := os.Readlink("/proc/self/ns/pid")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid"))
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		p.mu.Lock()
		if ns != host {
			p.inside[pid] = true
		} else {
			p.keep(&p.commands, command)
			p.keep(&p.environments, environment)
		}
		p.mu.Unlock()
	}
}

func (p *processes) keep(to *bytes.Buffer, b []byte) {
	if p.seen[string(b)] {
		return
	}
	p.seen[string(b)] = true
	to.Write(b)
	to.WriteByte('\n')
}

// look searches the samples, and says how many processes of Sandboxes were passed over.
func (p *processes) look(s *search) (passedOver int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.look("command lines", p.commands.Bytes())
	s.look("environments of processes", p.environments.Bytes())
	return len(p.inside)
}

// lookFiles searches all files below dir. Not entered are other file systems, which are mounted disks, and skip.
func lookFiles(s *search, place, dir string, skip func(path string) bool) error {
	s.look(place, nil)
	root, err := os.Stat(dir)
	if err != nil {
		return err
	}
	device := root.Sys().(*syscall.Stat_t).Dev
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return passing(err)
		}
		s.look(place, []byte(path))
		if skip != nil && path != dir && skip(path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return passing(err)
		}
		switch {
		case d.IsDir() && info.Sys().(*syscall.Stat_t).Dev != device:
			return fs.SkipDir
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			s.look(place, []byte(to))
			return passing(err)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		s.look(place, b)
		s.look(place, unpacked(b))
		return passing(err)
	})
}

// passing is no error when a file went away while it was about to be read: others work in these folders.
func passing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// unpacked is what zstd frames in b hold, nothing if there are none.
func unpacked(b []byte) []byte {
	i := bytes.Index(b, []byte{0x28, 0xb5, 0x2f, 0xfd})
	if i < 0 {
		return nil
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return nil
	}
	defer d.Close()
	out, _ := d.DecodeAll(b[i:], nil) // up to where it is one
	return out
}

// lookRows searches every value of every table, compressed ones unpacked, and those of one table put together in the order of its key.
func lookRows(s *search, db *sql.DB, tables string) error {
	names, err := db.Query(tables)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	var all []string
	for names.Next() {
		var n string
		if err := names.Scan(&n); err != nil {
			return err
		}
		all = append(all, n)
	}
	if err := names.Close(); err != nil {
		return err
	}
	if len(all) < 10 {
		return fmt.Errorf("the database has only the tables %q", all)
	}
	for _, n := range all {
		if err := lookTable(s, db, n); err != nil {
			return fmt.Errorf("read table %s: %w", n, err)
		}
	}
	return nil
}

func lookTable(s *search, db *sql.DB, table string) error {
	order := "1"
	if table == "log_chunks" {
		order = "assignment, start"
	}
	rows, err := db.Query(`SELECT * FROM "` + table + `" ORDER BY ` + order)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	var text, packed bytes.Buffer
	for rows.Next() {
		values := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for _, v := range values {
			switch v := v.(type) {
			case []byte:
				packed.Write(unpacked(v))
				text.Write(v)
			case string:
				text.WriteString(v)
			}
			text.WriteByte('\n')
		}
	}
	s.look("rows", text.Bytes())
	s.look("rows", packed.Bytes())
	return rows.Err()
}

// lookSQLite searches the file of a database that a Hub has open, its WAL, and a backup of it.
func lookSQLite(s *search, path, scratch string) error {
	read := func(place, file string) error {
		b, err := os.ReadFile(file)
		s.look(place, b)
		return err
	}
	if err := read("WAL", path+"-wal"); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec("PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := read("database file", path); err != nil {
		return err
	}
	backup := filepath.Join(scratch, "backup.db")
	if _, err := db.Exec("VACUUM INTO ?", backup); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	if err := read("backup", backup); err != nil {
		return err
	}
	return lookRows(s, db, `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
}

// lookPostgreSQL searches a dump, and the files of the server after a checkpoint, among them its WAL.
func lookPostgreSQL(s *search, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	q := u.Query()
	schema := q.Get("search_path")
	q.Del("search_path")
	u.RawQuery = q.Encode()
	dump, err := exec.Command("pg_dump", "-n", schema, "-d", u.String()).Output()
	if err != nil {
		return fmt.Errorf("pg_dump (Debian package postgresql): %w", err)
	}
	s.look("pg_dump", dump)
	db, err := sql.Open("pgx", address)
	if err != nil {
		return err
	}
	defer db.Close()
	var folder string
	if err := db.QueryRow("SHOW data_directory").Scan(&folder); err != nil {
		return err
	}
	if _, err := db.Exec("CHECKPOINT"); err != nil {
		return err
	}
	if err := lookFiles(s, "data folder of PostgreSQL", folder, nil); err != nil {
		return err
	}
	return lookRows(s, db, `SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()`)
}
