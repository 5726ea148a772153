// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"cmp"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
)

// Summarize is a look at such pods as all looks give it.
func Summarize(all []Remains) mountstate.Survey {
	sum := mountstate.Survey{Evidence: func() any { return all }}
	for _, r := range all {
		if r.RunsUnknown != "" {
			sum.Unknown.AddPlace(mountstate.Place{Pod: r.Pod, Point: r.Path, Reason: r.Text})
			continue
		}
		sum.Findings = append(sum.Findings, r.Judge()...)
		if r.Over {
			sum.Over = append(sum.Over, r.Pod.UID)
		}
	}
	return sum
}

// Judge decides from the facts alone why a pod stays: one fault for each place that says why, or one for the pod.
func (r Remains) Judge() (all []fault.Finding) {
	if len(r.Waiting) > 0 { // the others end with the pod
		w := r.Waiting[0]
		f := r.findingOfPod(fault.ReasonProcessWaits, w.String())
		f.Details.HeldBy = w.held()
		f.Details.HeldBy.State = fault.ProcessBlocked
		return append(all, f)
	}
	inside := false
	for _, p := range r.Places {
		inside = inside || p.Kind == Inside && p.HiddenBy == nil
		if reason, text := p.judge(); reason != "" {
			all = append(all, r.findingAt(p, reason, text))
		}
	}
	if len(all) == 0 && !inside { // those who ask file systems judge such a mount
		f := r.findingOfPod(fault.ReasonNotTakenDown, "the time of the pod is over, and no cause was found that keeps the kubelet from taking it down")
		if r.UsersUnknown != "" {
			f.Evidence = append(f.Evidence, "not all is known of what uses its mounts: "+r.UsersUnknown)
		}
		all = append(all, f)
	}
	return all
}

// judge decides why a place stays; empty: it does not say.
func (p Place) judge() (reason fault.Reason, text string) {
	switch {
	case p.HiddenBy != nil:
		return fault.ReasonHidden, fmt.Sprintf("a lookup of its path reaches mount %d of type %q, which shows %q at %q, and no unmount reaches this one",
			p.HiddenBy.MountInfoID, p.HiddenBy.FSType, p.HiddenBy.Root, p.HiddenBy.Point)
	case p.Kind == Directory && p.Files > 0:
		return fault.ReasonHasData, fmt.Sprintf("nothing is mounted at %q, and entries lie there on the node's own disk (%d, or more), which are not touched",
			p.Mount.Point, p.Files)
	case p.NoRecord != "":
		return fault.ReasonNoRecord, fmt.Sprintf("%s, and without it the kubelet cannot take the volume down; the record is %q", p.NoRecord,
			kubelet.VolumeRecordPath(p.Mount.Point))
	case p.Kind == Directory && p.Driver != "":
		return fault.ReasonNotMounted, fmt.Sprintf("the kubelet's record names CSI driver %q, and nothing is mounted: the driver does not answer, or refuses "+
			"to unmount what is not mounted", p.Driver)
	case len(p.Users) > 0:
		return fault.ReasonInUse, "an unmount fails, because the target is busy: " + p.Users[0].String()
	}
	return "", ""
}

// findingOfPod is one about the pod as a whole.
func (r Remains) findingOfPod(reason fault.Reason, why string) fault.Finding {
	return fault.Finding{
		Code: fault.StuckTermination, Pod: r.Pod, Evidence: []string{why, r.Text},
		Details: fault.Details{Place: fault.PlacePodDirectory, Path: r.Path, PodState: fault.PodDeleting, KeepsPod: true, Reason: reason},
	}
}

// findingAt is one about a place.
func (r Remains) findingAt(p Place, reason fault.Reason, why string) fault.Finding {
	f := r.findingOfPod(reason, why)
	f.Volume, f.Mount = p.Volume, p.Mount
	f.Details.Path, f.Details.Driver = "", p.Driver
	f.Details.Place = fault.PlaceVolume
	switch p.Kind {
	case OfSubPath:
		f.Details.Place = fault.PlaceSubPath
	case Inside:
		f.Details.Place = fault.PlaceInsideVolume
	case Elsewhere:
		f.Details.Place = fault.PlacePodDirectory
	}
	if p.Driver != "" {
		f.Holder = fmt.Sprintf("CSI driver %q", p.Driver)
	}
	if reason == fault.ReasonInUse {
		f.Details.HeldBy = p.Users[0].held()
		for _, u := range p.Users[1:] {
			f.Details.HeldBy = cmp.Or(f.Details.HeldBy, u.held())
			f.Evidence = append(f.Evidence, "also used: "+u.String())
		}
	}
	f.Evidence = append(f.Evidence, p.String())
	return f
}
