// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"fmt"
)

// Key says which fault a finding is about, in names that outlive a remount, a restart and a reboot. Two looks that find a fault
// give it one key. Mounts that lie on each other at one place share it: which of them is meant, the mount of the finding says.
type Key struct {
	Code      Code   `json:"code,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Container string `json:"container,omitempty"`
	// Volume is the kubelet's name of the volume, which is the same whether the pod's spec is known or not.
	Volume string `json:"volume,omitempty"`
	// Place is a path: where the mount is, or the directory of a pod that is gone. In a mount namespace of no known container, the
	// inode number of that is before it: "ns:4026532456:/data". A mount that holds a device has the device before it: "dev:rbd3:".
	Place string `json:"place,omitempty"`
}

// Key returns the key of the fault that was found. A fact that a repair changes is not in it, such as the list of volumes
// that are left in the directory of a pod. A fact about the holder of a device that only the container runtime knows is not
// in it either.
func (f Finding) Key() Key {
	d, place := f.Details, f.Mount.Point
	if f.Container == "" && d.Place == PlaceContainer || d.Device != "" {
		place = fmt.Sprintf("ns:%d:%s", f.Mount.Namespace, place)
	}
	switch volume := cmp.Or(d.PersistentVolume, f.Volume); {
	case d.Device != "":
		return Key{Code: f.Code, Volume: volume, Place: "dev:" + d.Device + ":" + place}
	case d.Path != "":
		return Key{Code: f.Code, PodUID: f.Pod.UID, Place: d.Path}
	default:
		return Key{Code: f.Code, PodUID: f.Pod.UID, Container: f.Container, Volume: volume, Place: place}
	}
}

// Subject is the key without the place: the thing that the fault hurts, as a MountFault has it. A volume that is dead in
// several mounts of a pod is one subject. A bind is one for each container.
func (k Key) Subject() Key {
	if !k.Code.OfContainer() {
		k.Container = ""
	}
	k.Place = ""
	return k
}

// OfContainer reports whether a fault of the code concerns one container, and not the volume for all of them.
func (c Code) OfContainer() bool { return Known().Entry(c).Scope == ScopeContainer }

// Location is the key without the code: where a repair is made, whatever it repairs.
func (k Key) Location() Key {
	k.Code = ""
	return k
}
