package wire

import "testing"

func TestStagesAreSaidInOneLine(t *testing.T) {
	t.Parallel()
	got := StagesText([]Stage{{StageDisk, 840}, {StageSandbox, 41_900}, {StageDocker, 1_260_000}, {"of a newer Runner", 10_000}})
	if want := "disk 0.8 ms, Sandbox 41 ms, Docker 1.3 s, of a newer Runner 10 ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
