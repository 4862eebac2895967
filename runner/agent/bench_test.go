package agent

import (
	"fmt"
	"io"
	"testing"
)

func BenchmarkExec(b *testing.B) {
	box := boot(b, image{})
	c := ctx(b)
	for i := 0; b.Loop(); i++ {
		if _, err := box.Run(c, Cmd{ID: fmt.Sprint(i), Argv: []string{"/bin/true"}}, io.Discard, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	box := boot(b, image{})
	c := ctx(b)
	const size = 50 << 20
	b.SetBytes(size)
	for i := 0; b.Loop(); i++ {
		cmd := Cmd{ID: fmt.Sprint(i), Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}}
		if _, err := box.Run(c, cmd, io.Discard, nil); err != nil {
			b.Fatal(err)
		}
	}
}
