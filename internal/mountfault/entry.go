// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/share"
)

// entry is one object: as it should be, and as the API server has it. nil: it should not be there, or is not.
type entry struct {
	want, written *v1.MountFault
	// last is the last object that was wanted.
	last *v1.MountFault
	// since is when the present fault began, claim the claim of its volume.
	since metav1.Time
	claim string
	// kept is set while it is not known whether the fault of the object is still there. The object is not changed then. gone
	// is set if the fault is not there. Neither: it is there, but may have no object of its own.
	kept, gone bool
	// olderAPI is set if the API server did not know ImpactTerminating.
	olderAPI bool
	// notBefore is when the object may be written next.
	notBefore time.Time
	// said is when the last Event about the fault was sent. announced is set if the last one did not say that it is
	// gone.
	said      time.Time
	announced bool
}

// adopt takes an object that the API server has.
func (e *entry) adopt(f *v1.MountFault) {
	if e.written == nil {
		e.said, e.announced = time.Now(), true // by a predecessor
	}
	e.noteWritten(f)
	e.last, e.since, e.claim = e.written, f.Status.Since, f.Status.Claim
}

// noteWritten notes an object as the API server has it, without the metadata that others may have put on it.
func (e *entry) noteWritten(f *v1.MountFault) {
	kubeclient.ReduceMetadata(&f.ObjectMeta)
	e.written = f.DeepCopy() // f may be part of a page
}

// remember gives an object the facts about its fault from earlier.
func (e *entry) remember(f *v1.MountFault) {
	f.Status.Claim = e.claim
	if !e.since.IsZero() && e.since.Before(&f.Status.Since) {
		f.Status.Since = e.since
	}
	e.since = f.Status.Since
}

// pending reports whether the object must be written. Evidence alone is no reason: it has numbers that change with every check.
func (e *entry) pending() bool {
	if e.kept || e.want == nil || e.written == nil {
		return !e.kept && (e.want != nil || e.written != nil)
	}
	x, y := e.want.Status.DeepCopy(), e.written.Status.DeepCopy()
	x.Evidence, y.Evidence = nil, nil
	x.LastSeen, y.LastSeen = metav1.Time{}, metav1.Time{}
	return !equality.Semantic.DeepEqual(x, y)
}

// entrySet has the entry of each object by name.
type entrySet map[types.NamespacedName]*entry

// of returns the entry of an object, which is empty if there was none.
func (s entrySet) of(name types.NamespacedName) *entry {
	e := s[name]
	if e == nil {
		e = &entry{}
		s[name] = e
	}
	return e
}

// rounds orders the entries. A round has one entry of each namespace, and the pods of a namespace take turns. The entry that was written
// longest ago comes first; of several, a deletion, and then the worst fault.
func (s entrySet) rounds() [][]types.NamespacedName {
	rank := func(name types.NamespacedName) int {
		f := s[name].want
		if f == nil {
			return -1
		}
		return impactRank(f)
	}
	names := slices.SortedFunc(maps.Keys(s), func(a, b types.NamespacedName) int {
		return cmp.Or(s[a].notBefore.Compare(s[b].notBefore), rank(a)-rank(b), compareNames(a, b))
	})
	return share.Rounds(names, func(name types.NamespacedName) share.Owner {
		owner := share.Owner{Namespace: name.Namespace}
		if f := cmp.Or(s[name].want, s[name].written); f != nil && f.Status.Pod != nil {
			owner.Pod = string(f.Status.Pod.UID)
		}
		return owner
	})
}
