// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/devholder"
)

// Document is a case as programs read it.
type Document struct {
	Device    string   `json:"device"` // its node, "/dev/rbd3"
	Number    string   `json:"number"` // "major:minor"
	Busy      bool     `json:"busy"`
	Host      bool     `json:"host"` // mounted in the kubelet's namespace
	Removable bool     `json:"removable"`
	Why       string   `json:"why"`
	Holders   []Entry  `json:"holders"`
	Hidden    []string `json:"hidden,omitempty"`
	Looked    string   `json:"looked"`
}

// Entry is one holder of a Document.
type Entry struct {
	Kind           devholder.Kind `json:"kind"`
	MountNamespace uint64         `json:"mountNamespace,omitempty"`
	PIDs           []int          `json:"pids,omitempty"`
	Command        string         `json:"command,omitempty"`
	KeptBy         string         `json:"keptBy,omitempty"`
	MountPoint     string         `json:"mountPoint,omitempty"`
	HostPath       string         `json:"hostPath,omitempty"`
	Volume         string         `json:"volume,omitempty"`
	Path           string         `json:"path,omitempty"` // of what is no mount
	Pod            fault.Pod      `json:"pod,omitzero"`
	Container      string         `json:"container,omitempty"`
	Workload       string         `json:"workload,omitempty"`
	VolumeMount    *VolumeMount   `json:"volumeMount,omitempty"`
	Since          time.Time      `json:"since,omitzero"`
	Patch          string         `json:"patch,omitempty"`
	Removable      bool           `json:"removable"`
	Why            string         `json:"why"`
}

// VolumeMount is the volume of a container that has carried a mount in.
type VolumeMount struct {
	Name             string `json:"name,omitempty"`
	HostPath         string `json:"hostPath"`
	MountPath        string `json:"mountPath"`
	MountPropagation string `json:"mountPropagation"`
}

// Document makes the document of a case.
func (c *Usage) Document() Document {
	d := Document{
		Device: c.Device.Node(), Number: c.Device.Number.String(), Busy: c.Busy, Host: c.Host, Removable: c.Removable, Why: c.Why,
		Holders: []Entry{}, Hidden: c.Hidden, Looked: c.Coverage.String(),
	}
	for _, h := range c.HolderInfos {
		entry := Entry{
			Kind: h.Kind, PIDs: h.PIDs, Command: h.Command, HostPath: h.Origin.HostPath, Volume: h.Origin.Volume, Pod: h.In.Pod, Container: h.In.Container,
			Workload: h.In.Workload.String(), Since: h.In.Since, Patch: h.Origin.Patch, Removable: h.Removable, Why: h.Why,
		}
		if h.Kind == devholder.Mount {
			entry.MountNamespace, entry.MountPoint, entry.KeptBy = h.Mount.Namespace.Inode, h.Path, h.namespaceHolderText()
		} else {
			entry.Path = h.Path
		}
		if h.Origin.CarrierMount != nil {
			entry.VolumeMount = &VolumeMount{h.Origin.VolumeMount, h.Origin.CarrierMount.HostPath, h.Origin.CarrierMount.ContainerPath, string(h.Origin.CarrierMount.Propagation)}
		}
		d.Holders = append(d.Holders, entry)
	}
	return d
}
