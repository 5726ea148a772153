// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"kubediag.org/kubediag/internal/kubelet"
)

// nodeOptions are the flags that say which kubelet's node is looked at.
type nodeOptions struct {
	root string
	pid  int
	proc string // no flag: where the process file system is; empty: /proc
}

func (o *nodeOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.root, "kubelet-root", "", "root directory of the kubelet (default: that of the running kubelet)")
	f.IntVar(&o.pid, "kubelet-pid", 0, "process id of the kubelet (default: the kubelet is looked for)")
}

func (o nodeOptions) validate() error {
	if o.root != "" && !filepath.IsAbs(o.root) {
		return fmt.Errorf("--kubelet-root=%q: must be an absolute path", o.root)
	}
	if o.pid < 0 {
		return fmt.Errorf("--kubelet-pid=%d: must not be negative", o.pid)
	}
	return nil
}

// node is the kubelet's, or the caller's own where no kubelet has the root directory.
func (o nodeOptions) node(ctx context.Context) (*kubelet.Node, error) {
	finder := kubelet.Finder{Root: o.root, PID: o.pid, Proc: o.proc}
	return finder.NodeOrOwn(ctx)
}
