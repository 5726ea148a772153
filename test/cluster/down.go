// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// errNotFound says that there is no living cluster of that name.
var errNotFound = errors.New("no such cluster")

// AwaitDown returns when a process calls Down for the cluster's name, or ctx ends. Then it is time for Stop.
func (c *Cluster) AwaitDown(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", c.path("down.sock"))
	if err != nil {
		return fmt.Errorf("listen for down: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen for down: %w", err)
	}
	return conn.Close()
}

// Down has the owner of the named cluster of this user stop it, and waits until its folder is gone.
func Down(ctx context.Context, name string) error {
	dir, err := find(name)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", filepath.Join(dir, "down.sock"))
	if err != nil {
		return fmt.Errorf("connect to the owner of cluster %q: %w", name, err)
	}
	defer conn.Close()
	for {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %q to go: %w", dir, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Exists says whether this user has a living cluster of that name.
func Exists(name string) bool {
	_, err := find(name)
	return err == nil
}

// find returns the folder of the living cluster of that name.
func find(name string) (string, error) {
	if err := Sweep(); err != nil {
		return "", err
	}
	dirs, err := clusterDirs()
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if s, err := readState(dir); err == nil && s.Name == name {
			return dir, nil
		}
	}
	return "", fmt.Errorf("find cluster %q: %w", name, errNotFound)
}
