// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Finding tells a stale bind as a fault, with what proves it. namespace is the inode number of the mount namespace.
func (b Bind) Finding(pod *corev1.Pod, namespace uint64) fault.Finding {
	f := fault.Finding{
		Code:      fault.StaleSubPath,
		Pod:       PodOf(pod),
		Container: b.Container,
		Volume:    b.Volume.Name,
		Mount:     MountOf(b.State, namespace),
		Evidence: []string{
			b.Why,
			fmt.Sprintf("container %q asks for it in volumeMounts[%d]: %s of volume %q at %q", b.Container, b.Index, b.asked(),
				b.Volume.Name, b.Mount.MountPath),
			fmt.Sprintf("source on the host: %s", b.Source),
			fmt.Sprintf("device %d:%d, inode %d, link count %d", b.State.Major, b.State.Minor, b.State.Inode, b.State.Nlink),
		},
	}
	if b.Line != "" {
		f.Evidence = append(f.Evidence, "mountinfo: "+b.Line)
	}
	if b.Beneath > 0 {
		f.Evidence = append(f.Evidence, fmt.Sprintf("mounts beneath it at the same place: %d", b.Beneath))
	}
	f.Evidence = append(f.Evidence, containerEvidence(pod, b.Container)...)
	return f
}

func (b Bind) asked() string {
	if b.Mount.SubPathExpr != "" {
		return fmt.Sprintf("subPathExpr %q", b.Mount.SubPathExpr)
	}
	return fmt.Sprintf("subPath %q", b.Mount.SubPath)
}

// PodOf names a pod in a finding.
func PodOf(pod *corev1.Pod) fault.Pod {
	return fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// MountOf writes a mount down, so that IDOf can say later which one was meant.
func MountOf(st mount.State, namespace uint64) fault.Mount {
	return fault.Mount{
		ID: st.Unique, MountInfoID: st.Reused, ParentID: st.Parent, Namespace: namespace,
		Device: fmt.Sprintf("%d:%d", st.Major, st.Minor), Root: st.Root, Point: st.Point, FSType: st.FSType,
	}
}

// IDOf is the reverse of MountOf.
func IDOf(m fault.Mount) (mount.ID, error) {
	major, minor, _ := strings.Cut(m.Device, ":")
	a, errMajor := strconv.ParseUint(major, 10, 32)
	b, errMinor := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(errMajor, errMinor); err != nil {
		return mount.ID{}, fmt.Errorf("read device %q of mount at %q: %w", m.Device, m.Point, err)
	}
	return mount.ID{
		Unique: m.ID, Reused: m.MountInfoID, Parent: m.ParentID, Major: uint32(a), Minor: uint32(b), Root: m.Root, Point: m.Point,
	}, nil
}
