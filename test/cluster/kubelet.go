// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// StopKubelet has the effect of "systemctl stop kubelet": containers go on running, and the node stays Ready for 40
// seconds. StartKubelet has to follow before any other call for the node.
func (c *Cluster) StopKubelet(ctx context.Context) error {
	p := c.kubelet
	if p == nil {
		return errors.New("stop kubelet: none runs")
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("stop kubelet: %w", err)
	}
	c.kubelet, c.stopped = nil, p
	var err error
	select {
	case <-p.done:
	case <-ctx.Done():
		err = fmt.Errorf("stop kubelet: %w", ctx.Err())
	}
	c.end(p)
	return err
}

// StartKubelet starts the kubelet that StopKubelet has stopped, with the same arguments, and returns when it is well and looks after its
// pods. It goes on with the same log.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if c.stopped == nil {
		return errors.New("start kubelet: it was not stopped")
	}
	before := c.containerManagers()
	err := c.keepKubelet(func() (err error) {
		c.kubelet, err = c.spawn("kubelet", c.stopped.cmd.Path, c.stopped.cmd.Args[1:]...)
		return err
	}, func() error {
		return c.wait(ctx, "kubelet", func(ctx context.Context) error {
			if c.containerManagers() == before { // it may end until then, although it says that it is well
				return errors.New("it has not started its container manager")
			}
			return c.kubeletHealthy(ctx)
		})
	})
	if c.kubelet != nil {
		c.stopped = nil
	}
	return err
}

// containerManagers is how many kubelets have started their container manager, by the next line of their log. It ends those that do not read the
// same mount table twice, and starts after the loop over the pods.
func (c *Cluster) containerManagers() int {
	text, _ := os.ReadFile(c.logPath("kubelet")) // a log that is not there is an empty one
	return bytes.Count(text, []byte("Starting Kubelet Plugin Manager"))
}

// kubeletHealthy asks the kubelet where its port for that is by default.
func (c *Cluster) kubeletHealthy(ctx context.Context) error {
	url := "http://" + net.JoinHostPort(c.net.node().String(), "10248") + "/healthz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := new(http.Transport).RoundTrip(request) // past any proxy
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for health: %s", response.Status)
	}
	return nil
}
