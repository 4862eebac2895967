package build

import (
	"context"
	"errors"
	"strings"

	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// An image is held while a Sandbox is made from it, and while a build stands on its layers: neither `image rm` nor
// pruning takes layers from under them. What holds it is said to the person who tries.
const (
	heldByBox   = "Sandbox "
	heldByBuild = "build "
)

func (b *Builder) hold(ctx context.Context, owner, digest string) error {
	return cause(ctx, b.images.Hold(ctx, owner, digest))
}

// release works also when ctx has ended.
func (b *Builder) release(ctx context.Context, owner string) error {
	return b.images.Release(context.WithoutCancel(ctx), owner)
}

// sweepHolds ends the holds of builds that were never finished or are gone, and adds the Sandboxes that hold one to boxes.
func (b *Builder) sweepHolds(ctx context.Context, boxes map[sandbox.ID]bool) error {
	holds, err := b.images.Holds()
	if err != nil {
		return err
	}
	var errs []error
	for owner := range holds {
		if id, ok := strings.CutPrefix(owner, heldByBox); ok {
			boxes[sandbox.ID(id)] = true
		}
		name, ok := strings.CutPrefix(owner, heldByBuild)
		if !ok {
			continue
		}
		switch _, found, err := b.engine.Base(ctx, name); {
		case err != nil:
			errs = append(errs, err)
		case !found:
			errs = append(errs, b.release(ctx, owner))
		}
	}
	return errors.Join(errs...)
}

// pruneImages deletes images that have lost their name to a newer one and that nothing stands on.
func (b *Builder) pruneImages(ctx context.Context) error {
	mounted, err := image.Mounted()
	if err != nil {
		return err
	}
	_, err = b.images.Prune(ctx, mounted)
	return err
}
