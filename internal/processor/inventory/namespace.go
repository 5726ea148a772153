// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
)

// Keys of the results.
const (
	// keyNamespaces holds every namespace, as JSON.
	keyNamespaces = "collector.system.mount_namespace.list"
	// keyNamespaceSurvey is the coverage of the survey, in one line.
	keyNamespaceSurvey = "collector.system.mount_namespace.survey"
)

// maxHoldersNamed bounds the holders of one namespace that are named.
const maxHoldersNamed = 16

// NamespaceCollector is the processor mountNamespaceCollector.
//
// It collects the mount namespaces of the node. For each it gives the number of mounts, and its holders if no
// process is in it. With a pod, it collects the namespaces of the pod's processes. It rests on package mountns.
type NamespaceCollector struct {
	Pods kubelet.Pods
}

// Name is mountNamespaceCollector.
func (*NamespaceCollector) Name() string { return "mountNamespaceCollector" }

// namespaceDocument is one namespace as it is shown.
type namespaceDocument struct {
	Namespace uint64 `json:"namespace"`    // N in mnt:[N]
	ID        uint64 `json:"id,omitempty"` // never used again; 0 before Linux 6.12
	Mounts    int    `json:"mounts"`
	// Processes counts the processes in it, up to 64; PIDs are the first 16 of them.
	Processes int   `json:"processes"`
	PIDs      []int `json:"pids,omitempty"`
	// Holders keep it alive if no process is in it.
	Holders []holderDocument `json:"keepers,omitempty"`
}

// holderDocument is a thread, a descriptor, or a file that a namespace is bound to.
type holderDocument struct {
	Kind   mountns.Kind `json:"kind"`
	PID    int          `json:"pid,omitempty"`
	Number int          `json:"number,omitempty"` // of the thread or descriptor
	Point  string       `json:"point,omitempty"`
	In     uint64       `json:"in,omitempty"` // the namespace that Point is in
}

// Run lists them by number.
func (c *NamespaceCollector) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	podUID, elsewhere, err := findScope(ctx, c.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	spaces, _, err := mountns.Namespaces()
	if err != nil {
		return processor.Result{}, fmt.Errorf("list mount namespaces: %w", err)
	}
	counts := map[uint64]int{} // mounts of each namespace
	survey, err := mountns.EachMount(func(b *mountns.MountBrief) bool {
		counts[b.Namespace.Inode]++
		return false
	}, nil)
	if err != nil {
		return processor.Result{}, fmt.Errorf("count mounts: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return processor.Result{}, err
	}
	holders, asked, err := mountns.Holders(spaces)
	if err != nil {
		return processor.Result{}, fmt.Errorf("find what keeps mount namespaces alive: %w", err)
	}
	list := make([]namespaceDocument, 0, len(spaces))
	for _, ns := range spaces {
		held := holders[ns.Inode]
		if podUID != "" {
			held = slices.DeleteFunc(held, func(h mountns.Holder) bool { return h.Kind != mountns.Process || !inPod(h.PID, podUID) })
			if len(held) == 0 {
				continue
			}
		}
		list = append(list, describeNamespace(ns, counts[ns.Inode], held))
	}
	said := fmt.Sprintf("%d mounts in %d mount namespaces (%s); %d processes may not be looked into, %d namespaces were read only in part",
		survey.Mounts, survey.Namespaces, survey.Backend, max(survey.Denied, asked.Denied), survey.Partial)
	if err := survey.CheckComplete(); err != nil {
		said += "; " + err.Error()
	}
	values := map[string]string{keyNamespaceSurvey: said}
	err = processor.AddJSON(values, map[string]any{keyNamespaces: list})
	return processor.Result{Values: values}, err
}

func describeNamespace(ns mountns.Namespace, mounts int, holders []mountns.Holder) namespaceDocument {
	n := namespaceDocument{Namespace: ns.Inode, ID: ns.ID, Mounts: mounts}
	for _, k := range holders {
		switch {
		case k.Kind == mountns.Process:
			n.Processes++
			n.PIDs = append(n.PIDs, k.PID)
		case k.Mount != nil:
			n.Holders = append(n.Holders, holderDocument{Kind: k.Kind, Point: k.Mount.Point, In: k.Mount.Namespace.Inode})
		default:
			n.Holders = append(n.Holders, holderDocument{Kind: k.Kind, PID: k.PID, Number: k.Number})
		}
	}
	slices.Sort(n.PIDs)
	n.PIDs = n.PIDs[:min(len(n.PIDs), maxHoldersNamed)]
	return n
}
