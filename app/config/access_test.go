package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/config"
)

func TestAccessIsChecked(t *testing.T) {
	t.Parallel()
	if err := config.DefaultAccess().Check(); err != nil {
		t.Fatal(err)
	}
	for key, change := range map[string]func(*config.Access){
		"access.people": func(a *config.Access) { a.People = []int64{7, 0} },
		"access.age":    func(a *config.Access) { a.Age = 0 },
		"access.outage": func(a *config.Access) { a.Outage = time.Minute },
	} {
		a := config.DefaultAccess()
		change(&a)
		if err := a.Check(); err == nil || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
	}
	for key, change := range map[string]func(*config.Access){
		"access.age":    func(a *config.Access) { a.Age, a.Outage = 2*time.Hour, 3*time.Hour },
		"access.outage": func(a *config.Access) { a.Outage = 48 * time.Hour },
	} {
		a := config.DefaultAccess()
		change(&a)
		if err := a.Check(); err == nil || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
