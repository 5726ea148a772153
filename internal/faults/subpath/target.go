// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// ErrNotStale is returned for a bind that is not, or no longer, stale.
var ErrNotStale = errors.New("bind is not stale")

// InspectBind inspects the bind at point. It is called inside the kubelet's namespace, and reads no mount table on
// kernels with openat2 and statmount. there is false if nothing is mounted there, or nothing that can be seen, and if
// the kubelet would not bind a subPath of the pod there. If pod is nil, its spec is not known: then the bind is Stale
// only if the kernel alone proves it.
func InspectBind(node *kubelet.Node, pod *corev1.Pod, point string, asked Answers) (bind Bind, there bool, err error) {
	target, ok := targetAt(node, pod, point)
	if !ok {
		return bind, false, nil
	}
	target.answers = asked[point]
	return target.inspect(point)
}

// inspect is InspectBind of the target at point.
func (s target) inspect(point string) (bind Bind, there bool, err error) {
	st, root, err := mount.InspectRoot(point, s.node.TableInside)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, sys.ENOENT):
		return bind, false, nil
	case errors.Is(err, mount.ErrMayBlock):
		st.Point = point
		return notInspected(s.expected, st, err.Error()), true, nil
	case err != nil:
		return bind, false, err
	}
	s.root = &root
	return s.judgeState(st), true, nil
}

// target is a place of a subPath bind, and the entry that is to be there.
type target struct {
	node     *kubelet.Node
	pod      *corev1.Pod // nil if it is not known
	place    kubelet.SubPath
	expected podinfo.SubPathMount
	answers  *answers // of its file system; nil: it was not asked
	// root is the root of the mount that is judged, as it was inspected; nil: it is looked up.
	root *sys.Stat
	// volumes are those of the binds of one survey; nil: none is kept.
	volumes *surveyVolumes
}

// targetAt finds the target at point.
func targetAt(node *kubelet.Node, pod *corev1.Pod, point string) (target, bool) {
	place, ok := node.ParseSubPath(point)
	if !ok {
		return target{}, false
	}
	if pod == nil {
		expected := podinfo.SubPathMount{Container: place.Container, Index: place.Index, Volume: corev1.Volume{Name: place.Volume}}
		return target{node: node, place: place, expected: expected}, true
	}
	expected, ok := podinfo.FindSubPathMount(node, pod, point)
	return target{node: node, pod: pod, place: place, expected: expected}, ok
}

// nameInVolume is where in the volume the subPath is. Empty if that is not known.
func (s target) nameInVolume(volume openedVolume, st mount.State) string {
	if s.pod != nil {
		if name := podinfo.SubPathName(s.pod, s.expected); name != "" {
			return name
		}
	}
	// In a volume of the kubelet's atomic writer, it is the rest after the directory of a version. All others
	// have no name, and neither has a bind of another volume.
	if !kubelet.WritesAtomically(volume.plugin) {
		return ""
	}
	root, _ := mountinfo.Deleted(st.Root)
	rest := strings.TrimPrefix(root, "/") // if the volume has a file system of its own
	onDisk := "/" + path.Join(s.place.PodUID, "volumes", path.Base(path.Dir(volume.path)), path.Base(volume.path)) + "/"
	if i := strings.LastIndex(root, onDisk); i >= 0 {
		rest = root[i+len(onDisk):]
	}
	version, name, _ := strings.Cut(rest, "/")
	if !strings.HasPrefix(version, "..") || version == ".." {
		return ""
	}
	return name
}

// judgeState decides about the mount st that is at the place.
func (s target) judgeState(st mount.State) Bind {
	return judgeComparison(s.expected, st, s.compareWithNow(st))
}

// judgeComparison decides about the mount st from evidence alone.
func judgeComparison(expected podinfo.SubPathMount, st mount.State, now comparison) Bind {
	bind := Bind{
		SubPathMount: expected, State: st, SourceUnchanged: now.Relation == sameFile,
		SourceReplaced: now.Relation == differentInode && now.Asked == nil, SourceMissing: now.Relation == entryAbsent, comparison: now,
	}
	if bind.Verdict, bind.Reason = judgeBind(st, now.Relation); now.Asked != nil {
		bind.Verdict, bind.Reason = judgeAnswers(st, now.Asked)
	}
	if now.Whole && !st.Deleted && (bind.Verdict == Alive || bind.Verdict == Stale) {
		bind.Verdict, bind.Reason = WrongSource, "the bind shows "+cmp.Or(now.Above, "the whole volume")+", and the pod's spec asks for a subPath of it"
		if now.Relation == unknownRelation {
			bind.Verdict, bind.Reason = Unproven, bind.Reason+"; what that names now is not known"
		}
	}
	if now.Observed != "" && bind.Verdict != Alive {
		bind.Reason += ": " + now.Observed
	}
	return bind
}

// notInspected is a bind that could not be looked at.
func notInspected(expected podinfo.SubPathMount, st mount.State, why string) Bind {
	return Bind{SubPathMount: expected, State: st, Verdict: Unproven, Reason: why, notInspected: true}
}

// expectStale makes sure that a mount is a stale bind that the pod's spec asks for. Its error is ErrNotStale otherwise.
func expectStale(node *kubelet.Node, pod *corev1.Pod, st mount.State, asked Answers) error {
	target, ok := targetAt(node, pod, st.Point)
	if !ok || pod == nil {
		return fmt.Errorf("check %q: %w: no subPath of the pod is known to belong there", st.Point, ErrNotStale)
	}
	target.answers = asked[st.Point]
	switch bind := target.judgeState(st); {
	case bind.Verdict != Stale && target.answers.areMissing():
		return fmt.Errorf("check %q: %w: %s: %w", st.Point, ErrNotStale, bind.Reason, ErrNoAnswer)
	case bind.Verdict != Stale:
		return fmt.Errorf("check %q: %w: %s", st.Point, ErrNotStale, bind.Reason)
	case bind.mayBeLastMount():
		return fmt.Errorf("check %q: %w: it may be the last mount of its file system", st.Point, ErrNotStale)
	}
	return nil
}

// openReplacement opens the entry that is to be bound in the place of the stale bind st; nil if there is none, or nothing of
// its kind.
func openReplacement(node *kubelet.Node, pod *corev1.Pod, state mount.State) *sys.FD {
	target, ok := targetAt(node, pod, state.Point)
	if !ok {
		return nil
	}
	volume, err := target.openVolume()
	if err != nil {
		return nil
	}
	defer volume.close()
	name := target.nameInVolume(volume, state)
	if name == "" {
		return nil
	}
	if !volume.isLocal() {
		return nil // it might not answer, and an entry there replaces nothing
	}
	fd, err := volume.openName(name)
	if err != nil {
		return nil
	}
	// It must lie on the same file system, which answers, and be a file or directory as the other was.
	now, err := fd.Stat(sys.StatType)
	if err != nil || !isLocalType(state.FSType) || now.Major != state.Major || now.Minor != state.Minor || now.IsDir() != state.Dir || !now.IsDir() && !now.IsRegular() {
		fd.Close()
		return nil
	}
	return fd
}
