// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/test/debian"
)

// owner is the variable by which every process of a cluster is found again, whatever its parent is by then: it holds
// the cluster's folder.
const owner = "KUBEDIAG_CLUSTER"

// process is a daemon of a cluster. Its output is the file <component>.log in the cluster's log folder.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// daemons are the processes that a cluster started from this program.
type daemons struct {
	mu  sync.Mutex
	all []*process
}

// spawn starts a daemon with an environment of its own: nothing of the caller's, so no proxy and no other cluster.
func (c *Cluster) spawn(name, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(c.logPath(name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.dir, log, log
	p.cmd.Env = []string{"PATH=" + debian.Path, "HOME=" + c.dir, "TMPDIR=" + c.path("tmp"), owner + "=" + c.dir}
	detach(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	c.daemons.mu.Lock()
	defer c.daemons.mu.Unlock()
	c.daemons.all = append(c.daemons.all, p)
	return p, nil
}

// end kills one daemon, waits for it, and no longer minds that it is gone.
func (c *Cluster) end(p *process) {
	_ = p.cmd.Process.Kill() // an error says that it has ended already
	<-p.done
	c.daemons.mu.Lock()
	defer c.daemons.mu.Unlock()
	c.daemons.all = slices.DeleteFunc(c.daemons.all, func(q *process) bool { return q == p })
}

// ended names a daemon that is no longer running, with the end of its log.
func (c *Cluster) ended() error {
	c.daemons.mu.Lock()
	defer c.daemons.mu.Unlock()
	for _, p := range c.daemons.all {
		select {
		case <-p.done:
			return fmt.Errorf("keep %s running: %s\n%s", p.name, p.cmd.ProcessState, c.Logs(p.name))
		default:
		}
	}
	return nil
}

// wait asks ready every 100 ms until it answers nil, ctx ends, or a daemon of the cluster does.
func (c *Cluster) wait(ctx context.Context, what string, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if err := c.ended(); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run runs one program to its end, as one of the cluster's.
func (c *Cluster) run(ctx context.Context, program string, args ...string) error {
	path, err := debian.LookPath(program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + debian.Path, "TMPDIR=" + c.path("tmp"), owner + "=" + c.dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %q: %w: %s", program, args, err, bytes.TrimSpace(out))
	}
	return nil
}

func (c *Cluster) logPath(name string) string { return c.path("log", name+".log") }

// path joins names to the cluster's folder.
func (c *Cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}

// Logs returns the last 16 KiB of the output of a component: "etcd", "kube-apiserver", "kube-controller-manager",
// "kube-scheduler", "containerd", "kubelet", or "apiextensions-apiserver". It is empty for a component that never ran.
func (c *Cluster) Logs(name string) string {
	b, _ := os.ReadFile(c.logPath(name)) // a log that is not there is an empty one
	return string(tail(b, 16<<10))
}

// tail returns the last n bytes, from the start of a line.
func tail(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	b = b[len(b)-n:]
	if _, rest, ok := bytes.Cut(b, []byte("\n")); ok {
		return rest
	}
	return b
}
