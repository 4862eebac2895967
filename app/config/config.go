// Package config is the Hub's part of config.yml, and how any part of it is read: defaults, then the file, then
// environment variables, the later over the earlier. Unknown keys are errors with their line.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/envspec"
)

// Hub is the section "hub".
type Hub struct {
	Listen       string        `yaml:"listen"`
	URL          string        `yaml:"url"`
	Database     string        `yaml:"database"`
	LogLimit     envspec.Size  `yaml:"log_limit"`
	TestDeadline time.Duration `yaml:"test_deadline"`
	IdleAfter    time.Duration `yaml:"idle_after"`
	SessionDisk  envspec.Size  `yaml:"session_disk"`
}

// DefaultHub is what holds where neither file nor environment says otherwise.
func DefaultHub() Hub {
	return Hub{
		Listen: "127.0.0.1:7780", LogLimit: 64 << 20, TestDeadline: time.Hour, IdleAfter: 15 * time.Minute, SessionDisk: 20 << 30,
	}
}

// Dev is the section "dev": a Hub without GitHub.
type Dev struct {
	Login bool   `yaml:"login"`
	Repos []Repo `yaml:"repos"`
}

// Repo is one Repo of dev.repos. Its ID is yours to choose, as GitHub's would be: it is what everything is kept
// under.
type Repo struct {
	ID   github.RepoID `yaml:"id"`
	Name string        `yaml:"name"`
	URL  string        `yaml:"url"`
}

// Load reads the file at path into the struct that into points to, over what is in it already, and then the
// environment variables: a key's variable is CLAUDE_HUB_ and its path in capitals, so hub.log_limit is
// CLAUDE_HUB_HUB_LOG_LIMIT. An empty path reads no file.
func Load(path string, into any) error {
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the config file: %w", err)
		}
		dec := yaml.NewDecoder(bytes.NewReader(b))
		dec.KnownFields(true)
		if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return fromEnv(reflect.ValueOf(into).Elem(), "CLAUDE_HUB")
}

func fromEnv(v reflect.Value, prefix string) error {
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		field, name := v.Field(i), prefix+"_"+strings.ToUpper(key)
		if field.Kind() == reflect.Struct {
			if err := fromEnv(field, name); err != nil {
				return err
			}
			continue
		}
		value, ok := os.LookupEnv(name)
		if !ok {
			continue
		}
		if err := set(field, value); err != nil {
			return fmt.Errorf("environment variable %s: %w", name, err)
		}
	}
	return nil
}

// set goes by way of YAML, so that a value means the same in file and environment.
func set(field reflect.Value, value string) error {
	if field.Kind() == reflect.String {
		field.SetString(value)
		return nil
	}
	return yaml.Unmarshal([]byte(value), field.Addr().Interface())
}
