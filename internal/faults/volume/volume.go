// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package volume inspects the volumes of pods that lie on file systems which can die under them, and repairs their
// mounts.
//
// An inspection has five steps. It enumerates the volumes from the mount table and the kubelet's directories (Volume).
// It probes their mounts (Evidence). Judge decides from that evidence alone (Verdict). It finds the directory that
// belongs in the place of a broken mount (Source) and the other mounts of a broken volume (Copy). At last it describes
// all of it for people (Findings).
//
// The kubelet's directories and records, the mount table and, if it is known, the pod's spec decide which volume a
// mount is. No text of a container plays a part. Only processes that can be lost ask a file system. A staging path that
// has not answered is never looked into: a lookup through it would change the state of the mounts that hang on it.
//
// Only Apply changes anything: it puts a source in the place of one mount, in a process that can be lost. The package
// rests on the layout in kubernetes/pkg/volume/csi, on mount_namespaces(7), and on how the kernel attaches mounts: it
// refuses with ENOENT if the root, or a directory above it, has lost its name.
package volume

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/podinfo"
)

// HostPathPlugin is the Plugin of a hostPath volume, which the kubelet keeps nowhere.
const HostPathPlugin = "kubernetes.io/host-path"

// Volume is one volume of one pod, as the mount table, the kubelet's records and the pod's spec have it. Nothing was
// asked of its file system. It is written as a part of Evidence.
type Volume struct {
	Pod fault.Pod
	// Plugin is the name of the volume plugin, such as kubernetes.io/csi; HostPathPlugin for a hostPath.
	Plugin string
	// Name is the kubelet's name of it: that of the PersistentVolume if it comes from a claim.
	Name string
	// SpecName is the name in the pod's spec if Name is that of a PersistentVolume. Empty: it is not known.
	SpecName string `json:",omitempty"`
	// Point is the directory that the kubelet keeps it in, the path of a hostPath, or that which Link leads to.
	Point string
	// Link is the path of a hostPath that leads to Point by symbolic links, or the place of the kubelet at which the driver has made one and
	// mounted nothing.
	Link string `json:",omitempty"`
	// Mount is the visible mount at Point, or for a hostPath the one that Point lies on. The zero value: none.
	Mount mountns.Mount
	// HiddenMounts are the mounts that Mount hides, the lowest first.
	HiddenMounts []mountinfo.Mount
	// Record is the kubelet's own of the volume. It is nil if there is none, and NoRecordReason says why.
	Record         *kubelet.VolumeRecord
	NoRecordReason string
	// Staging is the driver's mount of the volume for the whole node. It is nil if there is none, and NoStagingReason
	// says why nothing could take the volume's place.
	Staging         *Staging
	NoStagingReason string

	Origin   Origin   `json:",inline"`
	Mismatch Mismatch `json:",inline"`

	// MountsUpon counts the mounts that lie on Mount. While there is one, the kernel refuses to unmount it.
	MountsUpon int `json:"-"`
	spec       podSpec
}

// Origin says where the mount comes from, if it is not the kubelet's own of the volume.
type Origin struct {
	// Container has the mount, in its own mount namespace, and it is of no volume that is known: then Plugin and Name are
	// empty. Empty: it is a mount of the kubelet's namespace.
	Container string `json:",omitempty"`
	// Inside is whether a workload has made the mount, inside a volume of the pod: Name is that volume's.
	Inside bool
	// BindOf is the container whose subPath bind the mount is, where the volume's own mount has gone before the bind.
	BindOf string `json:",omitempty"`
}

// Mismatch has the signs that the pod has another directory or disk than the volume's.
type Mismatch struct {
	// UnstagedDir is the staging path if nothing is mounted there and Mount is a bind of that directory of the node's own
	// disk.
	UnstagedDir string `json:",omitempty"`
	// Covered is the directory of the node that a local volume is, with the device of the file system that was mounted on it since. Empty: none was.
	Covered string `json:",omitempty"`
	// AlsoFor is another volume that has the whole file system of the same disk, and its place. Empty: there is none.
	AlsoFor string `json:",omitempty"`
	// PlainAt is the container that has the directory in which nothing is mounted, and where.
	PlainAt string `json:",omitempty"`
}

// place is what kind of mount the volume's is.
func (v *Volume) place() fault.Place {
	switch {
	case v.Origin.Container != "":
		return fault.PlaceContainer
	case v.Origin.Inside:
		return fault.PlaceInsideVolume
	case v.Origin.BindOf != "":
		return fault.PlaceSubPath
	case v.isPath(), v.Plugin == kubelet.LocalPlugin && v.Mismatch.Covered == "": // a new pod gets the file system that covers the directory
		return fault.PlaceHostPath
	}
	return fault.PlaceVolume
}

// isPath reports whether the volume is a path of the node, which need not be the point of a mount.
func (v *Volume) isPath() bool { return v.Plugin == HostPathPlugin || v.Link != "" }

// persistentVolume is the name of the volume's PersistentVolume; empty if it has none, or that is not known.
func (v *Volume) persistentVolume() string {
	if v.SpecName != "" || v.Plugin == kubelet.LocalPlugin || v.Record != nil && v.Record.Lifecycle == "Persistent" && v.Record.PersistentVolume == v.Name {
		return v.Name
	}
	return ""
}

// isNodes reports whether no driver mounts the volume again for a new pod.
func (v *Volume) isNodes() bool { return v.place() != fault.PlaceVolume && v.Origin.BindOf == "" }

// podSpec is what the pod's spec says about a volume.
type podSpec struct {
	pod      *corev1.Pod // nil if it is not known
	hostPath *corev1.HostPathVolumeSource
}

// Staging is the mount of a volume that a driver has made for the whole node.
type Staging struct {
	Point string
	// Mount is the visible mount there.
	Mount mountns.Mount

	location Location
}

// Location is where in a staged file system the directory of a pod's volume is.
type Location struct {
	Known  bool   `json:"known,omitempty"`
	Reason string `json:"reason,omitempty"` // why it is not known
	Below  string `json:"below,omitempty"`  // the way from the root of the staged mount
	// OnNodeDisk is whether the pod's mount is of the node's own disk: of the directory there that the staged mount
	// covers.
	OnNodeDisk bool `json:"onNodeDisk,omitempty"`
	// Major and Minor are of the device that the staged mount lies on, and Covered is the volume's directory there. Empty:
	// not known.
	Major   uint32 `json:"major,omitempty"`
	Minor   uint32 `json:"minor,omitempty"`
	Covered string `json:"covered,omitempty"`
}

// nodeDisk is the device that the staged mount lies on.
func (l Location) nodeDisk() device { return device{l.Major, l.Minor} }

// stagedLocation is where the volume's directory is in what the driver has staged.
func (v *Volume) stagedLocation() Location {
	if v.Staging == nil {
		return Location{}
	}
	return v.Staging.location
}

// isStagedDevice reports whether the volume's mount is of the very file system that is staged.
func (v *Volume) isStagedDevice() bool {
	return v.Staging != nil && deviceOf(v.Staging.Mount.Mount) == deviceOf(v.Mount.Mount)
}

// hasOtherDisk reports whether the mount of the volume and its staged mount are of two block devices. For one volume, a driver may mount a share of
// a server, or FUSE, twice: each such mount has a device number of its own. The mounts of a disk have one number.
func (v *Volume) hasOtherDisk() bool {
	return v.Staging != nil && !v.isStagedDevice() && v.Mount.Major != 0 && v.Staging.Mount.Major != 0
}

// pathBelowMount is the way from the root of the mount that a path of the node lies on; empty for all other volumes.
func (v *Volume) pathBelowMount() string {
	if !v.isPath() || v.Mount.ID == 0 {
		return ""
	}
	below, _ := mountinfo.Below(v.Mount.Point, v.Point)
	return below
}

// asksPath reports whether the path of a hostPath is asked beside the mount that it lies on. A path on a disk is looked up
// when a container wants it.
func (v *Volume) asksPath() bool { return v.pathBelowMount() != "" && mountns.MayHang(v.Mount.FSType) }

// rootPath is the volume's directory in its file system, without the kernel's mark.
func (v *Volume) rootPath() string { return path.Join(unmarkedRoot(v.Mount.Mount), v.pathBelowMount()) }

// pathInVolume returns the way from the volume's directory to that of a mount. The mount may be of the same file
// system, or of another of its type, which the driver had mounted before. It may also be of the directory of the
// node's disk that the volume covers.
func (v *Volume) pathInVolume(m mountinfo.Mount) (sub string, ok bool) {
	if at := v.stagedLocation(); at.Covered != "" && deviceOf(m) == at.nodeDisk() {
		return mountinfo.Below(at.Covered, unmarkedRoot(m))
	}
	if v.Mount.ID == 0 || !sameType(m.FSType, v.Mount.FSType) {
		return "", false
	}
	return mountinfo.Below(v.rootPath(), unmarkedRoot(m))
}

// sameType compares types of file systems. Some kernels leave out the part after the dot of another namespace's mount.
func sameType(a, b string) bool {
	kind, _, _ := strings.Cut(a, ".")
	other, _, _ := strings.Cut(b, ".")
	return a == b || kind == other && (a == kind || b == other)
}

// device is the number of a file system's device.
type device struct{ major, minor uint32 }

func deviceOf(m mountinfo.Mount) device { return device{m.Major, m.Minor} }

func (d device) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// unmarkedRoot is the root of a mount without the kernel's mark.
func unmarkedRoot(m mountinfo.Mount) string {
	root, _ := mountinfo.Deleted(m.Root)
	return root
}

// ParamVolume is the parameter that narrows an inspection to the volume of this name: the kubelet's, which is that of
// the PersistentVolume if the volume comes from a claim. It never widens what may be changed.
const ParamVolume = "param.diagnoser.kubernetes.volume_health.volume"

// inSpec lists the volumes of the pod's spec that this one may be. A spec does not name the PersistentVolume that a claim is
// bound to: a volume of a claim may be any claim's.
func (v *Volume) inSpec(pod *corev1.Pod) (may []corev1.Volume) {
	named := slices.ContainsFunc(pod.Spec.Volumes, func(s corev1.Volume) bool { return s.Name == v.Name && !podinfo.FromClaim(s) })
	for _, s := range pod.Spec.Volumes {
		if named && s.Name == v.Name || !named && v.Plugin != HostPathPlugin && podinfo.FromClaim(s) {
			may = append(may, s)
		}
	}
	return may
}

// Mounters lists the containers of its pod that mount the volume, by the pod's spec.
func (v *Volume) Mounters(pod *corev1.Pod) []string {
	if v.Origin.Container != "" {
		return []string{v.Origin.Container}
	}
	may := v.inSpec(pod)
	var names []string
	for _, name := range podinfo.ContainerNames(pod) {
		if slices.ContainsFunc(podinfo.VolumeMounts(pod, name), func(m corev1.VolumeMount) bool {
			return slices.ContainsFunc(may, func(s corev1.Volume) bool { return s.Name == m.Name })
		}) {
			names = append(names, name)
		}
	}
	return names
}

// readOnlyTypes are file systems that nothing can write to.
var readOnlyTypes = []string{"cramfs", "erofs", "iso9660", "romfs", "squashfs", "udf"}

// noWritesReason says that the device of a mount does not take all writes; empty: it does.
func noWritesReason(h blockdev.Health) string {
	if h.NoWrites == "" {
		return ""
	}
	return "not all writes to its device succeed (" + h.NoWrites + "): a block that is written for the first time has no place"
}

// readOnlyReason says that the kernel has made the file system of a mount read-only after an error; empty: it has not, as
// far as the mount table and the errors show that it has noted. A file system that is mounted read-only has a mount that is, too.
func readOnlyReason(m mountinfo.Mount, h blockdev.Health) string {
	switch {
	case h.Errors > 0 && (hasOption(m.SuperOptions, "emergency_ro") || hasOption(m.SuperOptions, "ro")):
		return fmt.Sprintf("its file system is read-only, and has noted errors (%d since it was last checked): nothing can be written to it", h.Errors)
	case !hasOption(m.Options, "rw") || slices.Contains(readOnlyTypes, m.FSType):
		return ""
	case hasOption(m.SuperOptions, "emergency_ro"):
		return "the kernel has made its file system read-only after an error (emergency_ro): nothing can be written to it"
	case hasOption(m.SuperOptions, "ro"):
		return "its mount is writable and its file system is read-only, as the kernel makes it after an error: nothing can be written to it"
	case h.ReadOnly:
		return "its device has become read-only since it was mounted to be written: no write gets there from memory, and the file system fails with the first"
	}
	return ""
}

func hasOption(options, option string) bool {
	return slices.Contains(strings.Split(options, ","), option)
}

// wantsReadOnly reports whether the pod's spec asks for nothing but to read the volume.
func (v *Volume) wantsReadOnly() bool {
	pod := v.spec.pod
	if pod == nil {
		return false
	}
	may := v.inSpec(pod)
	return len(may) > 0 && !slices.ContainsFunc(may, func(s corev1.Volume) bool { return podinfo.MayWrite(pod, s) })
}
