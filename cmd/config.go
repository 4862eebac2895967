package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/runner/redact"
)

// fileConfig is config.yml as a whole.
type fileConfig struct {
	Data    string         `yaml:"data"`
	Log     string         `yaml:"log"`
	Hub     config.Hub     `yaml:"hub"`
	GitHub  config.GitHub  `yaml:"github"`
	Access  config.Access  `yaml:"access"`
	Metrics config.Metrics `yaml:"metrics"`
	Dev     config.Dev     `yaml:"dev"`
	Runner  runner.Config  `yaml:"runner"`
}

const defaultData = "/var/lib/claude-hub"

// configFlags are the flags that serve, runner and dev share.
type configFlags struct {
	file, data string
}

func (f *configFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "config", os.Getenv("CLAUDE_HUB_CONFIG"), "config file; config.yml in the repository has every key (CLAUDE_HUB_CONFIG)")
	c.Flags().StringVar(&f.data, "data", "", "data folder; default "+defaultData+" (CLAUDE_HUB_DATA)")
}

// again is the flags as they were given, for a command that is to be typed next.
func (f *configFlags) again() string {
	var s string
	if f.file != "" {
		s += " --config " + f.file
	}
	if f.data != "" {
		s += " --data " + f.data
	}
	return s
}

// load reads the config: flag over environment over file over default.
func (f *configFlags) load() (fileConfig, error) {
	cfg := fileConfig{Hub: config.DefaultHub(), Access: config.DefaultAccess(), Runner: runner.DefaultConfig()}
	err := config.Load(f.file, &cfg)
	if err == nil {
		err = errors.Join(cfg.Hub.Check(), cfg.GitHub.Check(), cfg.Access.Check(), cfg.Metrics.Check(), cfg.Dev.Check())
	}
	if err != nil {
		return cfg, usageError{err}
	}
	if f.data != "" {
		cfg.Data = f.data
	}
	if cfg.Data == "" {
		cfg.Data = defaultData
	}
	data, err := filepath.Abs(cfg.Data)
	if err != nil {
		return cfg, fmt.Errorf("find the data folder: %w", err)
	}
	cfg.Data = data
	return cfg, nil
}

// logger writes lines for people to a terminal and JSON elsewhere. level "" is info.
func logger(level string) (zerolog.Logger, error) {
	level = cmp.Or(level, "info")
	l, err := zerolog.ParseLevel(level)
	if err != nil {
		return zerolog.Logger{}, usageError{fmt.Errorf("log level %q is none of debug, info, warn, error", level)}
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	out := redact.LogWriter(redact.Process, os.Stderr)
	log := zerolog.New(out).Level(l).With().Timestamp().Logger()
	if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		log = log.Output(zerolog.ConsoleWriter{Out: out, TimeFormat: "15:04:05"})
	}
	return log, nil
}
