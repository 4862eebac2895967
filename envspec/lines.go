package envspec

import (
	"slices"
	"strings"
)

const (
	around = 3 // lines shown before and after what changes
	// mostEdits is up to how many edits the fewest are looked for. Beyond that the lines that differ are shown as replaced
	// as a whole: nobody reads such a difference line by line, and time and memory grow with the square.
	mostEdits = 1000
)

// diffLines compares two texts by lines.
func diffLines(old, new string) (hunks []Hunk, added, removed int) {
	a, b := splitLines(old), splitLines(new)
	all := edits(a, b)
	for _, l := range all {
		switch l.Op {
		case "+":
			added++
		case "-":
			removed++
		}
	}
	return group(all), added, removed
}

// splitLines keeps the line breaks.
func splitLines(v string) []string { return slices.Collect(strings.Lines(v)) }

// edits are all lines of both, in order.
func edits(a, b []string) []Line {
	before := 0
	for before < min(len(a), len(b)) && a[before] == b[before] {
		before++
	}
	after := 0
	for after < min(len(a), len(b))-before && a[len(a)-1-after] == b[len(b)-1-after] {
		after++
	}
	out := make([]Line, 0, len(a)+len(b))
	i, j := 0, 0
	take := func(op string) {
		var l Line
		text := ""
		if op != "+" {
			text = a[i]
			i++
			l.Old = i
		}
		if op != "-" {
			text = b[j]
			j++
			l.New = j
		}
		l.Op, l.Text = op, strings.TrimSuffix(text, "\n")
		l.Unended = l.Text == text
		out = append(out, l)
	}
	for range before {
		take(" ")
	}
	for _, op := range myers(a[before:len(a)-after], b[before:len(b)-after]) {
		take(op)
	}
	for range after {
		take(" ")
	}
	return out
}

// myers finds the fewest insertions and deletions that lead from a to b (E. W. Myers, "An O(ND) Difference Algorithm and Its
// Variations", 1986), deletions first.
func myers(a, b []string) []string {
	n, m := len(a), len(b)
	// v[k] is how far the furthest path on diagonal k = x - y goes; trace has it after each number of edits.
	limit := min(n+m, mostEdits)
	v := make([]int32, 2*limit+3)
	at := func(k int) *int32 { return &v[k+limit+1] }
	var trace [][]int32
	for d := 0; d <= limit; d++ {
		trace = append(trace, slices.Clone(v[limit+1-d:limit+2+d]))
		for k := -d; k <= d; k += 2 {
			x := int(*at(k - 1)) + 1
			if k == -d || k != d && *at(k - 1) < *at(k + 1) {
				x = int(*at(k + 1))
			}
			if d == 0 {
				x = 0
			}
			for x < n && x-k < m && a[x] == b[x-k] {
				x++
			}
			*at(k) = int32(x)
			if x >= n && x-k >= m {
				return back(trace, n, m, d)
			}
		}
	}
	return append(slices.Repeat([]string{"-"}, n), slices.Repeat([]string{"+"}, m)...)
}

// back follows the path that ends at (n, m) after d edits.
func back(trace [][]int32, n, m, d int) []string {
	var out []string
	x, y := n, m
	for ; d > 0; d-- {
		v := trace[d] // from diagonal -d to d, as it was before edit d
		at := func(k int) int32 { return v[k+d] }
		k := x - y
		from := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			from = k + 1
		}
		fromX := int(at(from))
		fromY := fromX - from
		for x > fromX && y > fromY {
			out = append(out, " ")
			x, y = x-1, y-1
		}
		if from > k {
			out = append(out, "+")
		} else {
			out = append(out, "-")
		}
		x, y = fromX, fromY
	}
	for ; x > 0; x-- {
		out = append(out, " ")
	}
	slices.Reverse(out)
	return out
}

// group cuts away what is far from any change.
func group(all []Line) (out []Hunk) {
	for i := 0; i < len(all); {
		if all[i].Op == " " {
			i++
			continue
		}
		begin, last := max(0, i-around), i
		for i < len(all) && i <= last+2*around {
			if all[i].Op != " " {
				last = i
			}
			i++
		}
		end := min(len(all), last+1+around)
		out = append(out, hunk(all, begin, end))
		i = max(last+1, end)
	}
	return out
}

func hunk(all []Line, begin, end int) Hunk {
	h := Hunk{Lines: slices.Clone(all[begin:end])}
	for _, l := range slices.Backward(all[:begin]) {
		h.OldStart, h.NewStart = max(h.OldStart, l.Old), max(h.NewStart, l.New)
		if l.Op == " " {
			break
		}
	}
	for _, l := range h.Lines {
		if l.Op != "+" {
			h.OldLines++
		}
		if l.Op != "-" {
			h.NewLines++
		}
	}
	if h.OldLines > 0 {
		h.OldStart++
	}
	if h.NewLines > 0 {
		h.NewStart++
	}
	return h
}
