// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"fmt"
)

// workloadText names the object whose template has the spec of the pod.
func workloadText(f Finding) string {
	switch {
	case f.Details.Workload != (Workload{}) && f.Pod.Namespace != "":
		return fmt.Sprintf("%s %s/%s", f.Details.Workload.Kind, f.Pod.Namespace, f.Details.Workload.Name)
	case f.Pod.Name != "":
		return fmt.Sprintf("pod %s/%s", f.Pod.Namespace, f.Pod.Name)
	case f.Pod.UID != "":
		return fmt.Sprintf("the pod with UID %s", f.Pod.UID)
	}
	return "the pod"
}

// volumeMountText names the entry of the spec that brings the volume into the container.
func volumeMountText(f Finding) string {
	text := "the volumeMount"
	if volume := cmp.Or(f.Details.SpecVolume, f.Volume); volume != "" {
		text += fmt.Sprintf(" of volume %q", volume)
	}
	if f.Container != "" {
		text += fmt.Sprintf(" in container %q", f.Container)
	}
	return text + " of " + workloadText(f)
}

// mountWholeVolume has the container mount no part of the volume.
func mountWholeVolume(f Finding) string {
	return fmt.Sprintf("take subPath out of %s: it then has the whole volume", volumeMountText(f))
}

// preventStaleSubPath: a kubelet from 1.19 on renews the bind, and a whole volume has none.
func preventStaleSubPath(f Finding) string {
	return mountWholeVolume(f) + "; or update the kubelet to 1.19 or later"
}

// preventDisconnected: a mount that is made again reaches a container only from a directory above it.
func preventDisconnected(f Finding) string {
	switch {
	case f.Details.Place == PlaceHostPath && f.Details.Driver == "": // else the driver has mounted it
		return fmt.Sprintf("give %s a hostPath above the mount, and mountPropagation: HostToContainer: a mount that is made again then reaches the container",
			volumeMountText(f))
	case f.Details.Place == PlaceInsideVolume:
		return fmt.Sprintf("have the container of %s that mounts inside the volume unmount it before it ends, in a preStop hook", workloadText(f))
	case f.Details.Place == PlaceHostPath, f.Details.Place == PlaceVolume, f.Details.Place == PlaceSubPath, f.Details.Place == PlaceContainer:
		return fmt.Sprintf("drain the node before %s is updated, and give its container enough memory; or have it run its daemons outside its own pod",
			cmp.Or(f.Details.Driver, "the driver"))
	}
	return ""
}

// preventHung: the kernel ends FUSE connections that do not answer, if it is to.
func preventHung(f Finding) string {
	if !isFUSE(f.Mount) {
		return ""
	}
	return "set the sysctls fs.fuse.default_request_timeout and fs.fuse.max_request_timeout of the node (Linux 6.15): the kernel then ends a connection that does not answer"
}

// preventHeld: an unmount of the node takes the copy away, too.
func preventHeld(f Finding) string {
	if f.Pod == (Pod{}) || f.Details.Path != "" {
		return ""
	}
	return fmt.Sprintf("set mountPropagation: HostToContainer in the volumeMount of %s that brings in the directories of the node: an unmount of the node then reaches it",
		workloadText(f))
}

// preventMissing: the kubelet makes a directory if it is to, and a whole volume may lack a key.
func preventMissing(f Finding) string {
	if f.Details.Place == PlaceSocket {
		return ""
	}
	return fmt.Sprintf("if it is a hostPath, set type: DirectoryOrCreate in %s, and the kubelet makes the directory; else %s", workloadText(f), mountWholeVolume(f))
}

// preventMismatch: a key of a ConfigMap or Secret is a file, and the whole of it a directory.
func preventMismatch(f Finding) string {
	return fmt.Sprintf("have mountPath and subPath in %s both name a file, or both a directory: a whole ConfigMap or Secret is a directory, and one key is a file",
		volumeMountText(f))
}

// preventStuck is for the ways that a spec opens.
func preventStuck(f Finding) string {
	switch f.Details.Reason {
	case ReasonForeignMount:
		return fmt.Sprintf("set a terminationMessagePath outside of volume %q in %s, or take mountPropagation: Bidirectional out of its volumeMount", cmp.Or(f.Details.SpecVolume, f.Volume),
			workloadText(f))
	case ReasonInUse:
		user := "programs of the node"
		if f.Details.HeldBy != nil {
			user = "process " + f.Details.HeldBy.String()
		}
		return fmt.Sprintf("have %s use no file below the kubelet's root: let it mount the volume by a volume of its own pod", user)
	}
	return ""
}
