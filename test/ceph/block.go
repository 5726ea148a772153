// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
)

// blockPrograms are what a cluster for block devices is made of.
var blockPrograms = []string{"ceph", "ceph-mon", "ceph-osd", "rbd"}

// StartBlock is Start for a cluster that has no file system: it has the pool rbd for images of block devices.
func StartBlock(ctx context.Context) (*Cluster, error) {
	return start(ctx, blockPrograms, (*Cluster).makePool)
}

func (c *Cluster) makePool(ctx context.Context) error {
	return c.run(ctx, "ceph", "osd", "pool", "create", "rbd", "8")
}

// CreateImage makes an image of so many megabytes in the pool rbd, with the features that every kernel can map.
func (c *Cluster) CreateImage(ctx context.Context, name string, megabytes int) error {
	return c.run(ctx, "rbd", "create", "--image-feature", "layering", "--size", strconv.Itoa(megabytes), name)
}

// Monitor is where the monitor answers kernels, with the protocol's first version.
func (c *Cluster) Monitor() netip.AddrPort { return c.monitors[1] }

// Addresses lists where the daemons of a cluster answer their clients. A client must find each at this very address.
func (c *Cluster) Addresses(ctx context.Context) ([]netip.AddrPort, error) {
	out, err := c.output(ctx, "ceph", "osd", "dump", "--format", "json")
	if err != nil {
		return nil, err
	}
	var dump struct {
		OSDs []struct {
			Public struct {
				Addresses []struct {
					Address netip.AddrPort `json:"addr"`
				} `json:"addrvec"`
			} `json:"public_addrs"`
		} `json:"osds"`
	}
	if err := json.Unmarshal(out, &dump); err != nil {
		return nil, fmt.Errorf("decode map of OSDs: %w", err)
	}
	all := append([]netip.AddrPort(nil), c.monitors...)
	for _, osd := range dump.OSDs {
		for _, a := range osd.Public.Addresses {
			all = append(all, a.Address)
		}
	}
	return all, nil
}
