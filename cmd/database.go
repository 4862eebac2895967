package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

// databaseOf is where the Hub's database is, as store.Open takes it.
func databaseOf(cfg fileConfig) string {
	if cfg.Hub.Database != "" {
		return cfg.Hub.Database
	}
	return filepath.Join(cfg.Data, "hub.db")
}

// missingDatabase is the file that the Hub's database would be in, and whether it is not there; one of PostgreSQL never is missing.
func missingDatabase(cfg fileConfig) (file string, missing bool) {
	scheme, file, ok := strings.Cut(databaseOf(cfg), "://")
	if !ok {
		scheme, file = "sqlite", databaseOf(cfg)
	} else if path, err := url.PathUnescape(file); err == nil {
		file = path
	}
	_, err := os.Stat(file)
	return file, scheme == "sqlite" && errors.Is(err, fs.ErrNotExist)
}

// openExisting opens the database of a Hub that has run. Made anew where --data or --config is missing, an empty one would
// answer that all is well.
func openExisting(ctx context.Context, cfg fileConfig, opts ...store.Option) (*store.DB, error) {
	if file, missing := missingDatabase(cfg); missing {
		return nil, usageError{fmt.Errorf("there is no database of a Hub at %s. Say which Hub is meant, with the --config or --data that it runs with", file)}
	}
	db, err := store.Open(ctx, databaseOf(cfg), opts...)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return db, nil
}

// withRemedy says, beside a Hub's refusal to start without a key, the remedy as it is typed for this Hub.
func withRemedy(err error, flags configFlags) error {
	var lost *seal.LostError
	var gone *keyFileError
	if !errors.As(err, &lost) && !errors.As(err, &gone) || flags.again() == "" {
		return err
	}
	return fmt.Errorf("%w\nFor this Hub that is: claude-hub secrets-reset%s --dry-run", err, flags.again())
}
