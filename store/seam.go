package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// dialect is what a database must bring. Both are in dialect.go.
type dialect interface {
	open(context.Context) (pools, error)
	txOptions(write bool) *sql.TxOptions
	// locks are appended to a SELECT that locks its rows, waiting for or skipping those that are locked.
	locks() (wait, skip string)
	// tableExists is a query with the table's name as $1.
	tableExists() string
	// guardQuery answers whether a Write may go on, and the epoch. Empty where an instance lock can't drop.
	guardQuery() string
	// tryLock answers nil and no error when somebody else has the instance lock.
	tryLock(ctx context.Context, exclusive bool) (held, error)
	notify(ctx context.Context, db *sql.DB, hub string)
	// listen calls hear with the id of each DB that notifies, until ctx or its connection ends.
	listen(ctx context.Context, hear func(hub string)) error
}

// errNoNotify is what listen answers where there is nothing to listen to.
var errNoNotify = errors.New("this database has no notifications")

type pools struct {
	read, write      *sql.DB
	readers, writers int
}

// class is what an error of a driver means to us.
type class int

const (
	classOther class = iota
	classUnique
	classConstraint
	classFull
	classAway     // the database can't be reached
	classConflict // nothing was stored, and another try may do better
)

func retryable(err error) bool { return classify(err) == classConflict }

func dialectFor(at string) (dialect, error) {
	scheme, rest, ok := strings.Cut(at, "://")
	switch {
	case !ok && at != "" && !strings.HasPrefix(at, ":") && !strings.HasPrefix(at, "file:"):
		return newLite(at)
	case ok && scheme == "sqlite":
		path, err := url.PathUnescape(rest)
		if err != nil || !filepath.IsAbs(path) || strings.ContainsAny(rest, "?#") {
			return nil, fmt.Errorf("database URL %q: write sqlite:// and an absolute path, as in sqlite:///var/lib/claude-hub/hub.db", at)
		}
		return newLite(path)
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		return newPostgres(at)
	}
	return nil, errors.New("the database URL must be sqlite:///path/file.db, a path, or postgres://user@host/database")
}

// pingUnlocked waits as long as busy_timeout would: SQLite doesn't wait by itself for the lock that makes a file a WAL one, which
// processes that open a new file together all ask for.
func pingUnlocked(ctx context.Context, pool *sql.DB) error {
	limit := time.Now().Add(5 * time.Second)
	for {
		err := pool.PingContext(ctx)
		if err == nil || !retryable(err) || time.Now().After(limit) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
