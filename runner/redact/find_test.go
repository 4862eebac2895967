package redact

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestFindSeesWhatTextMasks(t *testing.T) {
	t.Parallel()
	found := 0
	for round := range 3000 {
		r := rand.New(rand.NewPCG(11, uint64(round)))
		var set Set
		var values []string
		for range 1 + r.IntN(3) {
			v := strings.Repeat(string("ab"[r.IntN(2)]), 1+r.IntN(3)) + fmt.Sprintf("%08x", r.Uint32()>>r.IntN(9)) + strings.Repeat("q", r.IntN(400))
			if err := set.Add("V", []byte(v)); err != nil {
				t.Fatal(err)
			}
			values = append(values, v)
		}
		stream := randomStream(r, values, needlesOf(&set), "ab0")
		spans, names := set.Find([]byte(stream))
		if (len(spans) > 0) != (len(names) > 0) {
			t.Fatalf("round %d: %v but %q", round, spans, names)
		}
		// Text has a mask for each of two that touch, Find one span.
		var want strings.Builder
		at := 0
		for _, s := range spans {
			want.WriteString(stream[at:s.From] + Mask)
			at, found = s.To, found+1
		}
		want.WriteString(stream[at:])
		got := set.Text(stream).String()
		for strings.Contains(got, Mask+Mask) {
			got = strings.ReplaceAll(got, Mask+Mask, Mask)
		}
		if got != want.String() {
			t.Fatalf("round %d:\nstream %q\nspans %v\ntext  %q", round, stream, spans, got)
		}
	}
	if found < 1000 {
		t.Errorf("only %d occurrences: the test tests little", found)
	}
}

func TestFindNamesWhatIsCutOffAndWhatIsOnlyShapedLikeASecret(t *testing.T) {
	t.Parallel()
	var set Set
	if err := set.Add("KEY", []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	token := "ghs_" + strings.Repeat("a1B2", 10)
	text := "a correct\nhorse battery, " + token + " and -----BEGIN PRIVATE KEY" + dashes + "\nMIIE"
	spans, names := set.Find([]byte(text))
	var parts []string
	for _, s := range spans {
		parts = append(parts, text[s.From:s.To])
	}
	if len(parts) != 3 || parts[0] != "correct\nhorse battery" || parts[1] != token || !strings.HasSuffix(parts[2], "MIIE") {
		t.Errorf("%q", parts)
	}
	if fmt.Sprint(names) != "[KEY a GitHub token a private key]" {
		t.Errorf("%q", names)
	}
	if spans, names := set.Find([]byte("correct horse batter")); spans != nil || names != nil {
		t.Errorf("%v %q", spans, names)
	}
}
