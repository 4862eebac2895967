package cmd

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/runner"
)

const exampleConfig = "../config.yml"

// keys lists every key of the config as its environment variable.
func keys(t reflect.Type, prefix string) []string {
	var all []string
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		name := prefix + "_" + strings.ToUpper(key)
		if t.Field(i).Type.Kind() == reflect.Struct {
			all = append(all, keys(t.Field(i).Type, name)...)
			continue
		}
		all = append(all, name)
	}
	return all
}

func TestTheExampleConfigHasEveryKeyWithItsVariable(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(exampleConfig)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	for _, name := range keys(reflect.TypeFor[fileConfig](), "CLAUDE_HUB") {
		found := 0
		for _, line := range lines {
			key, comment, ok := strings.Cut(strings.TrimSpace(line), "# ")
			if ok && comment == name && strings.HasSuffix(name, "_"+strings.ToUpper(strings.SplitN(key, ":", 2)[0])) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("config.yml names %s beside its key %d times, want once", name, found)
		}
	}
}

func TestTheExampleConfigSaysTheDefaults(t *testing.T) {
	t.Parallel()
	want := fileConfig{Hub: config.DefaultHub(), Access: config.DefaultAccess(), Runner: runner.DefaultConfig()}
	var got fileConfig
	if err := config.Load(exampleConfig, &got); err != nil {
		t.Fatal(err)
	}
	got.Dev.Repos, got.Access.People = nil, nil
	got.Runner.Images, got.Runner.Net = runner.ImagesConfig{}, runner.NetworkConfig{} // empty lists are no lists
	if !reflect.DeepEqual(got, want) {
		t.Errorf("config.yml says\n%+v\nthe defaults are\n%+v", got, want)
	}
}
