// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
)

// faultPlace is a row of the table: faults that have one cause, and are repaired in one way.
type faultPlace struct {
	number int
	faults []*scanFault
}

// maxUngrouped is how many places may differ in pod and volume alone. Beyond that they become one place for each volume
// of a namespace, and if that is not enough, one in all: a cause that hits hundreds of pods takes one row.
const maxUngrouped = 8

// groupPlaces groups the faults, puts the worst first and writes its number into each fault.
func (r *scanReport) groupPlaces() []faultPlace {
	var faults []*scanFault
	for i := range r.Faults {
		faults = append(faults, &r.Faults[i])
	}
	kind := func(f *scanFault) string {
		return fmt.Sprintf("%s\x00%s\x00%s\x00%s", f.Code, f.Impact, f.Heal, f.Details.Driver)
	}
	exact := func(f *scanFault) string { return f.subjectKey() + "\x00" + f.Volume }
	volume := func(f *scanFault) string { return f.Pod.Namespace + "\x00" + f.kubeletVolume() }
	whole := func(*scanFault) string { return "" }
	var all []faultPlace
	for _, faults := range verb.Group(faults, kind) {
		for _, same := range verb.Merge(faults, maxUngrouped, exact, volume, whole) {
			all = append(all, faultPlace{faults: same})
		}
	}
	for _, p := range all {
		slices.SortFunc(p.faults, compareFaults)
	}
	slices.SortFunc(all, func(a, b faultPlace) int { // the worst impact first, and of that the most pods
		x, y := a.faults[0], b.faults[0]
		return cmp.Or(impactRank(x.Impact)-impactRank(y.Impact), spreadRank(x)-spreadRank(y),
			len(b.podNames())-len(a.podNames()), cmp.Compare(x.Code, y.Code), compareFaults(x, y),
			cmp.Compare(x.Heal, y.Heal), cmp.Compare(x.Details.Driver, y.Details.Driver))
	})
	sorted := make([]scanFault, 0, len(r.Faults))
	for i := range all {
		all[i].number = i + 1
		for _, f := range all[i].faults {
			f.Place = i + 1
			sorted = append(sorted, *f)
		}
	}
	copy(r.Faults, sorted)
	return placesInOrder(r.Faults)
}

// placesInOrder are the places of faults that are in the order of their places.
func placesInOrder(faults []scanFault) (all []faultPlace) {
	for i := range faults {
		f := &faults[i]
		if len(all) == 0 || all[len(all)-1].number != f.Place {
			all = append(all, faultPlace{number: f.Place})
		}
		last := &all[len(all)-1]
		last.faults = append(last.faults, f)
	}
	return all
}

// subjectKey names the device or the workload that the fault hurts. Faults with one key may share a place.
func (f *scanFault) subjectKey() string {
	if f.ofDevice() {
		return "device " + cmp.Or(f.Details.Device, f.Mount.Device)
	}
	if w := f.Details.Workload; w != (fault.Workload{}) {
		return f.Pod.Namespace + "\x00" + w.String()
	}
	if f.Pod.Name == "" {
		return f.Pod.UID
	}
	return f.Pod.Namespace + "\x00" + verb.NameStem(f.Pod.Name)
}

func compareFaults(a, b *scanFault) int {
	return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID),
		cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Mount.Point, b.Mount.Point),
		cmp.Compare(a.Mount.Namespace, b.Mount.Namespace), cmp.Compare(a.Mount.ID, b.Mount.ID))
}

// spreadRank puts faults first that hurt other processes, too: each process that touches a hanging mount waits, also the
// kubelet.
func spreadRank(f *scanFault) int {
	if fault.Known().Entry(f.Code).Breaks == fault.BreaksCallers {
		return 0
	}
	return 1
}

func impactRank(i fault.Impact) int { return slices.Index(fault.Impacts(), i) }

// podNames are those that are hurt, each once.
func (p faultPlace) podNames() []string {
	return verb.Distinct(p.faults, func(f *scanFault) string {
		if f.Pod == (scanPod{}) || f.Impact == fault.ImpactDetach {
			return "" // the pod of a held device is the holder's
		}
		return f.Pod.shortName()
	})
}

// scanVerdict is the result in numbers and names.
type scanVerdict struct {
	// Clean is whether there are no faults, no gaps, and no place that was not judged.
	Clean  bool `json:"clean"`
	Faults int  `json:"faults"`
	Places int  `json:"places"`
	// NotJudged counts the places whose own state is not known.
	NotJudged int `json:"notJudged"`
	// Safe counts the places that kubediag can repair with nothing lost, on request or by itself.
	Safe int `json:"safe"`
	// PodsNow are hurt now, PodsTerminating are being deleted and cannot go, and PodsNextStart are hurt only when a container
	// starts again. None of them is null.
	PodsNow         []string `json:"podsNow"`
	PodsTerminating []string `json:"podsTerminating"`
	PodsNextStart   []string `json:"podsNextStart"`
	// Devices cannot be detached. Directories counts those that are left of pods.
	Devices     []string `json:"devices"`
	Directories int      `json:"directories"`
}

func sumUp(places []faultPlace) scanVerdict {
	v := scanVerdict{Places: len(places), PodsNow: []string{}, PodsTerminating: []string{}, PodsNextStart: []string{}, Devices: []string{}}
	seen := map[string]bool{}
	add := func(to *[]string, names []string) {
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				*to = append(*to, name)
			}
		}
	}
	for _, place := range places {
		v.Faults += len(place.faults)
		first := place.faults[0]
		if first.Heal == fault.HealSafe || first.Heal == fault.HealAutomatic {
			v.Safe++
		}
		switch first.Impact {
		case fault.ImpactNow:
			add(&v.PodsNow, place.podNames())
		case fault.ImpactTerminating:
			add(&v.PodsTerminating, place.podNames())
		case fault.ImpactNextStart: // these places come after all that hurts now
			add(&v.PodsNextStart, place.podNames())
		case fault.ImpactDetach:
			add(&v.Devices, verb.Distinct(place.faults, (*scanFault).deviceText))
		case fault.ImpactCleanup:
			v.Directories += len(place.podNames())
		}
	}
	return v
}

// deviceText is the device that is held, with its path where the kernel's name is known.
func (f *scanFault) deviceText() string {
	switch name := f.Details.Device; {
	case name != "" && name == f.Mount.Device: // it is on no device
		return f.Mount.FSType + " " + name
	case name != "":
		return "/dev/" + name
	}
	return f.Mount.Device
}
