// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package ceph runs a real Ceph file system for tests: one monitor, one OSD that keeps everything in memory and one MDS,
// from Debian's packages, as root, without authentication, on free ports of the loopback address. Clients are real
// ceph-fuse processes, which a test can freeze, kill, evict and start again. It starts no manager, and needs no systemd
// and no container runtime. Everything is in one folder, and ends with the process that started it, however that ends.
package ceph

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/freeport"
)

// programs are what a cluster and its clients are made of.
var programs = []string{"ceph", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse"}

// Cluster is a running Ceph cluster with one file system, or with one pool for images of block devices.
type Cluster struct {
	dir      string
	lock     *os.File // held by the owner as long as it lives
	daemons  []*process
	monitors []netip.AddrPort // where the monitor listens, for both versions of the protocol
}

// Start starts a cluster, installs what it needs for that, and waits until its file system can be mounted: some eight
// seconds. It first removes the rest of clusters whose owner was killed. The caller must Stop it.
func Start(ctx context.Context) (*Cluster, error) {
	return start(ctx, programs, (*Cluster).startMDS)
}

// start starts a cluster of which last serves what it is for.
func start(ctx context.Context, programs []string, last func(*Cluster, context.Context) error) (*Cluster, error) {
	if err := debian.Install(ctx, programs...); err != nil {
		return nil, err
	}
	if err := Sweep(); err != nil {
		return nil, err
	}
	c, err := newCluster()
	if err != nil {
		return nil, err
	}
	for _, step := range []func(*Cluster, context.Context) error{(*Cluster).configure, (*Cluster).startMonitor, (*Cluster).startOSD, last} {
		if err := step(c, ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("start ceph: %w", err), c.Stop())
		}
	}
	return c, nil
}

// Stop kills the cluster's daemons and removes its folder, with all data. Clients are their users' to close before.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.daemons {
		if !p.kill(maxEnd) {
			errs = append(errs, fmt.Errorf("kill %s: it lives on", p.cmd.Path))
		}
	}
	defer c.lock.Close()
	return errors.Join(append(errs, remove(c.dir))...)
}

// Conf is the path of the ceph.conf with which any client reaches the cluster, as user admin, without a key.
func (c *Cluster) Conf() string { return c.path(conf) }

// Dir is the cluster's folder, which is there until Stop.
func (c *Cluster) Dir() string { return c.dir }

// path joins names to the cluster's folder.
func (c *Cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}

const configuration = `[global]
fsid = %FSID
mon host = %MON
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
public addr = 127.0.0.1
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
run dir = %DIR/run
log file = %DIR/log/$name.$pid.log
[mon]
mon data = %DIR/mon
paxos propose interval = 0.05
paxos min wait = 0.01
[osd]
osd data = %DIR/osd
osd objectstore = memstore
[mds]
mds data = %DIR/mds
mds tick interval = 0.2
[client]
client caps release delay = 1
`

// configure writes ceph.conf and the map that names the monitor.
func (c *Cluster) configure(ctx context.Context) error {
	for _, name := range []string{"mon", "osd", "mds", "run", "log"} {
		if err := os.Mkdir(c.path(name), 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	fsid := string(uuid.NewUUID())
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 2)
	if err != nil {
		return err
	}
	for _, a := range free {
		c.monitors = append(c.monitors, a.AddrPort())
	}
	monitor := fmt.Sprintf("[v2:%s,v1:%s]", free[0], free[1])
	text := strings.NewReplacer("%FSID", fsid, "%MON", monitor, "%DIR", c.dir).Replace(configuration)
	if err := os.WriteFile(c.Conf(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write ceph.conf: %w", err)
	}
	return c.run(ctx, "monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, c.path("monmap"))
}

func (c *Cluster) startMonitor(ctx context.Context) error {
	if err := c.run(ctx, "ceph-mon", "--mkfs", "-i", "a", "--monmap", c.path("monmap")); err != nil {
		return err
	}
	socket := c.path("run", "mon.asok")
	if err := c.daemon("ceph-mon", "-f", "-i", "a", "--admin-socket="+socket); err != nil {
		return err
	}
	return c.await(ctx, socket, "mon_status", "leader")
}

func (c *Cluster) startOSD(ctx context.Context) error {
	id := string(uuid.NewUUID())
	if err := c.run(ctx, "ceph", "osd", "new", id); err != nil {
		return err
	}
	if err := c.run(ctx, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", id); err != nil {
		return err
	}
	return c.daemon("ceph-osd", "-f", "-i", "0")
}

// startMDS makes the file system and waits until an MDS serves it.
func (c *Cluster) startMDS(ctx context.Context) error {
	for _, args := range [][]string{
		{"osd", "pool", "create", "fs_meta", "8"},
		{"osd", "pool", "create", "fs_data", "8"},
		{"fs", "new", "fs", "fs_meta", "fs_data"},
	} {
		if err := c.run(ctx, "ceph", args...); err != nil {
			return err
		}
	}
	if err := c.daemon("ceph-mds", "-f", "-i", "a", "--admin-socket="+c.mdsSocket()); err != nil {
		return err
	}
	return c.await(ctx, c.mdsSocket(), "status", "up:active")
}

func (c *Cluster) mdsSocket() string { return c.path("run", "mds.asok") }

// await waits until the daemon of an admin socket says that it is in a state.
func (c *Cluster) await(ctx context.Context, socket, command, state string) error {
	return c.wait(ctx, state, func() error {
		var status struct{ State string }
		err := ask(ctx, socket, map[string]any{"prefix": command}, &status)
		if err == nil && status.State != state {
			err = fmt.Errorf("state is %q", status.State)
		}
		return err
	})
}

// wait asks ready every 20 ms until it answers nil, ctx ends, or a daemon of the cluster does.
func (c *Cluster) wait(ctx context.Context, what string, ready func() error) error {
	for {
		err := ready()
		if err == nil {
			return nil
		}
		for _, p := range c.daemons {
			if p.ended() {
				return fmt.Errorf("wait for %s: %w: %w", what, err, p.failure())
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
