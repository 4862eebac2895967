package client

import "time"

// SetPatience shortens for how long a Client tries again.
func SetPatience(c *Client, d time.Duration) { c.patience = d }
