package redact

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"
)

func TestAGroupHidesWhatOneSetWouldThatKnowsAllValues(t *testing.T) {
	t.Parallel()
	alphabets := []string{"ab", "abc", "aA1", `x"\`, "e/+ ", "é\nz"}
	masked := 0
	for round := range 2000 {
		r := rand.New(rand.NewPCG(13, uint64(round)))
		alphabet := alphabets[r.IntN(len(alphabets))]
		var one Set
		var group Group
		var values []string
		for range r.IntN(4) {
			var set Set
			group.Join(&set)
			for range 1 + r.IntN(2) {
				var b strings.Builder
				for range 8 + r.IntN(30) {
					b.WriteByte(alphabet[r.IntN(len(alphabet))])
				}
				if one.Add("V", []byte(b.String())) == nil && set.Add("V", []byte(b.String())) == nil {
					values = append(values, b.String())
				}
			}
		}
		values = append(values, "ghp_"+strings.Repeat("a1B2", 9))
		for range 5 {
			s := randomStream(r, values, append(needlesOf(&one), values...), alphabet)
			want := one.Text(s).String()
			if got := group.Text(s).String(); got != want {
				t.Fatalf("round %d:\nvalues %q\nstream %q\ngot    %q\nwant   %q", round, values, s, got, want)
			}
			if want != s {
				masked++
			}
		}
	}
	if masked < 3000 {
		t.Errorf("only %d of 10,000 streams held a value: the test tests little", masked)
	}
}

func TestAGroupKeepsNothingOfASetThatLeft(t *testing.T) {
	t.Parallel()
	var group Group
	var other Set
	group.Join(&other)
	for _, v := range []string{"a-value-of-both", "a-value-of-the-other"} {
		if err := other.Add("V", []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	begun := make([]weak.Pointer[Set], 100)
	for i := range begun {
		set := new(Set)
		group.Join(set)
		group.Join(set) // as each wake of a Session does
		for _, v := range []string{"a-value-of-both", fmt.Sprint("a-value-of-number-", i)} {
			if err := set.Add("V", []byte(v)); err != nil {
				t.Fatal(err)
			}
		}
		text := fmt.Sprintf("a-value-of-number-%d a-value-of-the-other a-value-of-both", i)
		if got := group.Text(text).String(); got != "*** *** ***" {
			t.Fatalf("before it left: %q", got)
		}
		group.Leave(set)
		group.Leave(set)
		if got, want := group.Text(text).String(), fmt.Sprintf("a-value-of-number-%d *** ***", i); got != want {
			t.Fatalf("after it left: %q, want %q", got, want)
		}
		begun[i] = weak.Make(set)
	}
	if n := len(group.sets); n != 1 {
		t.Errorf("%d Sets are there, one was meant", n)
	}
	for end := time.Now().Add(time.Minute); ; {
		runtime.GC()
		left := 0
		for _, p := range begun {
			if p.Value() != nil {
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d Sets that left are still in memory", left, len(begun))
		}
	}
	runtime.KeepAlive(&group)
}

func TestSetsJoinAndLeaveWhileTextsAreRedacted(t *testing.T) {
	t.Parallel()
	var group Group
	var stays Set
	group.Join(&stays)
	if err := stays.Add("V", []byte("a-value-that-stays")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				v := fmt.Sprintf("a-value-of-%d-and-%d", g, i)
				set := new(Set)
				group.Join(set)
				if err := set.Add("V", []byte(v)); err != nil {
					t.Error(err)
				}
				if got := group.Text(v + " a-value-that-stays").String(); got != "*** ***" {
					t.Errorf("%q", got)
				}
				group.Leave(set)
			}
		})
	}
	wg.Wait()
}
