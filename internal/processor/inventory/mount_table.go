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

// KeyMountTable is that of the result.
const KeyMountTable = "collector.system.mountinfo"

// detailKey is where an earlier operation leaves what is known about the pod.
const detailKey = "collector.kubernetes.pod.detail"

// MountTableCollector is the processor mountInfoCollector.
//
// It collects the mount table of the kubelet's mount namespace, as the kernel writes it (proc_pid_mountinfo(5)).
type MountTableCollector struct {
	Kubelet kubelet.Locator
}

// Name is mountInfoCollector.
func (c *MountTableCollector) Name() string { return "mountInfoCollector" }

// Run returns the whole table.
func (c *MountTableCollector) Run(ctx context.Context, _ processor.Request) (processor.Result, error) {
	n, err := c.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	text, err := n.ReadMounts()
	if err != nil {
		return processor.Result{}, err
	}
	return processor.Result{Values: map[string]string{KeyMountTable: string(text)}}, nil
}

// Excerpt keeps the lines that matter for as long as there is room: first those of the pod, then those of mounts whose
// root is deleted, then the rest, all in their order.
func (*MountTableCollector) Excerpt(r processor.Request, _, value string, limit int) string {
	uid := podUIDOf(r.Values[detailKey])
	lines := slices.Collect(strings.Lines(value))
	keep := make([]bool, len(lines))
	for _, matters := range []func(string) bool{
		func(line string) bool { return uid != "" && strings.Contains(line, uid) },
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

// podUIDOf reads the UID of the pod from what an earlier operation has found out, which any user may have written: it
// chooses lines to show, and nothing else.
func podUIDOf(detail string) string {
	var pod struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if json.Unmarshal([]byte(detail), &pod) != nil {
		return ""
	}
	return pod.Metadata.UID
}

// deletedLine looks at the fourth column, the root of the mount.
func deletedLine(line string) bool {
	columns := strings.SplitN(line, " ", 5)
	if len(columns) < 5 {
		return false
	}
	_, ok := table.Deleted(columns[3])
	return ok
}

// jsonLength is how many bytes a text takes in a status.
func jsonLength(text string) int {
	encoded, err := json.Marshal(text)
	if err != nil {
		return 6 * len(text) // the most that a byte can take
	}
	return len(encoded)
}
