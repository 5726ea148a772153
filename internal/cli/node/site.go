// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"io"
	"os"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// site is where it is looked, and what is known of its pods.
type site struct {
	kubelet.Choice
	specs podFile
	start time.Time // of the search for it
}

func (o scanOptions) site(ctx context.Context, stdin io.Reader) (at site, err error) {
	if o.pods != "" {
		if at.specs, err = readPods(ctx, o.pods, stdin); err != nil {
			return at, err
		}
	}
	at.start = time.Now()
	at.Choice, err = o.node(ctx)
	return at, err
}

// seen is where and when a scan has looked, and from where.
type seen struct {
	Node string    `json:"node"`
	Time time.Time `json:"time"`
	// Blind is whether the caller lacks what it takes to see what others do.
	Blind  bool         `json:"blind,omitempty"`
	Caller fault.Caller `json:"caller"`
}

// hostname is the name of the machine.
func hostname() string {
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "this node"
}

// caller is the shell in which commands against the faults are typed.
func (s *scan) caller(faults []fault.Finding, o scanOptions) (c fault.Caller) {
	if len(faults) == 0 {
		return c
	}
	c.Flags = o.nodeOptions.typed() // a file of pods may be gone by then
	if s.node.PID == 0 {
		return c
	}
	own, err := mountns.Self()
	if err != nil || own.Inode != s.looked.MountNamespace {
		c.Enter = s.node.PID
	}
	return c
}
