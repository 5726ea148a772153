// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// findHostPaths lists the hostPath volumes of the node's pods that lie on file systems which may hang. A path with a
// symbolic link in it is taken by its letters.
func (l *look) findHostPaths(ctx context.Context) error {
	if l.Pods == nil {
		return nil
	}
	uids := []string{l.selection.PodUID}
	if l.selection.PodUID == "" {
		var err error
		if uids, err = l.node.PodUIDs(ctx); err != nil {
			return err
		}
	}
	for _, uid := range uids {
		pod := l.Pods.PodByUID(uid)
		if pod == nil || subpath.Ended(pod) { // nothing mounts it any more
			continue
		}
		for _, spec := range pod.Spec.Volumes {
			if spec.HostPath != nil && l.selection.has(uid, spec.Name) {
				l.addHostPath(pod, spec)
			}
		}
	}
	return ctx.Err()
}

func (l *look) addHostPath(pod *corev1.Pod, spec corev1.Volume) {
	point := path.Clean(spec.HostPath.Path)
	m, ok := l.table.On(point)
	if !ok || !mountns.MayHang(m.FSType) || m.Point == "/" {
		return
	}
	l.newHostPath(pod, spec).Mount = l.own(m)
}

func (l *look) newHostPath(pod *corev1.Pod, spec corev1.Volume) *Volume {
	v := l.newVolume(kubelet.Volume{PodUID: string(pod.UID), Plugin: HostPathPlugin, Name: spec.Name})
	v.Point, v.spec = path.Clean(spec.HostPath.Path), spec
	v.NoRecordReason = "it is a hostPath of the pod's spec"
	v.NoSourceReason = fmt.Sprintf("nothing that could have died is mounted at %q or above it", v.Point)
	return v
}

// judgeHostPath decides about a hostPath whose mount answers, by what is at the path itself.
func (v *Volume) judgeHostPath() verdict {
	a, want := v.location.answer, corev1.HostPathUnset
	if v.spec.HostPath != nil && v.spec.HostPath.Type != nil {
		want = *v.spec.HostPath.Type
	}
	switch {
	case a.State == probe.Missing && subpath.Made(v.spec.HostPath):
		return verdict{} // whoever starts the container makes it
	case a.State == probe.Missing:
		return verdict{fault.MissingBindSource, fmt.Sprintf("there is no %q on the file system that is mounted at %q, and the pod's spec "+
			"wants a %s", v.Point, v.Mount.Point, want)}
	case a.State == probe.Alive && want == corev1.HostPathDirectory && !a.Stat.Dir:
		return verdict{fault.SourceTypeMismatch, fmt.Sprintf("%q is no directory, and the pod's spec wants one", v.Point)}
	case a.State == probe.Alive && want == corev1.HostPathFile && a.Stat.Dir:
		return verdict{fault.SourceTypeMismatch, fmt.Sprintf("%q is a directory, and the pod's spec wants a file", v.Point)}
	}
	d, _ := judgeRoot(a, false)
	return d
}
