package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// values asks the Hub for the values of a Recipe's Variables as they are now, for the attempt that begins, and has the redactors
// know them before any process does. An Environment without Variables asks for nothing. What the Hub refuses is a
// *build.Failed with its very sentence.
func (w *worker) values(ctx context.Context, rec record, recipe wire.Recipe) (*secret.Values, error) {
	spec, err := build.Spec(recipe)
	if err != nil || len(spec.Variables) == 0 {
		return nil, err
	}
	refuse := func(why string) error {
		return &build.Failed{Failure: wire.Failure{Code: build.CodeValues, Message: why}}
	}
	for {
		list, refused, err := w.r.client.Values(ctx, rec.ID, rec.Generation, rec.Fence)
		switch {
		case err == nil && refused != "":
			return nil, refuse(refused)
		case err == nil:
			vs, err := secret.From(list)
			if err != nil {
				return nil, refuse(err.Error())
			}
			for _, v := range spec.Variables {
				if !vs.Named(v.Name) {
					return nil, refuse(fmt.Sprintf("the Hub sent no value of the Variable %s", v.Name))
				}
			}
			w.r.hides.Join(w.set) // until the assignment is forgotten: values that were replaced are in the Set still
			return vs, vs.Hide(w.set)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, hubclient.ErrFenced), errors.Is(err, hubclient.ErrStale), errors.Is(err, hubclient.ErrUnknown):
			return nil, errStale
		}
		select {
		case <-time.After(w.r.retry):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// resume has a Session that an earlier process of the Runner left running go on under this one, which must know its values before
// it follows any output. known is false while it doesn't: then the Sandbox goes on by itself, and each new list of the Hub
// asks again. Values that were replaced since its boot are nowhere to be had, and its processes may still print them: what
// they print is not shown until the Session has slept, and who opens a channel is told so.
func (w *worker) resume(ctx context.Context, rec record) (known bool, err error) {
	m := w.machine
	if m.Followed() {
		return true, nil
	}
	err = w.activity(ctx, func(ctx context.Context) error {
		values, err := w.values(ctx, rec, m.Payload().Recipe)
		if err != nil {
			return err
		}
		if !values.Covers(m.State().Handed) {
			return &build.Failed{Failure: wire.Failure{Code: build.CodeValues, Message: replacedValues}}
		}
		m.Follow(values)
		return nil
	})
	var failed *build.Failed
	switch {
	case err == nil:
		w.track.Retract(notShown(w.withheld))
		w.withheld = ""
		return true, nil
	case errors.As(err, &failed):
		if w.withheld != failed.Message {
			w.track.Retract(notShown(w.withheld))
			w.withheld = failed.Message
			w.stream.Mark("the Sandbox goes on, but what it prints is not shown until its values are there to be hidden: %s", failed.Message)
			w.track.Note(notShown(failed.Message))
		}
		m.Withhold(notServed(failed.Message))
		return false, nil
	case errors.Is(err, build.ErrShutdown), errors.Is(err, build.ErrCancelled), errors.Is(err, errStale), ctx.Err() != nil:
		return false, nil
	}
	return false, err
}

// replacedValues is why a Session's output can't be shown.
const replacedValues = "a Sensitive value that it was started with was replaced, and this Runner was restarted since, so it no longer " +
	"knows what to hide. Put the Session to sleep and wake it: it then has the new value"

func notShown(why string) string { return "what the Session prints is not shown: " + why }

// notServed is what an exec or a terminal is answered meanwhile.
func notServed(why string) string {
	if why != replacedValues {
		why += ". After that, put the Session to sleep and wake it"
	}
	return "this Session can't show what a command or a terminal prints, so it runs none: " + why
}
