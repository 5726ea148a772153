// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"path"
	"strconv"
	"strings"
)

const (
	subPathsDir = "volume-subpaths"
	volumesDir  = "volumes"
)

// SubPath names the place where the kubelet binds one subPath, to hand it to the container runtime.
type SubPath struct {
	PodUID string
	// Volume is the kubelet's name of the volume: its name in the pod, or the name of the PersistentVolume if the volume
	// comes from a claim.
	Volume    string
	Container string
	// Index is the position in the container's volumeMounts, from 0.
	Index int
}

// SubPathPoint is the path of the bind. It is empty if s cannot be a path.
func (l *Layout) SubPathPoint(s SubPath) string {
	if !isPathComponent(s.PodUID) || !isPathComponent(s.Volume) || !isPathComponent(s.Container) || s.Index < 0 {
		return ""
	}
	return l.PodDir(s.PodUID) + "/" + subPathsDir + "/" + s.Volume + "/" + s.Container + "/" + strconv.Itoa(s.Index)
}

// SubPathsDir is the directory in which the kubelet binds the subPaths of a pod.
func (l *Layout) SubPathsDir(uid string) string { return path.Join(l.PodDir(uid), subPathsDir) }

// ParseSubPath is the reverse of SubPathPoint: it takes a path that lies below this kubelet's root and is built as the
// kubelet builds it, and no other.
func (l *Layout) ParseSubPath(point string) (SubPath, bool) {
	rest, below := l.belowPods(point)
	uid, rest, _ := strings.Cut(rest, "/")
	rest, inSubPaths := strings.CutPrefix(rest, subPathsDir+"/")
	volume, rest, _ := strings.Cut(rest, "/")
	container, number, found := strings.Cut(rest, "/")
	if !below || !inSubPaths || !found || !isPathComponent(uid) || !isPathComponent(volume) || !isPathComponent(container) {
		return SubPath{}, false
	}
	index, err := strconv.Atoi(number)
	if err != nil || index < 0 || strconv.Itoa(index) != number { // only one spelling of a number is accepted
		return SubPath{}, false
	}
	return SubPath{PodUID: uid, Volume: volume, Container: container, Index: index}, true
}

// NodeOfSubPath returns the node, in the caller's own mount namespace, whose directory of pods has point as the place of a
// subPath bind. It reads only the path. ok is false for another form of path.
func NodeOfSubPath(point string) (node *Node, ok bool) {
	pods := point
	for range 5 { // UID/volume-subpaths/VOLUME/CONTAINER/INDEX
		pods = path.Dir(pods)
	}
	node = &Node{Layout: Layout{Root: path.Dir(pods), podsDir: pods}}
	_, ok = node.ParseSubPath(point)
	return node, ok
}
