// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// podUIDsOf are those of the pods of this node that have a name. Several had it if it was used again. A pod that is not
// known here is an error: that nothing of it is broken would say nothing.
func (s *scan) podUIDsOf(ctx context.Context, pod string) (uids []string, err error) {
	here, err := s.source.podUIDs(ctx)
	if err != nil {
		return nil, err
	}
	namespace, name, named := strings.Cut(pod, "/")
	if !named {
		if !slices.Contains(here, pod) {
			return nil, fmt.Errorf("--pod=%q: the kubelet has no pod with this UID", pod)
		}
		return []string{pod}, nil
	}
	for _, uid := range here {
		if spec := s.specs.PodByUID(uid); spec != nil && spec.Namespace == namespace && spec.Name == name {
			uids = append(uids, uid)
		}
	}
	failed := ""
	for _, ask := range []func(context.Context) (podNames, error){s.source.runtimeNames, s.source.logNames} {
		names, err := callWithin(ctx, nameTimeout, ask)
		if err != nil {
			failed += "; " + err.Error()
		}
		for uid, n := range names {
			if n.Namespace == namespace && n.Name == name && slices.Contains(here, uid) && !slices.Contains(uids, uid) {
				uids = append(uids, uid)
			}
		}
	}
	if len(uids) == 0 {
		return nil, fmt.Errorf("--pod=%q: no pod with this name is known on this node%s", pod, failed)
	}
	return uids, nil
}
