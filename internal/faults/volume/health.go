// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import "kubediag.org/kubediag/internal/fault"

// Health is a volume with what each step of an inspection has found out about it.
type Health struct {
	Evidence    Evidence
	Verdict     Verdict
	Replacement Replacement
	// Copies are the broken mounts of the same directory, or of one in it: the kubelet's subPath binds, then those in
	// containers, then all others.
	Copies       []*Copy
	Surroundings Surroundings
}

// Surroundings are who else has to do with a broken volume.
type Surroundings struct {
	// ForeignCopies is how many copies belong to others. They are in containers of other pods, also the driver's, in
	// mount namespaces of services of the node, and in those that a workload has made for itself.
	ForeignCopies int `json:"foreignCopies,omitempty"`
	// SharedWith are the other pods that have a mount of the same broken file system, at most maxSharedWith of them,
	// and SharedWithCount is how many there are.
	SharedWith      []fault.Pod `json:"sharedWith,omitempty"`
	SharedWithCount int         `json:"sharedWithCount,omitempty"`
	// DaemonNotes say what is known of the daemon that serves the file system.
	DaemonNotes []string `json:"daemonNotes,omitempty"`
	// Daemon is the first process that serves it; nil: none was found.
	Daemon *fault.Process `json:"daemon,omitempty"`
}

// Broken reports whether the volume has a fault, or a copy of it has one.
func (v *Health) Broken() bool { return v.Verdict.Code != "" || len(v.Copies) > 0 }
