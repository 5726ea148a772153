// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrNotStale is returned for a bind that is not, or no longer, stale.
var ErrNotStale = errors.New("bind is not stale")

// Look inspects the bind at point. It is called inside the kubelet's namespace, and reads no mount table on kernels
// with openat2 and statmount. there is false where nothing is mounted there, or nothing that can be seen, and where the
// kubelet would not bind a subPath of the pod. Where pod is nil, its spec is not known: then the bind is Stale only if
// the kernel alone proves it.
func Look(n *kubelet.Node, pod *corev1.Pod, point string) (b Bind, there bool, err error) {
	s, ok := wanted(n, pod, point)
	if !ok {
		return b, false, nil
	}
	st, err := mount.Inspect(point)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, sys.ENOENT):
		return b, false, nil
	case errors.Is(err, mount.ErrMayBlock):
		st.Point = point
		return Bind{Want: s.want, State: st, Verdict: Unproven, Why: err.Error()}, true, nil
	case err != nil:
		return b, false, err
	}
	return s.bind(st), true, nil
}

// subject is a place of a subPath bind, and what is to be there.
type subject struct {
	node  *kubelet.Node
	pod   *corev1.Pod // nil where it is not known
	place kubelet.SubPath
	want  Want
}

// wanted finds out what belongs at point.
func wanted(n *kubelet.Node, pod *corev1.Pod, point string) (subject, bool) {
	place, ok := n.ParseSubPath(point)
	if !ok {
		return subject{}, false
	}
	if pod == nil {
		w := Want{Container: place.Container, Index: place.Index, Volume: corev1.Volume{Name: place.Volume}}
		return subject{node: n, place: place, want: w}, true
	}
	w, ok := Find(n, pod, point)
	return subject{n, pod, place, w}, ok
}

// bind decides about the mount st that is at the place.
func (s subject) bind(st mount.State) Bind {
	now := s.compare(st)
	b := Bind{Want: s.want, State: st, Same: now.relation == same}
	b.Verdict, b.Why = judge(st, now.relation)
	if now.told != "" && b.Verdict != Alive {
		b.Why += ": " + now.told
	}
	return b
}

// Check is the last word before a bind is unmounted: st must still be a stale bind that the pod's spec asks for. It is
// called inside the kubelet's namespace.
func Check(n *kubelet.Node, pod *corev1.Pod, st mount.State) error {
	s, ok := wanted(n, pod, st.Point)
	if !ok || pod == nil {
		return fmt.Errorf("check %q: %w: no subPath of the pod is known to belong there", st.Point, ErrNotStale)
	}
	if b := s.bind(st); b.Verdict != Stale {
		return fmt.Errorf("check %q: %w: %s", st.Point, ErrNotStale, b.Why)
	}
	return nil
}

// Unmount removes exactly the mount that id means, if it is a stale bind that the pod's spec asks for at that moment, and
// then the empty file or directory that the kubelet had made for it to be mounted on. A kubelet that is just starting the
// container may have found the bind in place and handed its path on: the container runtime is to find nothing there,
// and fail as it would have with the stale bind, rather than start the container with an empty file. What other mount
// namespaces have mounted at that place, which is copies of the bind, goes with it. Unmount is called inside the
// kubelet's namespace. Its errors are ErrNotStale and those of package mount.
func Unmount(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, id mount.ID) error {
	dir, err := mountns.Lookup(0, path.Dir(id.Point))
	if errors.Is(err, sys.ENOENT) {
		err = mount.ErrNotMounted
	}
	if err != nil {
		return fmt.Errorf("look up directory of %q: %w", id.Point, err)
	}
	defer dir.Close()
	err = mount.Unmount(ctx, id, mount.Options{Check: func(st mount.State) error { return Check(n, pod, st) }})
	if errors.Is(err, ErrNotStale) && !stands(id) {
		err = fmt.Errorf("unmount %q: %w", id.Point, mount.ErrNotMounted) // it went while it was looked at
	}
	if err != nil {
		return err
	}
	// Whatever is in the way is not ours to remove: another mount, above all.
	_ = sys.RemoveEmpty(dir, path.Base(id.Point))
	return nil
}

// stands tells whether the mount that id means is still at its point, as far as can be seen.
func stands(id mount.ID) bool {
	st, err := mount.Inspect(id.Point)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, sys.ENOENT):
		return false
	case err != nil:
		return true
	}
	return st.Same(id)
}
