// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/podinfo"
)

// Bind is the visible mount at the place of a subPath bind.
type Bind struct {
	podinfo.SubPathMount
	State   mount.State
	Verdict Verdict
	// Reason is the base of the verdict, in words.
	Reason string
	TableFacts
	// SourceUnchanged says that the subPath names, by now, the very file that is bound. A kubelet that compares the two
	// keeps such a bind, even if the kernel refuses to bind its name any more.
	SourceUnchanged bool
	// SourceReplaced says that the subPath names another file or directory by now, which Unmount can bind in its place.
	SourceReplaced bool
	// SourceMissing says that the subPath names nothing by now.
	SourceMissing bool

	// Outlook is the kubelet's own way with the bind; only a stale one has one.
	Outlook

	comparison   comparison // the evidence that decided, with State
	notInspected bool       // it could not be looked at, and Reason says why
}

// TableFacts are the facts about a bind that only the mount table shows.
type TableFacts struct {
	// Line is the mount's line of mountinfo.
	Line string `json:"line,omitempty"`
	// Source is the path of the source on the host, with the kernel's mark //deleted. If no mount shows that part of
	// the file system, it is the path inside the file system, as in mountinfo.
	Source string `json:"source,omitempty"`
	// HiddenMounts is how many further mounts are at the same place, hidden by this one.
	HiddenMounts int `json:"beneath,omitempty"`
	// PeerGroup is the peer group that an unmount spreads to, 0 for none.
	PeerGroup int `json:"spreads,omitempty"`
}

// Report has the findings about the subPath binds of a pod.
type Report struct {
	// Namespace is the inode number of the mount namespace that was looked at.
	Namespace uint64
	// Binds are in the order of the spec.
	Binds []Bind
	// Unexpected are mounts among the pod's subPath binds that its spec does not ask for. They are left alone.
	Unexpected []string
	// Mounts are all mounts below the pod's directory.
	Mounts []mountinfo.Mount
}

// Stale lists the stale binds.
func (r *Report) Stale() []Bind {
	return slices.DeleteFunc(slices.Clone(r.Binds), func(bind Bind) bool { return bind.Verdict != Stale })
}

// Inspect looks at the subPath binds of a pod as the kubelet's mount namespace has them now. container narrows it to
// one container; empty means all of them.
func Inspect(ctx context.Context, node *kubelet.Node, from Sources, pod *corev1.Pod, container string) (*Report, error) {
	var report *Report
	var asked Answers
	habits := node.Habits()
	table, err := node.Mounts(ctx)
	if err == nil {
		if points := mountPoints(table.Under(node.SubPathsDir(string(pod.UID)))); len(points) > 0 {
			asked, err = questions{prober: from.Prober, node: node}.askIn(ctx, table, func(string) *corev1.Pod { return pod }, points)
		}
	}
	if err == nil {
		err = node.Do(ctx, func() (err error) {
			report, err = inspectPod(node, pod, container, asked)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("inspect subPath binds of pod %q: %w", pod.UID, err)
	}
	for i := range report.Binds {
		report.Binds[i].AddOutlook(ctx, habits, from.Runtime, pod)
	}
	return report, nil
}

// inspectPod runs inside the namespace.
func inspectPod(node *kubelet.Node, pod *corev1.Pod, container string, asked Answers) (*Report, error) {
	ns, err := mountns.Self()
	if err != nil {
		return nil, err
	}
	table, err := node.TableInside()
	if err != nil {
		return nil, err
	}
	report := &Report{Namespace: ns.Inode, Mounts: table.Under(node.PodDir(string(pod.UID)))}
	for _, point := range mountPoints(table.Under(node.SubPathsDir(string(pod.UID)))) {
		target, ok := targetAt(node, pod, point)
		if !ok {
			report.Unexpected = append(report.Unexpected, point)
			continue
		}
		if container != "" && target.expected.Container != container {
			continue
		}
		target.answers = asked[point]
		bind, there, err := target.inspect(point)
		if err != nil {
			return nil, err
		}
		if there {
			bind.Describe(node, string(pod.UID), table)
			report.Binds = append(report.Binds, bind)
		}
	}
	order := podinfo.SubPathMounts(pod)
	place := func(bind Bind) int {
		return slices.IndexFunc(order, func(expected podinfo.SubPathMount) bool {
			return expected.Container == bind.Container && expected.Index == bind.Index
		})
	}
	slices.SortStableFunc(report.Binds, func(a, b Bind) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a.State.Point, b.State.Point))
	})
	return report, nil
}

// mountPoints lists where mounts are, each place once.
func mountPoints(mounts []mountinfo.Mount) []string {
	var found []string
	seen := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		if !seen[m.Point] {
			seen[m.Point] = true
			found = append(found, m.Point)
		}
	}
	return found
}

// Describe fills in the facts of the mount table.
func (b *Bind) Describe(node *kubelet.Node, podUID string, table *mountinfo.Table) {
	b.HiddenMounts = max(0, len(table.All(b.State.Point))-1)
	b.Source = sourcePath(table, node.PodDir(podUID), b.State)
	if m, ok := table.ByID(b.State.MountInfoID); ok {
		b.Line = mountinfoLine(m)
	}
	if parent, ok := table.ByID(b.State.Parent); ok {
		b.PeerGroup = parent.Shared
	}
}

// sourcePath finds where the host shows the root of a mount: through a mount of the same file system, in the pod's own
// directory if there is one.
func sourcePath(table *mountinfo.Table, podDir string, state mount.State) string {
	first := ""
	shown, _ := table.Showing(state.Major, state.Minor, state.Root, len(table.Mounts())) // of one file system there may be thousands
	for _, m := range shown {
		if m.Deleted() || !mountinfo.Within(m.Root, state.Root) {
			continue
		}
		if top, ok := table.Top(m.Point); !ok || top.ID != m.ID || m.ID == state.MountInfoID {
			continue
		}
		source := strings.TrimSuffix(m.Point, "/") + "/" + strings.TrimPrefix(state.Root[len(m.Root):], "/")
		if mountinfo.Within(podDir, source) {
			return source
		}
		if first == "" {
			first = source
		}
	}
	return cmp.Or(first, state.Root)
}
