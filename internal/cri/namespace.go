// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

var (
	errHome = errors.New("which user namespace owns the kubelet's mount namespace is not known")
	// ErrWorkload is returned for a mount namespace that a process of a workload has made for itself.
	ErrWorkload = errors.New("a workload has made that mount namespace for itself")
	// ErrUserNamespace is returned for the mount namespace of a container with a user namespace of its own.
	ErrUserNamespace = errors.New("the container runs in a user namespace of its own, whose root could clear the flags of what is mounted " +
		"now: restart the container")
)

// Claim makes sure that mounts of a mount namespace may be changed: it belongs to the container's first process, as the
// runtime names it. In any case the same user namespace must own it as owns home, the kubelet's mount namespace.
// Root of another user namespace could clear the flags of the mounts that are attached there, and could have forged its
// mounts. owner is the container of a process in the namespace, nil if the process is in no container. The returned
// namespace is entered only as long as these conditions hold. An owner that the namespace has already, as mountns.Owners has read it, is not
// read again.
func Claim(home, namespace mountns.Namespace, owner *Owner) (mountns.Namespace, error) {
	if home.UserNamespace == 0 {
		return namespace, errHome
	}
	if namespace.UserNamespace == 0 {
		owned, err := namespace.Owned()
		if err != nil {
			return owned, err
		}
		namespace = owned
	}
	first, known := owner.first()
	native := namespace.UserNamespace == home.UserNamespace
	switch {
	case known && !first.Same(namespace):
		return namespace, fmt.Errorf("%w: the container's first process, %d, is in %s", ErrWorkload, owner.PID, first)
	case known && !native:
		return namespace, ErrUserNamespace
	case !native:
		return namespace, fmt.Errorf("%w: user namespace %d owns it, and %d the kubelet's", ErrWorkload, namespace.UserNamespace, home.UserNamespace)
	case known:
		namespace.PID = owner.PID
	}
	return namespace, nil
}

// first returns the mount namespace of the container's first process, if the runtime names that process, and its number
// means a process of the container here: the runtime may be in another PID namespace.
func (o *Owner) first() (ns mountns.Namespace, known bool) {
	if o == nil || o.PID <= 0 {
		return ns, false
	}
	cgroup, err := sys.ReadProc(strconv.Itoa(o.PID)+"/cgroup", nil)
	if err != nil || !slices.Contains(ContainerIDs(string(cgroup)), o.ContainerID) {
		return ns, false
	}
	ns, err = mountns.Of(o.PID)
	return ns, err == nil
}
