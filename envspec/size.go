package envspec

import (
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes in a config file or an environment variable, written as a whole number, or with a unit of a
// document's memory: 512MiB, 4GiB. A document itself is stricter: see [ParseMemory].
type Size int64

// ParseSize reads a Size.
func ParseSize(v string) (Size, error) {
	number, size := strings.TrimSuffix(v, "B"), int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(v, u.name); ok {
			number, size = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/size {
		return 0, fmt.Errorf("%s is not a size: write a whole number with KiB, MiB, GiB or TiB, such as 512MiB", quote(v))
	}
	return Size(n * size), nil
}

// UnmarshalText is how YAML and the environment read a Size.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	*s = v
	return err
}
