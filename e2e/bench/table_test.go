package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
)

// row is one figure. Peer and PeerValue are nil where there is nothing to compare with.
type row struct {
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Peer      *string  `json:"peer"`
	PeerValue *float64 `json:"peer_value"`
}

type table []row

func (t table) row(name string) (row, bool) {
	i := slices.IndexFunc(t, func(r row) bool { return r.Name == name })
	if i < 0 {
		return row{}, false
	}
	return t[i], true
}

// record notes the median of values, and of the peer's, and says how they spread.
func record(name, unit string, values []float64, peer string, peers []float64) {
	r := row{Name: name, Value: round(median(values)), Unit: unit}
	said := fmt.Sprintf("  %s: %s", name, spread(values, unit))
	if len(peers) > 0 {
		v := round(median(peers))
		r.Peer, r.PeerValue = &peer, &v
		said += fmt.Sprintf("; %s: %s", peer, spread(peers, unit))
	}
	if *runs > 0 {
		fmt.Println(said)
	}
	results = append(results, r)
}

func spread(v []float64, unit string) string {
	return fmt.Sprintf("median %s %s of %d, %s to %s", number(median(v)), unit, len(v), number(slices.Min(v)), number(slices.Max(v)))
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	if n := len(s) / 2; len(s)%2 == 0 {
		return (s[n-1] + s[n]) / 2
	}
	return s[len(s)/2]
}

// round keeps as many digits as a machine's noise leaves of any sense.
func round(v float64) float64 {
	r, _ := strconv.ParseFloat(number(v), 64)
	return r
}

func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func (t table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "name\tvalue\tunit\tpeer\tpeer's value\tratio")
	for _, r := range t {
		peer, value, ratio := "-", "-", "-"
		if r.Peer != nil {
			peer, value, ratio = *r.Peer, number(*r.PeerValue), strconv.FormatFloat(r.Value / *r.PeerValue, 'f', 2, 64)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, number(r.Value), r.Unit, peer, value, ratio)
	}
	w.Flush() //nolint:errcheck // into memory
	return b.String()
}

func (t table) write(path string) error {
	b, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func TestTableShowsThePeerOnlyWhereThereIsOne(t *testing.T) {
	t.Parallel()
	peer, value := "ctr run", 300.0
	rows := table{{Name: "boot", Value: 81.4, Unit: "ms", Peer: &peer, PeerValue: &value}, {Name: "idle_rss", Value: 104, Unit: "MB"}}
	want := "name      value  unit  peer     peer's value  ratio\n" +
		"boot      81.4   ms    ctr run  300           0.27\n" +
		"idle_rss  104    MB    -        -             -\n"
	if got := rows.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	path := filepath.Join(t.TempDir(), "rows.json")
	if err := rows.write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read []map[string]any
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	if len(read) != 2 || read[0]["peer_value"] != 300.0 || read[1]["peer"] != nil || read[1]["peer_value"] != nil {
		t.Errorf("the file holds %s", b)
	}
}

func TestMedianIsOfTheMiddle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   []float64
		want float64
	}{{[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}, {[]float64{7}, 7}} {
		if got := median(c.of); got != c.want {
			t.Errorf("the median of %v is %v, not %v", c.of, got, c.want)
		}
	}
}

func TestOnlyNamesRowsThatExist(t *testing.T) {
	t.Parallel()
	if err := known("boot, wake"); err != nil {
		t.Error(err)
	}
	if err := known("boot,weke"); err == nil || !strings.Contains(err.Error(), `"weke"`) {
		t.Errorf("an unknown row is let through: %v", err)
	}
}
