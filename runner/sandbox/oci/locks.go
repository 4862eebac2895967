package oci

import "sync"

// keyed is one mutex a key; keys nobody holds or waits for take no memory.
type keyed struct {
	mu sync.Mutex
	m  map[string]*keyedEntry
}

type keyedEntry struct {
	mu   sync.Mutex
	refs int
}

// lock waits until nobody else holds key and gives the function that lets go.
func (k *keyed) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*keyedEntry{}
	}
	en := k.m[key]
	if en == nil {
		en = &keyedEntry{}
		k.m[key] = en
	}
	en.refs++
	k.mu.Unlock()
	en.mu.Lock()
	return func() {
		en.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if en.refs--; en.refs == 0 {
			delete(k.m, key)
		}
	}
}
