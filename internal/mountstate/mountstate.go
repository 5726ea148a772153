// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountstate has the question that all looks at a node answer, and the form of the answer: a Scope in, a Survey out.
//
// A survey has the faults that were found, what was counted on the way, and what is unknown. Without faults and with
// something unknown, nothing is known to be well, and each program that shows a survey says so.
//
// It also has the model that says why each mount of the kubelet is there: Desired are the links that pods want, Observe has the mounts,
// Classify puts each mount in one class, Evaluate decides by rows whether a link is there, Attribute says each state once, and Account adds up. All of it is pure: the
// package asks no file system.
package mountstate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Inspector looks for faults of one kind. It changes nothing.
type Inspector interface {
	// Look gives up when ctx is done. An error means that nothing is known.
	Look(ctx context.Context, s Scope) (Survey, error)
}

// Scope narrows a look. The zero value is the whole node.
type Scope struct {
	// PodUIDs are the pods that are looked at; empty: all.
	PodUIDs []string
	// Volume is the kubelet's name of a volume.
	Volume string
}

// Includes reports whether a volume of a pod is to be looked at.
func (s Scope) Includes(podUID, volume string) bool {
	return (len(s.PodUIDs) == 0 || slices.Contains(s.PodUIDs, podUID)) && (s.Volume == "" || s.Volume == volume)
}

// Survey is the result of a look, or of several.
type Survey struct {
	Findings []fault.Finding
	Coverage Coverage
	Unknown  Unknown
	// Mounts are those of the kubelet with their classes; nil if this look is not at mounts.
	Mounts []Classified
	// Over are the UIDs of pods that are proven to want nothing any more.
	Over []string
	// LeftOver are the points of mounts of the node that are proven to be of no pod.
	LeftOver []string
	// Evidence returns what the survey rests on, in a form that can be written down as JSON and judged elsewhere. Nil:
	// there is none.
	Evidence func() any
}

// Merge adds another look at the same node. The evidence stays apart.
func (s *Survey) Merge(o Survey) {
	s.Findings = append(s.Findings, o.Findings...)
	c, other := &s.Coverage, o.Coverage // each count is made by one look alone, or is the same in all
	c.Namespace = max(c.Namespace, other.Namespace)
	c.Pods, c.Binds, c.Volumes, c.Devices = max(c.Pods, other.Pods), max(c.Binds, other.Binds), max(c.Volumes, other.Volumes), max(c.Devices, other.Devices)
	c.Containers = max(c.Containers, other.Containers)
	c.Mounts, c.Asked, c.Renewed = max(c.Mounts, other.Mounts), max(c.Asked, other.Asked), c.Renewed+other.Renewed
	if other.RenewsBinds != nil {
		c.RenewsBinds = other.RenewsBinds
	}
	c.Took += other.Took
	c.Notes = append(c.Notes, other.Notes...)
	if of := other.Namespaces; of != nil && c.Namespaces != nil {
		all := *c.Namespaces // each pass sees the same namespaces
		all.Denied, all.Partial = max(all.Denied, of.Denied), max(all.Partial, of.Partial)
		c.Namespaces = &all
	} else if of != nil {
		c.Namespaces = of
	}
	s.Unknown.Merge(o.Unknown)
	s.Over, s.LeftOver = append(s.Over, o.Over...), append(s.LeftOver, o.LeftOver...)
	if s.Mounts == nil {
		s.Mounts = o.Mounts
	} else {
		s.Mounts = append(s.Mounts, o.Mounts...)
	}
}

// Coverage is the extent of a look.
type Coverage struct {
	// Namespace is the inode number of the kubelet's mount namespace.
	Namespace uint64 `json:",omitempty"`
	// Pods counts the directories of pods, Binds the subPath binds, Volumes the volumes that were asked, and Devices those
	// that only other mount namespaces have mounted.
	Pods    int `json:",omitempty"`
	Binds   int `json:",omitempty"`
	Volumes int `json:",omitempty"`
	Devices int `json:",omitempty"`
	// Mounts is how many mounts the kubelet's namespace has, Asked how many were asked in all namespaces.
	Mounts, Asked int
	// Containers counts those whose mounts were compared with the records of the container runtime.
	Containers int `json:",omitempty"`
	// RenewsBinds is whether this kubelet replaces stale binds by itself; nil: that is not known. Renewed counts the stale
	// binds that are no faults for that reason.
	RenewsBinds *bool `json:",omitempty"`
	Renewed     int   `json:",omitempty"`
	// Namespaces is what the pass over other mount namespaces looked at; nil if there was none.
	Namespaces *mountns.Survey
	Took       time.Duration
	// Notes are sentences that refine the result. None of them hides a fault.
	Notes []string `json:",omitempty"`
}

// Unknown is all of a look that may hide a fault. The zero value is a complete look.
type Unknown struct {
	// Places were found, and their own state is not known.
	Places []Place
	// Gaps are parts of the node that were not looked at.
	Gaps []Gap
}

// Merge adds what another look does not know.
func (u *Unknown) Merge(o Unknown) {
	for _, p := range o.Places {
		u.AddPlace(p)
	}
	for _, g := range o.Gaps {
		if !slices.Contains(u.Gaps, g) {
			u.Gaps = append(u.Gaps, g)
		}
	}
}

// None reports whether all is known.
func (u Unknown) None() bool { return u.Count() == 0 }

// Count is how many places and parts are not known.
func (u Unknown) Count() int { return len(u.Places) + len(u.Gaps) }

// Also is the part of it that an earlier look did not know either. The reasons and the counts are its own.
func (u Unknown) Also(earlier Unknown) (both Unknown) {
	for _, p := range u.Places {
		same := func(o Place) bool { o.Reason = p.Reason; return o == p }
		if slices.ContainsFunc(earlier.Places, same) {
			both.Places = append(both.Places, p)
		}
	}
	for _, g := range u.Gaps {
		same := func(o Gap) bool { return cmp.Or(g.Subject, g.What) == cmp.Or(o.Subject, o.What) }
		if slices.ContainsFunc(earlier.Gaps, same) {
			both.Gaps = append(both.Gaps, g)
		}
	}
	return both
}

// AddPlace adds a place, once.
func (u *Unknown) AddPlace(p Place) {
	if !slices.Contains(u.Places, p) {
		u.Places = append(u.Places, p)
	}
}

// AddGap adds a gap without a remedy, once.
func (u *Unknown) AddGap(what, why string) {
	u.Merge(Unknown{Gaps: []Gap{{What: what, Why: why}}})
}

// AddSkipped adds the parts that a pass over the mount namespaces has skipped. All numbers in such a phrase are counts and bounds, so that two
// passes name the same part by the phrase without them.
func (u *Unknown) AddSkipped(skipped ...string) {
	for _, part := range skipped {
		subject := strings.Map(func(r rune) rune {
			if '0' <= r && r <= '9' {
				return -1
			}
			return r
		}, part)
		u.Merge(Unknown{Gaps: []Gap{{What: part, Subject: subject, Why: "there are more of them than are looked at"}}})
	}
}

// Sentences are all of it for people, the places first.
func (u Unknown) Sentences() (all []string) {
	for _, p := range u.Places {
		all = append(all, p.String())
	}
	for _, g := range u.Gaps {
		all = append(all, g.String())
	}
	return all
}

// Place may be broken: its state is not known.
type Place struct {
	Pod fault.Pod
	// Container has the mount, at Point; empty for a volume, or if it is not known.
	Container string `json:",omitempty"`
	Volume    string
	Point     string
	// Namespace is the mount namespace of a copy; empty: the kubelet's.
	Namespace string `json:",omitempty"`
	// Reason says why it could not be judged.
	Reason string
}

// String is the place and the reason, for people.
func (p Place) String() string {
	at := strconv.Quote(p.Point)
	text := at
	switch {
	case p.Volume != "":
		text = fmt.Sprintf("volume %q of %s at %s", p.Volume, podText(p.Pod), at)
	case p.Pod != (fault.Pod{}):
		text = fmt.Sprintf("%s at %s", podText(p.Pod), at)
	}
	switch {
	case p.Container != "" && p.Namespace == "":
		text += fmt.Sprintf(" in container %q", p.Container)
	case p.Namespace != "":
		text = fmt.Sprintf("the mount of %s in mount namespace %s", text, p.Namespace)
	}
	return text + ": " + p.Reason
}

func podText(p fault.Pod) string {
	if p.Name == "" {
		return fmt.Sprintf("pod %q", p.UID)
	}
	return fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)
}

// Gap is a part of the node that was not looked at, the reason, and the remedy.
type Gap struct {
	What string `json:"what"`
	Why  string `json:"why"`
	// Do is empty if there is no remedy.
	Do string `json:"do,omitempty"`
	// Subject is What without counts, by which a later look finds the same gap. Empty: What has none.
	Subject string `json:"-"`
}

// String is the gap for people.
func (g Gap) String() string {
	text := g.What + ": " + g.Why
	if g.Do != "" {
		text += ": " + g.Do
	}
	return text
}
