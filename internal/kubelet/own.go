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
	candidates, err := f.candidates(ctx)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(candidates, func(c candidate) bool { return c.ours }) {
		return f.Node(ctx)
	}
	n, err := Own(f.Root)
	if err != nil {
		return nil, fmt.Errorf("%w: --kubelet-root=%q is that of no kubelet, and in our own mount namespace: %w", ErrNotFound, f.Root, err)
	}
	return n, nil
}
