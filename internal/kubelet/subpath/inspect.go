// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Bind is the visible mount at the place of a subPath bind.
type Bind struct {
	Want
	State   mount.State
	Verdict Verdict
	// Why is what the verdict rests on, in words.
	Why string
	// Line is the mount's line of mountinfo.
	Line string
	// Source is the path of the source on the host, with the kernel's mark //deleted. Where no mount shows that part of
	// the file system, it is the path inside the file system, as in mountinfo.
	Source string
	// Beneath is how many further mounts are at the same place, hidden by this one.
	Beneath int
	// Spreads is the peer group that an unmount spreads to, 0 for none.
	Spreads int
}

// Report is what was found about the subPath binds of a pod.
type Report struct {
	// Namespace is the inode number of the mount namespace that was looked at.
	Namespace uint64
	// Binds are in the order of the spec.
	Binds []Bind
	// Strange are mounts among the pod's subPath binds that its spec does not ask for. They are left alone.
	Strange []string
	// Mounts are all mounts below the pod's directory.
	Mounts []mountinfo.Mount
}

// Stale lists the stale binds.
func (r *Report) Stale() []Bind {
	return slices.DeleteFunc(slices.Clone(r.Binds), func(b Bind) bool { return b.Verdict != Stale })
}

// Inspect looks at the subPath binds of a pod as the kubelet's mount namespace has them now. container narrows it to
// one container; empty means all of them.
func Inspect(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, container string) (*Report, error) {
	var r *Report
	err := n.Do(ctx, func() (err error) {
		r, err = inspect(n, pod, container)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("inspect subPath binds of pod %q: %w", pod.UID, err)
	}
	return r, nil
}

// inspect runs inside the namespace.
func inspect(n *kubelet.Node, pod *corev1.Pod, container string) (*Report, error) {
	ns, err := mountns.Self()
	if err != nil {
		return nil, err
	}
	text, err := mountns.Read(0, nil)
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.ParseBytes(text)
	if err != nil {
		return nil, err
	}
	table := mountinfo.NewTable(mounts)
	r := &Report{Namespace: ns.Inode, Mounts: table.Under(n.PodDir(string(pod.UID)))}
	lines := linesByID(text)
	for _, point := range points(table.Under(n.SubPathsDir(string(pod.UID)))) {
		want, ok := Find(n, pod, point)
		if !ok {
			r.Strange = append(r.Strange, point)
			continue
		}
		if container != "" && want.Container != container {
			continue
		}
		b, there, err := look(n, pod, want, point, table)
		if err != nil {
			return nil, err
		}
		if there {
			b.Line = lines[b.State.Reused]
			r.Binds = append(r.Binds, b)
		}
	}
	r.sort(Wants(pod))
	return r, nil
}

// points lists where mounts are, each place once.
func points(mounts []mountinfo.Mount) []string {
	var found []string
	for _, m := range mounts {
		if !slices.Contains(found, m.Point) {
			found = append(found, m.Point)
		}
	}
	return found
}

// linesByID splits the text of mountinfo by mount.
func linesByID(text []byte) map[int]string {
	lines := map[int]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if m, err := mountinfo.Line(line).Mount(); err == nil {
			lines[m.ID] = line
		}
	}
	return lines
}

// look inspects one bind. there is false where it has gone in the meantime, or cannot be seen because something is
// mounted above it.
func look(n *kubelet.Node, pod *corev1.Pod, w Want, point string, table *mountinfo.Table) (b Bind, there bool, err error) {
	st, err := mount.Inspect(point)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, sys.ENOENT):
		return b, false, nil
	case errors.Is(err, mount.ErrMayBlock):
		st.Point = point
		return Bind{Want: w, State: st, Verdict: Unproven, Why: err.Error()}, true, nil
	case err != nil:
		return b, false, err
	}
	b = Bind{Want: w, State: st, Beneath: len(table.All(point)) - 1}
	b.Verdict, b.Why = judge(st, compare(n, pod, w, st, table))
	b.Source = sourcePath(table, n.PodDir(string(pod.UID)), st)
	if parent, ok := table.ByID(st.Parent); ok {
		b.Spreads = parent.Shared
	}
	return b, true, nil
}

func (r *Report) sort(order []Want) {
	place := func(b Bind) int {
		return slices.IndexFunc(order, func(w Want) bool { return w.Container == b.Container && w.Index == b.Index })
	}
	slices.SortStableFunc(r.Binds, func(a, b Bind) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a.State.Point, b.State.Point))
	})
}

// sourcePath finds where the host shows the root of a mount: through a mount of the same file system, in the pod's own
// directory if there is one.
func sourcePath(table *mountinfo.Table, podDir string, st mount.State) string {
	first := ""
	for _, m := range table.Mounts() {
		if m.Major != st.Major || m.Minor != st.Minor || m.Deleted() || !mountinfo.Within(m.Root, st.Root) {
			continue
		}
		if top, ok := table.Top(m.Point); !ok || top.ID != m.ID || m.ID == st.Reused {
			continue
		}
		source := strings.TrimSuffix(m.Point, "/") + "/" + strings.TrimPrefix(st.Root[len(m.Root):], "/")
		if mountinfo.Within(podDir, source) {
			return source
		}
		if first == "" {
			first = source
		}
	}
	return cmp.Or(first, st.Root)
}

// Check is the last word before a bind is unmounted: st must still be a stale bind that the pod's spec asks for. It is
// called inside the kubelet's namespace.
func Check(n *kubelet.Node, pod *corev1.Pod, st mount.State) error {
	want, ok := Find(n, pod, st.Point)
	if !ok {
		return fmt.Errorf("check %q: no subPath of pod %q belongs there", st.Point, pod.UID)
	}
	table, err := mountns.Table(0)
	if err != nil {
		return err
	}
	if verdict, why := judge(st, compare(n, pod, want, st, table)); verdict != Stale {
		return fmt.Errorf("check %q: %w: %s", st.Point, ErrNotStale, why)
	}
	return nil
}

// ErrNotStale is returned for a bind that is not, or no longer, stale.
var ErrNotStale = errors.New("bind is not stale")
