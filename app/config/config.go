// Package config is the Hub's part of config.yml, and how any part of it is read: defaults, then the file, then
// environment variables, the later over the earlier. Unknown keys are errors with their line.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"regexp"
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
	PeerURL      string        `yaml:"peer_url"`
	PortsDomain  string        `yaml:"ports_domain"`
	Database     string        `yaml:"database"`
	LogLimit     envspec.Size  `yaml:"log_limit"`
	TestDeadline time.Duration `yaml:"test_deadline"`
	// AutoTest starts Test builds of pull requests from the same repository, opened and pushed to by people with access, without being asked.
	AutoTest    bool          `yaml:"auto_test"`
	IdleAfter   time.Duration `yaml:"idle_after"`
	SessionDisk envspec.Size  `yaml:"session_disk"`
	// SessionDiskLimit is how large people may make a Session's disk.
	SessionDiskLimit envspec.Size `yaml:"session_disk_limit"`
	// ArchiveKeepsDisks has archived Sessions keep more than their Workspace.
	ArchiveKeepsDisks bool `yaml:"archive_keeps_disks"`

	EncryptionKeys    Secrets `yaml:"encryption_keys"`
	EncryptionKeyFile string  `yaml:"encryption_key_file"`
}

// leastSessionDisk is room for a root filesystem's changes and a small clone.
const leastSessionDisk = 256 << 20

// Check refuses values that could only fail later, in front of somebody else.
func (h Hub) Check() error {
	switch {
	case h.SessionDisk < leastSessionDisk:
		return fmt.Errorf("hub.session_disk is %d bytes: write at least 256MiB, with its unit", h.SessionDisk)
	case h.SessionDiskLimit < h.SessionDisk:
		return fmt.Errorf("hub.session_disk_limit is %d bytes, less than hub.session_disk", h.SessionDiskLimit)
	case h.LogLimit < 1<<20:
		return fmt.Errorf("hub.log_limit is %d bytes: write at least 1MiB, with its unit", h.LogLimit)
	case h.TestDeadline < time.Minute || h.IdleAfter < time.Second:
		return fmt.Errorf("hub.test_deadline is at least 1m and hub.idle_after at least 1s, not %s and %s", h.TestDeadline, h.IdleAfter)
	}
	if h.PeerURL != "" {
		u, err := url.Parse(h.PeerURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" || u.User != nil {
			return fmt.Errorf("hub.peer_url is how other Hubs reach this one, such as http://10.0.0.5:7780, without a path: %q is not", h.PeerURL)
		}
	}
	return nil
}

// DefaultHub is what holds where neither file nor environment says otherwise.
func DefaultHub() Hub {
	return Hub{
		Listen: "127.0.0.1:7780", LogLimit: 64 << 20, TestDeadline: time.Hour, IdleAfter: 15 * time.Minute, SessionDisk: 20 << 30, SessionDiskLimit: 200 << 30,
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

var repoName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9._-]{1,100}$`)

// Check says what is wrong with dev.repos.
func (d Dev) Check() error {
	ids, names := map[github.RepoID]bool{}, map[string]bool{}
	for i, r := range d.Repos {
		switch {
		case r.ID <= 0 || ids[r.ID]:
			return fmt.Errorf("dev.repos: entry %d needs an id of its own, 1 or more", i+1)
		case !repoName.MatchString(r.Name) || names[r.Name]:
			return fmt.Errorf("dev.repos: entry %d (id %d) needs a name of its own, as owner/name; %q is not one", i+1, r.ID, r.Name)
		case r.URL == "":
			return fmt.Errorf("dev.repos: %s needs a url that git can clone", r.Name)
		}
		ids[r.ID], names[r.Name] = true, true
	}
	return nil
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
