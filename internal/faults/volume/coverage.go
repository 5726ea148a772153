// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Coverage is the extent of an inspection. Without faults, and with Unjudged or Incomplete, nothing is known to be well.
type Coverage struct {
	// Mounts is how many mounts the kubelet's namespace has, Asked how many mounts were asked in all namespaces.
	Mounts, Asked int
	// Namespaces is what the pass over other mount namespaces looked at; nil if none was needed.
	Namespaces *mountns.Survey
	Took       time.Duration
	// Unjudged are the volumes, hostPaths and copies that were found, and whose own state is not known.
	Unjudged []Unjudged `json:",omitempty"`
	// Incomplete are the parts of the node that could not be looked at. Each may hide a fault.
	Incomplete []Gap `json:",omitempty"`
	// Notes are sentences that refine the result. None of them hides a fault of a mount that fails.
	Notes []string `json:",omitempty"`
}

// Unjudged is a mount whose state is not known: it may be broken.
type Unjudged struct {
	Pod fault.Pod
	// Container has the copy; empty for a volume, or if it is not known.
	Container string `json:",omitempty"`
	Volume    string
	Point     string
	// Namespace is the mount namespace of a copy; empty for a volume.
	Namespace string `json:",omitempty"`
	// Reason says why it could not be judged.
	Reason string
}

// String is the place and the reason, for people.
func (u Unjudged) String() string {
	text := fmt.Sprintf("volume %q of pod %s at %q", u.Volume, describePod(u.Pod), u.Point)
	switch {
	case u.Volume == "" && u.Namespace != "": // it is of no volume that is known
		text = fmt.Sprintf("the mount of pod %s at %q in mount namespace %s", describePod(u.Pod), u.Point, u.Namespace)
	case u.Namespace != "":
		text = fmt.Sprintf("the mount of %s in mount namespace %s", text, u.Namespace)
	}
	return text + " could not be judged: " + u.Reason
}

// Gap is a part of the node that could not be looked at.
type Gap struct {
	What string
	Why  string
}

// String is the gap for people.
func (g Gap) String() string { return g.What + ": " + g.Why }

// Unknown lists in sentences all that was not judged or not looked at. It is empty if each mount has a verdict.
func (c *Coverage) Unknown() []string {
	var all []string
	for _, u := range c.Unjudged {
		all = append(all, u.String())
	}
	for _, g := range c.Incomplete {
		all = append(all, g.String())
	}
	return all
}

// UnjudgedOf lists what was not judged of one pod.
func (c *Coverage) UnjudgedOf(podUID string) []Unjudged {
	var own []Unjudged
	for _, u := range c.Unjudged {
		if u.Pod.UID == podUID {
			own = append(own, u)
		}
	}
	return own
}

func (c *Coverage) addUnjudged(u Unjudged) {
	if !slices.Contains(c.Unjudged, u) {
		c.Unjudged = append(c.Unjudged, u)
	}
}

func (c *Coverage) addGap(what, why string) {
	if gap := (Gap{what, why}); !slices.Contains(c.Incomplete, gap) {
		c.Incomplete = append(c.Incomplete, gap)
	}
}

// addSkipped notes the mount namespaces that a pass has skipped.
func (c *Coverage) addSkipped(skipped []string) {
	for _, what := range skipped {
		c.addGap(what, "there are more of them than are looked at")
	}
}

// addVolumes notes the volumes of which nothing can be said, but for those that have gone meanwhile.
func (c *Coverage) addVolumes(volumes []*Health) {
	for _, v := range volumes {
		if v.UnknownReason != "" && v.Answer.State != probe.Gone {
			c.addUnjudged(Unjudged{Pod: v.Pod, Volume: v.Name, Point: v.Point, Reason: v.UnknownReason})
		}
	}
}

// addCopy notes a copy of which nothing can be said.
func (c *Coverage) addCopy(of *Health, copied *Copy, reason string) {
	pod := copied.Pod
	if pod.UID == "" {
		pod = of.Pod
	}
	c.addUnjudged(Unjudged{
		Pod: pod, Container: copied.Container, Volume: of.Name, Point: copied.Point, Namespace: copied.Namespace.String(), Reason: reason,
	})
}
