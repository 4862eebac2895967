package store

import (
	"context"
	"io/fs"
	"time"
)

// What tests change about Open.

func WithMigrations(from fs.FS) Option    { return func(o *options) { o.migrations = from } }
func WithoutNotify() Option               { return func(o *options) { o.notify = false } }
func WithWait(d time.Duration) Option     { return func(o *options) { o.wait = d } }
func WithLockLook(d time.Duration) Option { return func(o *options) { o.look = d } }
func Shipped() fs.FS                      { return shipped() }
func RefusePlace(d string, m int64) error { return refuse(d, m) }

// Prune deletes what other Hubs have had the time to see.
func Prune(db *DB) { db.prune(context.Background()) }
