// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"slices"
)

// NodeOrOwn is Node for a shell, in which a kubelet may not run any more, or may not be looked into: where f.Root is
// set, f.PID is not, and no kubelet is seen to have that directory, it is the directory that the caller sees, in the
// caller's own mount namespace. Where several kubelets have it, which may each mean another place by it, the error is
// that of Node.
func (f *Finder) NodeOrOwn(ctx context.Context) (*Node, error) {
	if f.Root == "" || f.PID != 0 {
		return f.Node(ctx)
	}
	processes, err := f.processes(ctx)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(processes, func(p process) bool { return f.consider(p).ours }) {
		return f.Node(ctx)
	}
	n, err := Own(f.Root)
	if err != nil {
		return nil, fmt.Errorf("%w, and in our own mount namespace: %w", ErrNotFound, err)
	}
	return n, nil
}
