// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// findScope returns the UID of the pod that a request names, or an empty one if the request is about the whole node. With a pod,
// collectors show only its part of the node: its reader need not have a right to see the pods beside it. elsewhere, if it is not empty,
// says why the pod is not on this node.
func findScope(ctx context.Context, pods kubelet.Pods, r processor.Request) (podUID, elsewhere string, err error) {
	if r.Pod == (processor.Pod{}) {
		return "", "", nil
	}
	pod, elsewhere, err := podref.Load(ctx, pods, r)
	if err != nil || elsewhere != "" {
		return "", elsewhere, err
	}
	return string(pod.UID), "", nil
}

// podLines are the lines of a mount table whose points lie in the kubelet's directory of a pod.
func podLines(node *kubelet.Node, table []byte, podUID string) ([]byte, error) {
	dir := node.PodDir(podUID)
	var kept bytes.Buffer
	for line := range mountinfo.Lines(table) {
		below, err := line.Below(dir)
		if err != nil {
			return nil, fmt.Errorf("read mount table: %w", err)
		}
		if below {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	return kept.Bytes(), nil
}

// inPod reports whether a process is in a control group of a pod. A process that cannot be read is not.
func inPod(pid int, podUID string) bool {
	text, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
	return err == nil && cri.NamesPod(string(text), podUID)
}
