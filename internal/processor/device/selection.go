// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// selectionOf is the selection of a request. If no parameter names anything, a pod narrows the search to the devices behind
// its volumes. elsewhere, if it is not empty, says why there is nothing of the pod to be seen on this node.
func selectionOf(ctx context.Context, i *device.Inspector, r processor.Request) (s device.Selection, elsewhere string, err error) {
	s = device.SelectionOf(r.Values)
	if s != (device.Selection{}) || r.Pod == (processor.Pod{}) {
		return s, "", nil
	}
	s.Pod, elsewhere, err = podref.Load(ctx, i.Pods, r)
	return s, elsewhere, err
}

// noneAbandoned is the reason if no device of a selection has a mount that the host lacks.
func noneAbandoned(s device.Selection) string {
	if s.Pod == nil {
		return "no device is mounted anywhere that the host no longer mounts"
	}
	return fmt.Sprintf("no volume of pod %s/%s is on a device that is mounted somewhere, and no longer by the kubelet", s.Pod.Namespace, s.Pod.Name)
}
