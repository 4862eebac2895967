package redact

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestAProcessLogHidesValuesInMessagesFieldsAndErrors(t *testing.T) {
	t.Parallel()
	var set Set
	if err := set.Add("KEY", []byte("va\"lue of a key\n")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := zerolog.New(LogWriter(&set, &out))
	log.Error().Err(errors.New("no: va\"lue of a key\n")).Str("field", "va\"lue of a key\n").Msg("got va\"lue of a key")
	if got := out.String(); strings.Contains(got, "lue of a key") || strings.Count(got, Mask) != 3 || !strings.HasSuffix(got, "}\n") {
		t.Errorf("logged: %s", got)
	}
}

func TestAValueThatIsAddedTwiceIsOne(t *testing.T) {
	t.Parallel()
	var set Set
	for range 2 {
		if err := set.Add("KEY", []byte("the same value")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(set.needles); set.Len() != 1 || set.Add("KEY", []byte("another value")) != nil || set.Len() != 2 || len(set.needles) == n {
		t.Errorf("%d values, %d needles", set.Len(), len(set.needles))
	}
}
