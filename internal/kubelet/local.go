// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// LocalNode is a node for a shell, with the other processes that were seen.
type LocalNode struct {
	Node *Node
	// Skipped are the kubelets that run, and do not serve the root of the search, in words.
	Skipped []string
	// Down is whether no process of the machine is a kubelet, also with ErrNotFound.
	Down bool
	// Silent are the processes that may be kubelets, and did not answer, in words.
	Silent []string
}

// NodeOrLocal is Node for a shell: a kubelet may not run any more, or may not be readable. If f.Root is set, f.PID
// is not, and no visible kubelet serves that directory, the result is the directory in the caller's own mount
// namespace. A kubelet serves the root that its arguments name. Another kubelet may have a directory of that name, too,
// but it proves nothing. It has another namespace, and other habits than the kubelet that
// filled the directory. If several kubelets serve it, each may mean another place by it: then Node's error is returned. If f.Root is not set and no process of the machine is a kubelet, it is f.Default in the same way.
func (f *Finder) NodeOrLocal(ctx context.Context) (LocalNode, error) {
	if f.Root == "" || f.PID != 0 {
		search, err := f.currentSearch(ctx)
		if err != nil {
			return LocalNode{}, err
		}
		down := search.err != nil && f.PID == 0 && len(search.candidates)+len(search.silent) == 0
		if down && f.Default != "" {
			abandoned := func() (*Node, error) { // in the caller's own mount namespace, if a kubelet has had pods there
				n, err := Local(f.Default)
				if err == nil {
					_, err = os.Stat(n.PodsDir())
				}
				return n, err
			}
			if own, err := readWithin(ctx, "root "+f.Default, abandoned); err == nil {
				return LocalNode{Node: own, Down: true}, nil
			}
		}
		return LocalNode{Node: search.node, Silent: search.silent, Down: down}, search.err
	}
	var s kubeletSearch
	if err := f.findCandidates(ctx, &s); err != nil {
		return LocalNode{}, err
	}
	choice := LocalNode{Silent: s.silent}
	serving := slices.DeleteFunc(slices.Clone(s.candidates), func(c candidate) bool { return !c.isOurs || !c.servesRoot })
	switch serving = f.chooseCandidates(serving); {
	case len(serving) > 1:
		return choice, f.notFoundError(&s, serving, len(serving))
	case len(serving) == 1:
		choice.Node = serving[0].node
		return choice, nil
	}
	for _, c := range s.candidates {
		choice.Skipped = append(choice.Skipped, fmt.Sprintf("process %d with root %q", c.node.PID, c.node.process.rootArgument()))
	}
	var err error
	if choice.Node, err = readWithin(ctx, "root "+f.Root, func() (*Node, error) { return Local(f.Root) }); err != nil {
		return choice, fmt.Errorf("%w: --kubelet-root=%q is that of no kubelet that was seen, and in our own mount namespace: %w",
			ErrNotFound, f.Root, err)
	}
	return choice, nil
}
