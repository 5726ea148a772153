// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subpath compares the subPath binds that the kubelet has made for a pod with the pod's spec and with what
// the kernel says about them. It separates the stale ones (kubernetes#68211) from the others.
//
// The pod's UID and spec and the kubelet's names of directories decide which binds are the pod's. The kernel decides
// whether a bind is stale. No reported text plays a part. It changes nothing.
//
// It rests on kubernetes/pkg/volume/util/subpath/subpath_linux.go: up to 1.18 the kubelet keeps a bind that is there,
// whatever has become of its source. And on the kernel, which refuses to bind an entry that has been unlinked.
package subpath
