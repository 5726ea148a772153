// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	table "kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/processor"
)

// keyMountTable is the key of the result.
const keyMountTable = "collector.system.mountinfo"

// MountTableCollector is the processor mountInfoCollector.
//
// It collects the mount table of the kubelet's mount namespace, as the kernel writes it (proc_pid_mountinfo(5)). With a pod, it collects
// the mounts in the kubelet's directory of that pod.
type MountTableCollector struct {
	Kubelet kubelet.Locator
	Pods    kubelet.Pods
}

// Name is mountInfoCollector.
func (c *MountTableCollector) Name() string { return "mountInfoCollector" }

// Run returns the whole table, or that of the pod.
func (c *MountTableCollector) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	podUID, elsewhere, err := findScope(ctx, c.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	n, err := c.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	text, err := n.ReadMounts()
	if err == nil && podUID != "" {
		text, err = podLines(n, text, podUID)
	}
	if err != nil {
		return processor.Result{}, err
	}
	return processor.Result{Values: map[string]string{keyMountTable: string(text)}}, nil
}

// Excerpt keeps the lines that matter for as long as there is room: first those of mounts whose root is deleted, then the
// rest, all in their order.
func (*MountTableCollector) Excerpt(_ processor.Request, _, value string, limit int) string {
	lines := slices.Collect(strings.Lines(value))
	keep := make([]bool, len(lines))
	for _, matters := range []func(string) bool{
		deletedLine,
		func(string) bool { return true },
	} {
		for i, line := range lines {
			if keep[i] || !matters(line) {
				continue
			}
			if cost := jsonLength(line); cost <= limit {
				keep[i] = true
				limit -= cost
			}
		}
	}
	var b strings.Builder
	for i, line := range lines {
		if keep[i] {
			b.WriteString(line)
		}
	}
	return b.String()
}

// deletedLine reads the fourth column, the root of the mount.
func deletedLine(line string) bool {
	columns := strings.SplitN(line, " ", 5)
	if len(columns) < 5 {
		return false
	}
	_, ok := table.Deleted(columns[3])
	return ok
}

// jsonLength returns the number of bytes of a text in a status.
func jsonLength(text string) int {
	encoded, err := json.Marshal(text)
	if err != nil {
		return 6 * len(text) // the most that a byte can take
	}
	return len(encoded)
}
