// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// ErrNotStale is returned for a bind that is not, or no longer, stale.
var ErrNotStale = errors.New("bind is not stale")

// InspectBind inspects the bind at point. It is called inside the kubelet's namespace, and reads no mount table on kernels
// with openat2 and statmount. there is false if nothing is mounted there, or nothing that can be seen, and if the
// kubelet would not bind a subPath of the pod there. If pod is nil, its spec is not known: then the bind is Stale only
// if the kernel alone proves it.
func InspectBind(n *kubelet.Node, pod *corev1.Pod, point string) (b Bind, there bool, err error) {
	s, ok := targetAt(n, pod, point)
	if !ok {
		return b, false, nil
	}
	st, err := mount.Inspect(point)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, sys.ENOENT):
		return b, false, nil
	case errors.Is(err, mount.ErrMayBlock):
		st.Point = point
		return unasked(s.want, st, err.Error()), true, nil
	case err != nil:
		return b, false, err
	}
	return s.bind(st), true, nil
}

// target is a place of a subPath bind, and what is to be there.
type target struct {
	node  *kubelet.Node
	pod   *corev1.Pod // nil if it is not known
	place kubelet.SubPath
	want  podinfo.SubPathMount
}

// targetAt finds out what belongs at point.
func targetAt(n *kubelet.Node, pod *corev1.Pod, point string) (target, bool) {
	place, ok := n.ParseSubPath(point)
	if !ok {
		return target{}, false
	}
	if pod == nil {
		w := podinfo.SubPathMount{Container: place.Container, Index: place.Index, Volume: corev1.Volume{Name: place.Volume}}
		return target{node: n, place: place, want: w}, true
	}
	w, ok := podinfo.FindSubPathMount(n, pod, point)
	return target{n, pod, place, w}, ok
}

// name is where in the volume the subPath is. Empty if that is not known.
func (s target) name(v volume, st mount.State) string {
	if s.pod != nil {
		if name := podinfo.SubPathName(s.pod, s.want); name != "" {
			return name
		}
	}
	return v.written(s.place.PodUID, st)
}

// bind decides about the mount st that is at the place.
func (s target) bind(st mount.State) Bind { return decide(s.want, st, s.compare(st)) }

// decide decides about the mount st from evidence alone.
func decide(w podinfo.SubPathMount, st mount.State, now comparison) Bind {
	b := Bind{
		SubPathMount: w, State: st, SourceUnchanged: now.relation == same, SourceReplaced: now.relation == another,
		SourceMissing: now.relation == absent, now: now,
	}
	b.Verdict, b.Why = judge(st, now.relation)
	if now.told != "" && b.Verdict != Alive {
		b.Why += ": " + now.told
	}
	return b
}

// unasked is a bind that could not be looked at.
func unasked(w podinfo.SubPathMount, st mount.State, why string) Bind {
	return Bind{SubPathMount: w, State: st, Verdict: Unproven, Why: why, unasked: true}
}

// check is the last word before a bind is unmounted: st must still be a stale bind that the pod's spec asks for. It is
// called inside the kubelet's namespace.
func check(n *kubelet.Node, pod *corev1.Pod, st mount.State) error {
	s, ok := targetAt(n, pod, st.Point)
	if !ok || pod == nil {
		return fmt.Errorf("check %q: %w: no subPath of the pod is known to belong there", st.Point, ErrNotStale)
	}
	if b := s.bind(st); b.Verdict != Stale {
		return fmt.Errorf("check %q: %w: %s", st.Point, ErrNotStale, b.Why)
	}
	return nil
}

// Unmount removes exactly the mount that id means, if it is a stale bind that the pod's spec asks for at that moment, and
// binds what the subPath names now in its place, where something is there: a kubelet that is just starting the container
// may have found the bind and handed its path on, and is not to have the container started with the empty file or
// directory below. A kubelet keeps what it finds bound. If nothing is there, the kubelet binds at the next start.
// Unmount is called inside the kubelet's namespace. Its errors are ErrNotStale and those of package mount.
func Unmount(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, id mount.ID) error {
	var st mount.State
	err := mount.Unmount(ctx, id, mount.Options{
		Check: func(now mount.State) error {
			st = now
			return check(n, pod, now)
		},
		Source: func() *sys.FD { return fresh(n, pod, st) },
	})
	if errors.Is(err, ErrNotStale) && empty(id.Point) {
		err = fmt.Errorf("unmount %q: %w", id.Point, mount.ErrNotMounted) // it went while it was looked at
	}
	return err
}

// fresh opens what is to be bound in the place of the stale bind st; nil if there is nothing, or nothing of its kind.
func fresh(n *kubelet.Node, pod *corev1.Pod, st mount.State) *sys.FD {
	s, ok := targetAt(n, pod, st.Point)
	if !ok {
		return nil
	}
	v, err := s.openVolume()
	if err != nil {
		return nil
	}
	defer v.dir.Close()
	name := s.name(v, st)
	if name == "" {
		return nil
	}
	if !v.onLocal() {
		return nil // it might not answer, and what lies there replaces nothing
	}
	fd, err := v.lookup(name)
	if err != nil {
		return nil
	}
	now, err := fd.Stat(sys.StatType)
	if err != nil || !replaces(now, st) {
		fd.Close()
		return nil
	}
	return fd
}

// replaces reports whether a file can be bound in the place of another: it lies on the same file system, which answers,
// and is a file or directory as that was.
func replaces(now sys.Stat, st mount.State) bool {
	return local(st.FSType) && now.Major == st.Major && now.Minor == st.Minor && now.IsDir() == st.Dir && (now.IsDir() || now.IsRegular())
}

// empty reports whether nothing is mounted at point.
func empty(point string) bool {
	_, err := mount.Inspect(point)
	return errors.Is(err, mount.ErrNotMounted) || errors.Is(err, sys.ENOENT)
}
