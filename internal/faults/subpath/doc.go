// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subpath compares the subPath binds that the kubelet has made for a pod with the pod's spec and with what
// the kernel says about them, and tells the stale ones (kubernetes#68211) from the others.
//
// What is a bind of the pod is decided by the pod's UID and spec and by the kubelet's way to name directories; whether
// it is stale, by the kernel. No text that anybody reports plays a part. It changes nothing.
//
// It rests on kubernetes/pkg/volume/util/subpath/subpath_linux.go: up to 1.18 the kubelet keeps a bind that is there,
// whatever has become of its source. And on the kernel, which refuses to bind what has been unlinked.
package subpath
