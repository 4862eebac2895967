// Package bench measures the figures that the product promises, beside a peer where there is one, and prints them as a table:
// `make bench`. Nothing here is a timed test: a figure that misses its bound is shown, and fails nothing.
//
// Without -runs, as in `make test`, it only tries that the rows which need no peer can be measured.
package bench

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

var (
	runs     = flag.Int("runs", 0, "how often each row is measured after warming up; 0: only try that it can be")
	only     = flag.String("only", "", "the rows to measure, with commas between them; empty: all")
	jsonFile = flag.String("json", "", "write the rows to this file as well, as JSON")
)

// warmUps come before the runs that count.
const warmUps = 2

// figure measures one or more rows of the table.
type figure struct {
	rows    []string
	cheap   bool // quick, and without a peer when it is only tried
	measure func(t *testing.T, b *bench)
}

var figures = []figure{
	{[]string{"boot", "boot_alike"}, true, boot},
	{[]string{"wake"}, true, wake},
	{[]string{"bind", "bind_first", "bind_killed"}, true, bind},
	{[]string{"install_cold", "install_warm"}, false, install},
	{[]string{"docker_up"}, false, dockerUp},
	{[]string{"snapshot", "snapshot_boot"}, false, snapshot},
	{[]string{"session_disk", "session_disk_asleep"}, true, sessionDisk},
	{[]string{"sandbox_rss", "sandbox_anonymous"}, true, sandboxMemory},
	{[]string{"many_asleep_disk", "many_awake_disk", "many_awake_memory", "many_rss"}, false, manySessions},
	{[]string{"terminal_echo"}, true, terminalEcho},
	{[]string{"idle_rss"}, true, idleMemory},
	{noisyRows(), true, noisy},
	{[]string{"log", "log_memory", "log_memory_hub", "log_memory_runner"}, false, logSQLite},
	{[]string{"redact", "redact_replacer"}, true, redaction},
	{[]string{"validate"}, true, validate},
	{[]string{"seal"}, true, sealing},
	{[]string{"refusal", "refusal_answer"}, true, refusalSQLite},
	{[]string{"refusal_postgres", "refusal_postgres_answer"}, false, refusalPostgreSQL},
	{[]string{"webhook", "webhook_postgres"}, true, webhooks},
	{[]string{"hub_start"}, false, hubStartSQLite},
	{[]string{"hub_start_postgres"}, false, hubStartPostgreSQL},
	{[]string{"log_postgres", "log_postgres_memory"}, false, logPostgreSQL},
}

var results table

func TestMain(m *testing.M) {
	flag.Parse()
	if err := errors.Join(ready(), known(*only)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	sweep()
	code := m.Run()
	if debianArchive != "" {
		_ = os.Remove(debianArchive)
	}
	if *runs > 0 {
		fmt.Print("\n", results)
		if *jsonFile != "" {
			if err := results.write(*jsonFile); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

func TestFigures(t *testing.T) {
	b := &bench{t: t, runs: max(*runs, 1), peers: *runs > 0}
	if *runs > 0 {
		b.warmUps = warmUps
	}
	for _, f := range figures {
		if !wanted(f.rows) || *runs == 0 && !f.cheap {
			continue
		}
		t.Run(f.rows[0], func(t *testing.T) {
			if *runs > 0 {
				fmt.Printf("measuring %s\n", strings.Join(f.rows, ", "))
			}
			f.measure(t, b)
			for _, name := range f.rows {
				if r, ok := results.row(name); !ok || r.Value <= 0 {
					t.Errorf("the row %s was not measured: %+v", name, r)
				}
			}
		})
	}
}

// wanted tells whether -only names one of these rows.
func wanted(rows []string) bool {
	return *only == "" || slices.ContainsFunc(strings.Split(*only, ","), func(n string) bool { return slices.Contains(rows, strings.TrimSpace(n)) })
}

// known refuses rows that there are none of.
func known(names string) error {
	if names == "" {
		return nil
	}
	var all []string
	for _, f := range figures {
		all = append(all, f.rows...)
	}
	for _, n := range strings.Split(names, ",") {
		if !slices.Contains(all, strings.TrimSpace(n)) {
			return fmt.Errorf("there is no row %q; the rows are %s", strings.TrimSpace(n), strings.Join(all, ", "))
		}
	}
	return nil
}

// ready says in a sentence what the benchmark needs.
func ready() error {
	if os.Geteuid() != 0 {
		return errors.New("this boots real Sandboxes: run it as root")
	}
	needs := [][2]string{{"runc", "runc"}, {"nft", "nftables"}, {"mkfs.ext4", "e2fsprogs"}, {"git", "git"}, {"tar", "tar"}, {"debootstrap", "debootstrap"}}
	if *runs > 0 {
		needs = append(needs, [][2]string{{"containerd", "containerd"}, {"ctr", "containerd"}}...)
	}
	for _, p := range needs {
		if _, err := exec.LookPath(p[0]); err != nil {
			return fmt.Errorf("this needs the program %s: apt-get install %s", p[0], p[1])
		}
	}
	return nil
}

// bench is what the rows share: how often to measure, and the things that take long to make.
type bench struct {
	t       *testing.T // of all rows
	runs    int
	warmUps int
	peers   bool

	sharedHost *host
	sharedPeer *containerd
}

// host is for all rows, but fails the one that uses it now.
func (b *bench) host(t *testing.T) *host {
	if b.sharedHost == nil {
		b.sharedHost = newHost(b.t, t)
	}
	b.sharedHost.t = t
	return b.sharedHost
}

// containerd likewise.
func (b *bench) containerd(t *testing.T) *containerd {
	if b.sharedPeer == nil {
		b.sharedPeer = newContainerd(b.t, t)
	}
	b.sharedPeer.t = t
	return b.sharedPeer
}

// inTurns measures ours and the peer's one after the other, so that a noisy moment of the machine is in both.
func (b *bench) inTurns(ours, peer func() float64) (a, p []float64) {
	for i := range b.warmUps + b.runs {
		v := ours()
		var w float64
		if b.peers && peer != nil {
			w = peer()
		}
		if i < b.warmUps {
			continue
		}
		a = append(a, v)
		if b.peers && peer != nil {
			p = append(p, w)
		}
	}
	return a, p
}

const runDirs = "/run/chb-"

// sweep takes away what a run that was killed left on the host.
func sweep() {
	dirs, _ := filepath.Glob(runDirs + "*")
	for _, d := range dirs {
		if pid, err := strconv.Atoi(strings.TrimPrefix(d, runDirs)); err == nil && syscall.Kill(pid, 0) == nil {
			continue
		}
		data, err := os.MkdirTemp("", "chb-sweep-")
		if err != nil {
			continue
		}
		if err := teardown(data, d, "/bin/true"); err != nil {
			fmt.Fprintln(os.Stderr, "leftovers of an earlier run:", err)
		}
		_ = os.RemoveAll(data)
	}
}
