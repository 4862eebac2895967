package config

import (
	"errors"
	"fmt"
	"net"
)

// Metrics is the section "metrics": where Prometheus may look. The zero value is nowhere.
type Metrics struct {
	Listen string `yaml:"listen"`
	Token  Secret `yaml:"token"`
}

// leastMetricsToken is how long a token has to be that everybody who reaches the Hub may guess at.
const leastMetricsToken = 16

// Check refuses what would show them to everybody, or to nobody.
func (m Metrics) Check() error {
	if m.Token != "" && len(m.Token) < leastMetricsToken {
		return fmt.Errorf("metrics.token is too short to be safe: write at least %d characters", leastMetricsToken)
	}
	if m.Listen != "" {
		if _, _, err := net.SplitHostPort(m.Listen); err != nil {
			return errors.New("metrics.listen is an address with a port, such as 127.0.0.1:9464")
		}
	}
	return nil
}
