package environment

import (
	"fmt"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/store"
)

// Watcher is told of a Test build in the transaction that changed it, which may be repeated: it changes nothing but tx. t is
// as it is after the change; its Spec has no values. An error undoes the change: the person who asked is told, a Runner
// reports again, and a loss is looked at again later. So a Watcher fails only for what a repetition can mend.
type Watcher func(tx *store.Tx, repo access.Repo, t TestBuild) error

// Watch has f told of every change of every Test build: asked for, its phases and progress, somebody asked to cancel it, and
// its end, passed, failed, cancelled or lost, which is told once. What changed nothing isn't told. Watchers are added before
// the fleet is started, and told in that order.
func (s *Service) Watch(f Watcher) { s.watchers = append(s.watchers, f) }

// VersionWatcher is told of a new version in the transaction that makes it, as a Watcher of a Test build is.
type VersionWatcher func(tx *store.Tx, repo access.Repo, v Version) error

// WatchVersions has f told of every new version.
func (s *Service) WatchVersions(f VersionWatcher) { s.versionWatchers = append(s.versionWatchers, f) }

// changed wakes who looks at the Repo's Environment, and tells Watchers of a Test build.
func (s *Service) changed(tx *store.Tx, repo access.Repo, test string) error {
	tx.Wake(TopicOf(repo))
	if len(s.watchers) == 0 {
		return nil
	}
	t, err := scanTest(tx.Row(testByIDSQL, test).Scan)
	if err != nil {
		return fmt.Errorf("read Test build %s: %w", test, err)
	}
	for _, f := range s.watchers {
		if err := f(tx, repo, t); err != nil {
			return fmt.Errorf("tell of Test build %s: %w", test, err)
		}
	}
	return nil
}
