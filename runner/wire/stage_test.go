package wire

import "testing"

func TestABootIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	got := BootText([]Stage{{StageDisk, 840}, {StageSandbox, 41_900}, {StageDocker, 1_260_000}, {StageStart, 2_000_000}, {"of a newer Runner", 10_000}})
	if want := "up after 1.3 s: disk 0.8 ms, Sandbox 41 ms, Docker 1.3 s, of a newer Runner 10 ms; then start script 2.0 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
