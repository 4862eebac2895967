package config

import (
	"fmt"
	"time"
)

// Access is the section "access": who may come in, and how old GitHub's word on it may be.
type Access struct {
	// People may sign in though GitHub shows them no Repo of this Hub, by GitHub's numeric ids. They still reach only the
	// Repos that GitHub lists for them.
	People []int64       `yaml:"people"`
	Age    time.Duration `yaml:"age"`
	Outage time.Duration `yaml:"outage"`
}

// Bounds of Access: shorter would ask GitHub more than its limits give, longer would be no check.
const (
	leastAge   = 30 * time.Second
	mostAge    = time.Hour
	mostOutage = 24 * time.Hour
)

// DefaultAccess is what holds where neither file nor environment says otherwise.
func DefaultAccess() Access { return Access{Age: 5 * time.Minute, Outage: time.Hour} }

// Check refuses values that would be no check, or too many.
func (a Access) Check() error {
	for i, id := range a.People {
		if id <= 0 {
			return fmt.Errorf("access.people: entry %d is %d: write GitHub's numeric id of the person, which https://api.github.com/users/LOGIN shows as id", i+1, id)
		}
	}
	switch {
	case a.Age < leastAge || a.Age > mostAge:
		return fmt.Errorf("access.age is %s: write 30s to 1h", a.Age)
	case a.Outage < a.Age || a.Outage > mostOutage:
		return fmt.Errorf("access.outage is %s: write at least access.age (%s), and at most 24h", a.Outage, a.Age)
	}
	return nil
}
