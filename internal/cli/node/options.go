// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
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

// takes has a verb take one argument, which its help calls name, or none where that is enough.
func takes(name string, least int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: %s is missing, see %s --help", cmd.Name(), name, cmd.CommandPath())
		case len(args) > 1:
			return fmt.Errorf("%s: one %s at a time, not %d: %q", cmd.Name(), name, len(args), args)
		}
		return nil
	}
}

func (o *nodeOptions) validate() error {
	if len(o.root) > 1 {
		o.root = strings.TrimSuffix(o.root, "/") // with which a shell completes it
	}
	if o.root != "" && (!filepath.IsAbs(o.root) || filepath.Clean(o.root) != o.root) { // as the agent has it
		return fmt.Errorf("--kubelet-root=%q: must be an absolute path without . and .. in it", o.root)
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
