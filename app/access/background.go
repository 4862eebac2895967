package access

import (
	"context"
	"sync"
	"time"
)

const (
	// activeFor is how long after their last request a person's list is kept fresh, so that the next one needn't wait.
	activeFor = time.Hour
	// ahead is the part of Age after which that is done.
	ahead = 0.7
	// sweepEvery is how often it is looked who is due, and sweepers how many are asked about at once.
	sweepEvery = 15 * time.Second
	sweepers   = 4
)

// lastKnown is when a person asked for something here, and how old their list was.
type lastKnown struct{ used, listed time.Time }

// saw notes a request of a person.
func (g *Gate) saw(v view) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active[v.who.id] = &lastKnown{v.now, v.standing.listed}
}

// knows notes how old a person's list is now.
func (g *Gate) knows(person string, listed time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.active[person]; k != nil {
		k.listed = listed
	}
}

// due are the people who asked for something lately and whose lists are about to be too old. Others are dropped.
func (g *Gate) due() (people []string) {
	now := g.db.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, k := range g.active {
		switch {
		case now.Sub(k.used) > activeFor:
			delete(g.active, id)
		case now.Sub(k.listed) >= g.soon():
			people = append(people, id)
		}
	}
	return people
}

func (g *Gate) soon() time.Duration { return time.Duration(float64(g.age) * ahead) }

// Start keeps what is known of people who use this Hub fresh, until ctx ends or Stop.
func (g *Gate) Start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.Err() != nil {
		return nil
	}
	g.running.Add(1)
	go func() {
		defer g.running.Done()
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-g.life.Done():
				return
			case <-tick.C:
				g.sweep(ctx)
			}
		}
	}()
	return nil
}

// sweep asks about everybody who is due, few at a time.
func (g *Gate) sweep(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, sweepers)
	since := g.db.Now().Add(-g.soon())
	for _, person := range g.due() {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			// What goes wrong is said where it happens, and to the person once it matters.
			_ = g.refresh(ctx, person, since, flightLimit)
		}()
	}
	wg.Wait()
}

// Stop ends what runs in the background, and waits for it. Stopping twice does nothing.
func (g *Gate) Stop() {
	g.mu.Lock()
	g.end()
	g.mu.Unlock()
	g.running.Wait()
}
