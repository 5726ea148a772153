// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// network is the share of 198.18.0.0/15 that a cluster with a node has, and the name of its bridge.
type network struct {
	n byte
}

func (n network) bridge() string   { return fmt.Sprintf("kdbr%d", n.n) }
func (n network) node() net.IP     { return net.IPv4(198, 18, n.n, 1) }
func (n network) service() net.IP  { return net.IPv4(198, 19, n.n, 1) }
func (n network) pods() string     { return fmt.Sprintf("198.18.%d.0/24", n.n) }
func (n network) services() string { return fmt.Sprintf("198.19.%d.0/24", n.n) }

// hardware is the address of the bridge. A bridge that is given none takes the lowest of its ports' and changes it as
// pods come and go; the other pods then lose the API server until they ask for the node's address again.
func (n network) hardware() string { return fmt.Sprintf("02:4b:44:00:00:%02x", n.n) }

// claimNetwork makes the bridge. Its name is the claim to the addresses: only one of two clusters can make it. Its
// alias says whose it is.
func (c *Cluster) claimNetwork(ctx context.Context) error {
	var err error
	for range 16 {
		c.net.n = byte(rand.Uint32())
		if _, serr := os.Stat("/sys/class/net/" + c.net.bridge()); serr == nil {
			err = fmt.Errorf("claim bridge %q: %w", c.net.bridge(), os.ErrExist)
			continue
		}
		if err = c.run(ctx, "ip", "link", "add", "name", c.net.bridge(), "address", c.net.hardware(), "type", "bridge"); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	dev := c.net.bridge()
	return errors.Join(
		c.run(ctx, "ip", "link", "set", "dev", dev, "alias", c.dir),
		c.run(ctx, "ip", "link", "set", "dev", dev, "up"),
		c.run(ctx, "ip", "address", "add", c.net.node().String()+"/24", "dev", dev),
		c.run(ctx, "ip", "address", "add", c.net.service().String()+"/32", "dev", dev))
}

// randomLoopback returns an address below 127.0.0.0/8 that, most likely, no other cluster has.
func randomLoopback() net.IP {
	r := rand.Uint32()
	return net.IPv4(127, byte(1+r%254), byte(r>>8), byte(1+(r>>16)%254))
}
