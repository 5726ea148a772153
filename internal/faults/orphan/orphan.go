// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package orphan finds the directories of pods that are gone, and proves that nothing of them is in use. It removes
// what is empty in them, leaf first, so that the kubelet can remove the rest.
//
// A directory is orphaned only if all that may know of its pod were asked and do not: the API server, past every cache,
// and the container runtime. A kubelet makes the directory before anything else of a pod, so one in which something has
// changed lately is none. One that could not be asked proves nothing, and is named. The API server is asked once for a
// pod: see goneCache.
//
// It removes empty directories. By their names, and only as the kubelet makes them, it also removes the records of CSI
// volumes, the empty files that subPaths are bound on, and the copies of the keys of ConfigMaps and the like. By a record that can be read a kubelet finishes with the
// volume once the driver is there: it is removed only if the kubelet is known not to retry. Anything else may be data:
// it is reported, and then nothing of that pod is removed. A kubelet that finds no volume left would remove all the
// rest by itself, with its content. Nothing is removed of which anything is mounted in any mount namespace: rmdir(2)
// detaches what others have mounted on a directory.
//
// It rests on kubernetes/pkg/kubelet/kubelet_volumes.go and pkg/volume/csi of 1.18 and 1.36, unlinkat(2), openat2(2)
// and mount_namespaces(7).
package orphan

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Bounds of how long a pod's directory must be unchanged before the pod counts as gone: those that
// people may set are from shortestMinimumAge. A kubelet that has made the directory may wait for a while before it
// makes the sandbox; and one at work is silent for up to two minutes for a driver's answer, and then for two more
// before it tries again.
const (
	DefaultMinimumAge = 10 * time.Minute
	longestMinimumAge = 720 * time.Hour
)

// CheckMinimumAge says what is wrong with a minimum age that the user has set.
func CheckMinimumAge(age time.Duration) error {
	if age < shortestMinimumAge || age > longestMinimumAge {
		return fmt.Errorf("must be between %.0fm and %.0fh", shortestMinimumAge.Minutes(), longestMinimumAge.Hours())
	}
	return nil
}

// ErrNotRemovable is returned for what is not removed, with the reason.
var ErrNotRemovable = errors.New("not removable")

// Pods knows the pods of this node.
type Pods interface {
	// PodsNow lists every pod that is bound to this node, mirror pods and those that are being deleted included, as the
	// API server has them now: a cache that has not heard of a pod yet, or of nothing for an hour, would have its
	// directory be removed. UID and Annotations are needed, names are for people.
	PodsNow(ctx context.Context) ([]metav1.ObjectMeta, error)
}

// Cache knows pods of this node without a request. A pod that it knows is not gone; one that it does not know may be
// there all the same.
type Cache interface {
	// Knows reports whether a pod has the UID, or is a mirror pod that stands for it: see UIDs.
	Knows(uid string) bool
}

// Runtime is the container runtime of this node: a cri.Client.
type Runtime interface {
	// Sandboxes lists the sandboxes of the pods, also those that have ended.
	Sandboxes(ctx context.Context) ([]cri.Sandbox, error)
	// PodRecords lists the containers of a pod, also those that have ended.
	PodRecords(ctx context.Context, podUID string) ([]cri.Container, error)
}

// Inspector looks for orphaned directories of pods. Its fields are set before its first use; then it may be used by
// several goroutines.
type Inspector struct {
	Kubelet kubelet.Locator
	// Pods and Runtime are nil if there is no such source. Then nothing is proven.
	Pods    Pods
	Runtime Runtime
	// Cache spares Pods questions. Nil: it is asked at each look.
	Cache Cache
	// MinimumAge is how long a pod's directory must be unchanged. 0: DefaultMinimumAge.
	MinimumAge time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	confirmedGone goneCache
}

// Survey is what was found on a node.
type Survey struct {
	// KubeletRoot is the kubelet's root directory, in its mount namespace.
	KubeletRoot string `json:"kubeletRoot"`
	// Directories is how many directories of pods there are, of all pods.
	Directories int `json:"directories"`
	// Pods are the directories that belong to no pod that any source knows which was asked, ordered by UID.
	Pods []*Pod `json:"pods"`
	// UnavailableSources says which sources could not be asked, and why. Then no directory is proven to be orphaned, and only the volumes and the age
	// of each are known.
	UnavailableSources []string `json:"unasked,omitempty"`
	// Skipped is what was not looked at because there is too much of it.
	Skipped []string `json:"skipped,omitempty"`
	// Coverage says where it was looked for mounts; nil if no directory had to be looked at.
	Coverage *mountns.Survey `json:"looked,omitempty"`

	terms judgeTerms
}

// Pod is the directory of a pod that no source knows which was asked.
type Pod struct {
	Place
	// Changed is when a name in the directory, or below, last came or went.
	Changed time.Time `json:"changed,omitzero"`
	// Orphaned is whether it is proven to belong to no pod; Unproven says why not.
	Orphaned bool     `json:"orphaned"`
	Unproven []string `json:"unproven,omitempty"`
	Remains
	// Refusals say why nothing of it is removed, at most 32.
	Refusals []string `json:"refusals,omitempty"`
	// Actions remove what has to go before the kubelet removes the rest. There are none if anything speaks against it.
	Actions []fault.Action `json:"steps,omitempty"`

	allEntries     []Entry
	reason         fault.RefusalReason // of the first refusal
	containerDoubt string              // why it is not proven that it has no container; empty: it is
	mounts         podUse
}

// Place is where the directory of a pod is, and whose it was.
type Place struct {
	UID string `json:"uid"`
	// Path is the directory, in the kubelet's mount namespace.
	Path string `json:"path"`
	// Namespace and Name are what the directories of the kubelet's logs say. They are for people.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Remains are what is left in the directory of a pod, and mounted of it.
type Remains struct {
	// Volumes are the directories of volumes that are left, "plugin/name" as they are called there.
	Volumes []string `json:"volumes,omitempty"`
	// SubPaths is whether the directory of the subPaths is left.
	SubPaths bool `json:"subPaths,omitempty"`
	// Entries are what lies in it, each directory after what is in it; at most 256 are listed, and More says how many
	// others there are.
	Entries []Entry `json:"entries,omitempty"`
	More    int     `json:"more,omitempty"`
	// Mounts are what is mounted of it, at most 32.
	Mounts []PodMount `json:"mounts,omitempty"`
}

// Kind is what an entry of a pod's directory is.
type Kind string

// Kinds of entries.
const (
	Directory   Kind = "directory"
	Record      Kind = "record"      // the kubelet's notes on a CSI volume: vol_data.json
	SubPath     Kind = "subPath"     // the empty file that a subPath was bound on
	KeyFile     Kind = "keyFile"     // the kubelet's own copy of a key of a ConfigMap, Secret or the like
	KeyLink     Kind = "keyLink"     // the kubelet's own link to such a copy
	KubeletFile Kind = "kubeletFile" // etc-hosts and the like, which the kubelet removes with the directory
	MountPoint  Kind = "mount"       // something is mounted on it
	Other       Kind = "other"       // what may be data
)

// Entry is one entry of a pod's directory.
type Entry struct {
	// Path is relative to the pod's directory; "." is that itself.
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Reason says what it is, if that is not plain.
	Reason string `json:"why,omitempty"`

	facts EntryFacts
}

// EntryFacts are what was read of an entry.
type EntryFacts struct {
	Inode   uint64    `json:"inode,omitempty"`
	Made    time.Time `json:"made,omitzero"`
	Changed time.Time `json:"changed,omitzero"`
	// Record is nil for one that is empty: the kubelet does not wait until it is written out.
	Record *kubelet.VolumeRecord `json:"record,omitempty"`
	// NeededReason is what speaks against removing a record; empty: nothing.
	NeededReason string `json:"needed,omitempty"`
}

// PodMount is a mount that shows the directory to be in use.
type PodMount struct {
	// Namespace is the inode number of the mount namespace; 0 if that could not be told.
	Namespace uint64 `json:"namespace"`
	Point     string `json:"point"`
	Root      string `json:"root"`
	FSType    string `json:"fsType,omitempty"`
	// Reason says what it has to do with the directory.
	Reason string `json:"why"`
}

func (i *Inspector) currentTime() time.Time {
	if i.Now != nil {
		return i.Now()
	}
	return time.Now()
}

func (i *Inspector) minimumAge() time.Duration {
	if i.MinimumAge > 0 {
		return i.MinimumAge
	}
	return DefaultMinimumAge
}
