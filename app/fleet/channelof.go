package fleet

// ChannelOf tells which assignment a channel leads into, so that who may use the one can be asked before the other is
// touched. ErrNoChannel: this Hub doesn't have it (any more).
func (f *Fleet) ChannelOf(id string) (assignment string, err error) {
	c := &f.channels
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.byID[id]
	if ch == nil {
		return "", ErrNoChannel
	}
	return ch.assignment, nil
}
