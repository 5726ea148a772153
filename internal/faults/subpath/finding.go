// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/podinfo"
)

// Finding returns a bind as a fault, with its proof: StaleSubPath, MissingBindSource if the source is gone for good, or WrongSubPath.
// namespace is the inode number of the mount namespace.
func (b Bind) Finding(pod *corev1.Pod, namespace uint64) fault.Finding {
	return b.findingOf(podinfo.PodOf(pod), pod, namespace)
}

// faultCodes by verdict. A bind that is no fault, or is not proven to be one, has none.
var faultCodes = map[Verdict]fault.Code{Stale: fault.StaleSubPath, SourceGone: fault.MissingBindSource, WrongSource: fault.WrongSubPath}

// podIsOver says of a pod that is being deleted why a bind of it may be unmounted.
const podIsOver = "the pod is being deleted, and its last container has ended: no process of the node is in a control group of it"

// findingOf is Finding of a pod whose spec may not be known: then pod is nil.
func (b Bind) findingOf(of fault.Pod, pod *corev1.Pod, namespace uint64) fault.Finding {
	finding := fault.Finding{
		Code: b.Code(), Pod: of, Container: b.Container, Volume: b.Volume.Name, Mount: faults.MountOfState(b.State, namespace),
		Evidence: []string{b.Reason},
	}
	add := func(format string, args ...any) {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf(format, args...))
	}
	if pod != nil {
		add("container %q asks for it in volumeMounts[%d]: %s of volume %q at %q", b.Container, b.Index, b.requestedText(), b.Volume.Name,
			b.Mount.MountPath)
	} else {
		add("the pod's spec is not known; by its path it is for volumeMounts[%d] of container %q, from volume %q", b.Index, b.Container,
			b.Volume.Name)
	}
	if b.Source != "" {
		add("source on the host: %q", b.Source)
	}
	add("device %d:%d, inode %d, link count %d", b.State.Major, b.State.Minor, b.State.Inode, b.State.Nlink)
	if b.Line != "" {
		add("mountinfo: %s", b.Line)
	}
	if b.HiddenMounts > 0 {
		add("mounts beneath it at the same place: %d", b.HiddenMounts)
	}
	if pod != nil {
		finding.Evidence = append(finding.Evidence, containerEvidence(pod, b.Container)...)
		finding.Details = podinfo.DetailsOf(pod, b.Container)
	}
	if pod != nil && podinfo.FromClaim(b.Volume) { // the kubelet's path has the name of the PersistentVolume
		finding.Details.PersistentVolume = path.Base(path.Dir(path.Dir(b.State.Point)))
		add("the PersistentVolume of volume %q is %q", b.Volume.Name, finding.Details.PersistentVolume)
	}
	finding.Details.Place = podinfo.SourcePlace(finding.Code, b.Volume.HostPath, cmp.Or(b.Mount.SubPath, b.Mount.SubPathExpr), fault.PlaceSubPath)
	if b.HabitReason != "" {
		finding.Evidence = append(finding.Evidence, b.HabitReason)
	}
	finding.Details.KeepsPod = b.KeepsPod && b.StillRuns == ""
	switch {
	case b.Verdict == WrongSource:
		finding.Details.Refusal = fault.Refuse(fault.InUse, "a link in the volume that was changed since the start of the container looks the same, and "+
			"another directory beneath a container that runs would change its data")
	case b.Verdict != Stale:
	case b.mayBeLastMount():
		finding.Details.Refusal = fault.Refuse(fault.InUse, "no other mount of its file system is known, and the unmount of the last one can wait "+
			"for the server")
		finding.Evidence = append(finding.Evidence, "it is left alone: "+finding.Details.Refusal.Text)
	case !b.KeepsPod:
		finding.Details.Repair = fault.Replace
	case b.StillRuns == "":
		finding.Evidence = append(finding.Evidence, podIsOver)
		finding.Details.Repair = fault.Unmount
	default:
		finding.Evidence = append(finding.Evidence, "the pod is being deleted, and may still use its mounts: "+b.StillRuns)
		finding.Details.Refusal = fault.Refuse(fault.PodGoes, "the last container of the pod has not ended: "+b.StillRuns)
	}
	return finding
}

func (b Bind) requestedText() string {
	if b.Mount.SubPathExpr != "" {
		return fmt.Sprintf("subPathExpr %q", b.Mount.SubPathExpr)
	}
	return fmt.Sprintf("subPath %q", b.Mount.SubPath)
}
