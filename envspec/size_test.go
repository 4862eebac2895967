package envspec

import "testing"

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Size{"0": 0, "17": 17, "4 KiB": 4096, "2GiB": 2 << 30, "1TiB": 1 << 40, "5B": 5} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "GiB", "1.5GiB", "-1", "4GB", "9999999TiB", "12kib"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q: got %d, want an error", in, got)
		}
	}
}
