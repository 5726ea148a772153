// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package searches

import (
	"context"

	"kubediag.org/kubediag/internal/faults/links"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
)

// Mounts looks at the mounts of the kubelet and at the links of pods, as the last search does. For a whole node it also counts the processes and
// the mount namespaces that cannot be read. AddUncounted says both.
type Mounts struct {
	Links *links.Inspector
}

// Look implements mountstate.Inspector.
func (m Mounts) Look(ctx context.Context, s mountstate.Scope) (mountstate.Survey, error) {
	sum, err := m.Links.Look(ctx, s)
	if err != nil || len(s.PodUIDs) > 0 {
		return sum, err
	}
	node, err := m.Links.Kubelet.Node(ctx)
	if err != nil {
		return sum, err
	}
	passed, err := node.Pass().EachMount(func(*mountns.MountBrief) bool { return false }, nil)
	sum.Coverage.Namespaces = &passed
	return sum, err
}

// AddUncounted adds to the sum of all looks at a node the parts of it that no single look counts as unknown: the mounts that no pod is known to want,
// and those of the processes and mount namespaces that could not be read. The sum has a look at the mounts.
func AddUncounted(sum *mountstate.Survey) {
	sum.Account()
	if passed := sum.Coverage.Namespaces; passed != nil {
		denied, pids := HidingMounts(passed.Denied, passed.DeniedPIDs...)
		sum.Unknown.Merge(mountstate.Unknown{Gaps: Unread(denied, pids, passed.Partial)})
	}
}
