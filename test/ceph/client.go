// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Client is a ceph-fuse that serves a mount. Its methods are not for several goroutines at once.
type Client struct {
	Target string // where it is mounted, in the mount namespace of this process

	cluster *Cluster
	o       MountOptions
	frozen  bool
	evicted bool
	// connection is the number that the kernel gave it, the minor number of the mount's device.
	connection int
	*process
}

// MountOptions are those of ceph-fuse.
type MountOptions struct {
	Root    string   // folder of the file system that is mounted; empty for all of it
	Options []string // further options of the mount, such as "nonempty"
}

// clients counts those that this process started, since each needs files of its own.
var clients atomic.Int64

// Mount mounts the file system on target, an existing folder, and returns when it answers. The caller must Close it.
func (c *Cluster) Mount(ctx context.Context, target string, o MountOptions) (*Client, error) {
	m := &Client{Target: target, cluster: c, o: o}
	if err := m.mount(ctx); err != nil {
		return nil, fmt.Errorf("mount ceph on %q: %w", target, err)
	}
	return m, nil
}

func (m *Client) mount(ctx context.Context) error {
	before, err := mountsOn(m.Target)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("client-%d-%d", os.Getpid(), clients.Add(1))
	args := []string{
		"-f", "--name=client.admin", "--pid-file=" + m.cluster.path("run", name+".pid"),
		"--admin-socket=" + m.cluster.path("run", name+".asok"), m.Target, "-o", "fsname=ceph-fuse",
	}
	if m.o.Root != "" {
		args = append(args, "--client_mountpoint="+m.o.Root)
	}
	for _, option := range m.o.Options {
		args = append(args, "-o", option)
	}
	m.frozen, m.evicted = false, false
	if m.process, err = m.cluster.start(name, "ceph-fuse", args...); err != nil {
		return err
	}
	err = m.cluster.wait(ctx, "mount", func() error {
		now, err := mountsOn(m.Target)
		switch {
		case err != nil:
			return err
		case m.ended():
			return nil // settle says how
		case len(now) == len(before):
			return errors.New("nothing is mounted")
		}
		m.connection = now[len(now)-1].Minor
		return nil
	})
	if err == nil {
		err = m.settle(ctx)
	}
	if err != nil {
		return errors.Join(err, m.Kill())
	}
	return nil
}

// settle waits until ceph-fuse answers, and has done what it does once at its start: it tries whether it can have
// mount(8) mount it again.
func (m *Client) settle(ctx context.Context) error {
	answer := make(chan error, 1)
	go func() {
		_, err := os.Stat(m.Target)
		answer <- err
	}()
	select {
	case <-m.done:
		return m.failure()
	case <-ctx.Done():
		return fmt.Errorf("wait for first answer: %w", ctx.Err())
	case err := <-answer:
		if err != nil {
			return err
		}
	}
	return m.cluster.wait(ctx, "first try to mount again", func() error {
		threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(m.PID()), "task", "*", "comm"))
		for _, thread := range threads {
			if name, _ := os.ReadFile(thread); string(name) == "tester\n" {
				return errors.New("not done")
			}
		}
		return err
	})
}

// mountsOn lists what is mounted on a path, in this process's mount namespace, without touching it.
func mountsOn(path string) ([]*mountinfo.Info, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
}

// PID is that of the ceph-fuse.
func (m *Client) PID() int { return m.cmd.Process.Pid }

// Freeze stops the process: every request to the mount from now on waits, until Thaw or Kill.
func (m *Client) Freeze() error {
	if err := m.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	m.frozen = true
	return m.await('T')
}

// Thaw lets a frozen process go on.
func (m *Client) Thaw() error {
	m.frozen = false
	return m.signal(syscall.SIGCONT)
}

// await waits a moment until the process is in a state, as /proc/PID/stat names it.
func (m *Client) await(state byte) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID()), "stat"))
		if err != nil {
			return fmt.Errorf("read state of ceph-fuse: %w", err)
		}
		if i := slices.Index(stat, ')'); i > 0 && len(stat) > i+2 && stat[i+2] == state {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for state %c of ceph-fuse: %q", state, stat)
		}
	}
}

// Kill kills the process, as a crash would, and returns when the kernel has noticed. The dead mount stays, and the MDS
// keeps what it had given to the client: other clients wait a minute for it, unless it is evicted.
//
// A ceph-fuse has mount(8) mount it again now and then. This child inherits the connection to the kernel. It can wait,
// without a reaction to any signal, for an answer from its dead parent; as long as it does, the mount is not dead but
// hangs. So the connection is aborted then.
func (m *Client) Kill() error {
	if m.kill(promptly) {
		return nil
	}
	if err := m.abort(); err != nil {
		return err
	}
	if !m.kill(maxEnd) {
		return fmt.Errorf("kill ceph-fuse %d: what it started lives on", m.PID())
	}
	return nil
}

// abort has the kernel end the connection, where it is still there.
func (m *Client) abort() error {
	control, err := os.MkdirTemp(m.cluster.dir, "fusectl-")
	if err != nil {
		return fmt.Errorf("make folder for fusectl: %w", err)
	}
	defer os.Remove(control)
	if err := unix.Mount("none", control, "fusectl", 0, ""); err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer func() { _ = unix.Unmount(control, unix.MNT_DETACH) }()
	err = os.WriteFile(filepath.Join(control, strconv.Itoa(m.connection), "abort"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Serves reports whether the client answers, as far as nothing was done to it here.
func (m *Client) Serves() bool { return !m.ended() && !m.frozen && !m.evicted }

// Evict has the MDS end the client's session and refuse it any other, whether it lives or not. It is no error that
// there is none.
func (m *Client) Evict(ctx context.Context) error {
	m.evicted = true
	socket := m.cluster.mdsSocket()
	var sessions []struct {
		ID       int64
		Metadata struct{ PID string } `json:"client_metadata"`
	}
	if err := ask(ctx, socket, map[string]any{"prefix": "session ls"}, &sessions); err != nil {
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, s := range sessions {
		if s.Metadata.PID != strconv.Itoa(m.PID()) {
			continue
		}
		command := map[string]any{"prefix": "session evict", "filters": []string{"id=" + strconv.FormatInt(s.ID, 10)}}
		if err := ask(ctx, socket, command, nil); err != nil {
			return fmt.Errorf("evict session %d: %w", s.ID, err)
		}
	}
	return nil
}

// Restart does what a driver does when its ceph-fuse is gone: it takes the mount at Target away, not its copies
// elsewhere, and mounts the file system there again. A process that lives is killed first, and what the MDS knows of it
// is forgotten.
func (m *Client) Restart(ctx context.Context) error {
	if err := m.Close(ctx); err != nil {
		return err
	}
	return m.mount(ctx)
}

// Close takes the mount at Target away and ends the process and its session, in whatever state they are. Copies of the
// mount elsewhere stay, dead.
func (m *Client) Close(ctx context.Context) error {
	err := detach(m.Target)
	if !m.frozen && m.signal(syscall.SIGTERM) == nil {
		select {
		case <-m.done:
			return err // it has told the MDS
		case <-time.After(patience):
		}
	}
	return errors.Join(err, m.Kill(), m.Evict(ctx))
}

// patience is how long a ceph-fuse may take to end by itself.
const patience = 2 * time.Second

// detach takes away what is mounted on top of path, if anything is.
func detach(path string) error {
	on, err := mountsOn(path)
	if err != nil || len(on) == 0 {
		return err
	}
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %q: %w", path, err)
	}
	return nil
}
