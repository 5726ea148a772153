// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/auto"
	"kubediag.org/kubediag/internal/repair"
)

// parts are the processors that run by themselves, and as part of the set for all faults.
type parts struct {
	pod, table, staleSubPath, volumes, held, orphans, surplus processor.Processor
	// mounts is surplus by itself. In the set, autoDiagnoser says after all looks which mounts are not judged.
	mounts                                           processor.Processor
	remount, rebind, evict, release, remove, unstack repair.Family
}

func (p parts) steps() []pipeline.Step {
	var all []pipeline.Step
	for _, one := range []processor.Processor{p.pod, p.table, p.staleSubPath, p.volumes, p.held, p.orphans, p.mounts} {
		all = append(all, pipeline.Step{Processor: one})
	}
	for _, one := range []repair.Family{p.remount, p.rebind, p.evict, p.release, p.remove, p.unstack} {
		all = append(all, pipeline.Step{Family: one})
	}
	return all
}

// families are the kinds of faults, in the order in which they are looked for. A pod is evicted as the last resort, and
// only if the Diagnosis names it and allows that.
func (p parts) families(known fault.Catalogue) []auto.Family {
	dead := known.OfFamily(fault.FamilyVolume)
	return []auto.Family{
		{
			Name: "subPath", Scope: auto.Pods, Diagnoser: p.staleSubPath,
			Remedies: []auto.Remedy{{Family: p.remount, Codes: repairedCodes(known, fault.FamilyBind)}},
		},
		{
			Name: "volume", Scope: auto.Volumes, Diagnoser: p.volumes,
			Remedies: []auto.Remedy{
				{Family: p.rebind, Codes: dead},
				{Family: p.evict, Codes: dead, NamedPodOnly: true},
			},
		},
		{
			Name: "device", Scope: auto.Devices, Diagnoser: p.held,
			Remedies: []auto.Remedy{{Family: p.release, Codes: repairedCodes(known, fault.FamilyDevice)}},
		},
		{
			Name: "orphan", Scope: auto.Node, Diagnoser: p.orphans,
			Remedies: []auto.Remedy{{Family: p.remove, Codes: repairedCodes(known, fault.FamilyOrphan)}},
		},
		{
			Name: "mount", Scope: auto.Node, Diagnoser: p.surplus,
			Remedies: []auto.Remedy{{Family: p.unstack, Codes: repairedCodes(known, fault.FamilyMount)}},
		},
	}
}

// repairedCodes are those of a family that an Operation repairs.
func repairedCodes(known fault.Catalogue, family fault.Family) []fault.Code {
	return known.Codes(func(e fault.Entry) bool { return e.Family == family && e.Operation != "" })
}
