package build

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// made is a build that was made for an Environment.
func made(name, environment string, created int64) Base {
	key, _, _ := strings.Cut(name, ".")
	return Base{sandbox.Base{Name: name}, Meta{Key: key, Environment: environment, Created: created}}
}

// names are those of what old answers about all.
func (b *Builder) names(all ...Base) []string {
	var names []string
	for _, base := range b.old(all) {
		names = append(names, base.Name)
	}
	slices.Sort(names)
	return names
}

func pruner(t *testing.T, dir string) *Builder {
	t.Helper()
	b, err := New(Config{Dir: dir, Keep: 2}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestABuildThatTwoEnvironmentsUseCountsForEachOfThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := pruner(t, dir)
	all := []Base{made("k5.b", "a", 6), made("k5.a", "a", 5), made("k4.a", "a", 4), made("k3.a", "a", 3), made("k2.a", "a", 2), made("k1.a", "a", 1)}
	if got, want := b.names(all...), []string{"k1.a", "k2.a", "k3.a", "k5.a"}; !slices.Equal(got, want) {
		t.Errorf("of what one Environment made: %q, want %q", got, want)
	}
	b.Use("k1.a", "b")
	want := []string{"k2.a", "k3.a", "k5.a"}
	if got := b.names(all...); !slices.Equal(got, want) {
		t.Errorf("with one that another Environment uses: %q, want %q: its use must keep that one, and take no other's place", got, want)
	}
	b.Use("k2.a", "a")
	want = []string{"k3.a", "k4.a", "k5.a"}
	if got := b.names(all...); !slices.Equal(got, want) {
		t.Errorf("with an old one used again: %q, want %q", got, want)
	}
	if got := pruner(t, dir).names(all...); !slices.Equal(got, want) {
		t.Errorf("in the next process: %q, want %q", got, want)
	}
	// An older build of a key was used: the newest of that key is what the next Session gets.
	b.Use("k5.a", "c")
	b.Use("k4.a", "a")
	if got, want := b.names(all...), []string{"k3.a", "k5.a"}; !slices.Equal(got, want) {
		t.Errorf("with an older build of a key used: %q, want %q", got, want)
	}
	b.forget("k5.a")
	b.forget("k1.a")
	if got, want := b.names(all...), []string{"k1.a", "k3.a", "k5.a", "k5.b"}; !slices.Equal(got, want) {
		t.Errorf("with uses forgotten: %q, want %q", got, want)
	}
}

func TestDamagedTimesOfUseLeaveTheOrderInWhichBuildsWereMade(t *testing.T) {
	t.Parallel()
	all := []Base{made("k3.a", "a", 3), made("k2.a", "a", 2), made("k1.a", "a", 1)}
	for _, body := range []string{"", "null", `{"k1.a":`, `{"k1.a":9}`, `{"k1.a":{"a":9},"k2.a":1}`, `[]`} {
		b := pruner(t, t.TempDir())
		if err := os.WriteFile(b.usedPath(), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		b.readUsed()
		if got := b.names(all...); !slices.Equal(got, []string{"k1.a"}) {
			t.Errorf("%q: %q", body, got)
		}
		b.Use("k1.a", "a")
		if got := b.names(all...); !slices.Equal(got, []string{"k2.a"}) {
			t.Errorf("%q, and used since: %q", body, got)
		}
	}
}
