// Package canary prints one Sensitive value, in 25 forms, in every channel that there is, and looks for it everywhere (facts/reliability.md
// §7 P9): in the database and its backups, in the data folders of Hub and Runner, in logs, command lines, environments and core files,
// and in everything that the Hub answers. It must be nowhere.
//
// That it would be found is proven by the same story with the value in a Plain Variable: the same bytes come by the same channels, and
// nothing masks them.
//
// Not looked at are the Sandbox's own disks, which may hold what runs inside (ADR 0009, "The login environment"): the disk images of Sessions
// and builds, and where they are mounted.
package canary

import (
	"crypto/rand"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var long = flag.Bool("long", false, "all channels, and PostgreSQL as well")

// count is what the last lines say.
type count struct {
	channels map[string]bool
	places   map[string]bool
	hits     int
}

var (
	countMu          sync.Mutex
	sensitive, plain = count{map[string]bool{}, map[string]bool{}, 0}, count{map[string]bool{}, map[string]bool{}, 0}
)

func (c *count) add(database string, channels []string, s *search) {
	countMu.Lock()
	defer countMu.Unlock()
	for _, name := range channels {
		c.channels[name] = true
	}
	for p := range s.places {
		c.places[database+": "+p] = true
	}
	c.hits += len(s.all())
}

func (c *count) String() string {
	return fmt.Sprintf("forms=%d channels=%d places=%d hits=%d", len(forms.Table), len(c.channels), len(c.places), c.hits)
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if sensitive.hits > 0 && code == 0 {
		code = 1
	}
	if len(plain.channels) > 0 {
		fmt.Printf("proof, as a Plain Variable: %s\n", &plain)
	}
	if len(sensitive.channels) > 0 {
		fmt.Println(&sensitive)
	}
	os.Exit(code)
}

// bird is the value: three lines with something in each that encoders and shells write differently, and random parts: two in the first, which
// a program may take for a path and cut.
func bird() (value string, tags []string) {
	for range 4 {
		tags = append(tags, rand.Text()[:10])
	}
	return fmt.Sprintf("k-%s/%s+b=c&d<e>\"f\"'g' h%%20\n%s \\b $HOME é😀 ~#;|x\nend [a] %s {b}*?!^ z", tags[0], tags[1], tags[2], tags[3]), tags
}

func TestASensitiveValueIsNowhere(t *testing.T) {
	databases := map[string]func(testing.TB) string{"sqlite": func(testing.TB) string { return "" }}
	if *long {
		databases["postgres"] = storetest.PostgreSQL
	}
	for _, name := range slices.Sorted(maps.Keys(databases)) {
		t.Run(name, func(t *testing.T) {
			st := tell(t, name, databases[name](t), true)
			sensitive.add(name, st.channels, st.search)
			for _, h := range st.search.all() {
				t.Errorf("the value got out: %s: %s", h, st.search.around(h))
			}
			st.everythingWasPrinted()
		})
	}
}

func TestAPlainValueIsFoundSoTheSearchCanFind(t *testing.T) {
	databases := map[string]func(testing.TB) string{"sqlite": func(testing.TB) string { return "" }}
	if *long {
		databases["postgres"] = storetest.PostgreSQL
	}
	for _, name := range slices.Sorted(maps.Keys(databases)) {
		t.Run(name, func(t *testing.T) {
			st := tell(t, name, databases[name](t), false)
			plain.add(name, st.channels, st.search)
			st.everythingWasPrinted()
			in := map[string]int{}
			for _, h := range st.search.all() {
				in[h.place]++
			}
			t.Logf("hits by place: %v", in)
			for _, channel := range st.channels {
				found, _ := st.search.formsOf(channel)
				for _, form := range st.forms[channel] {
					if !found[form] {
						t.Errorf("channel %s printed a Plain value in form %s, and it was not found", channel, form)
					}
				}
			}
			places := []string{"rows", "API answers", "web answers", "wire to the browser", "output of the command line", "output of exec and terminals"}
			if name == "sqlite" {
				places = append(places, "database file", "backup")
			} else {
				places = append(places, "pg_dump", "data folder of PostgreSQL")
			}
			for _, p := range places {
				if !st.search.has(p) {
					t.Errorf("a Plain value was not found in %s", p)
				}
			}
		})
	}
}

// everythingWasPrinted checks that each form came by each channel that prints them: else that nothing was found would say nothing.
func (st *story) everythingWasPrinted() {
	st.t.Helper()
	for channel, want := range st.forms {
		_, marked := st.search.formsOf(channel)
		var lacking []string
		for _, f := range want {
			if !marked[f] {
				lacking = append(lacking, f)
			}
		}
		if len(lacking) > 0 {
			st.t.Errorf("channel %s did not print the forms %s", channel, strings.Join(lacking, ", "))
		}
	}
}
