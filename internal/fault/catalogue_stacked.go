// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import "fmt"

// StackedMounts: the same thing is mounted many times at one place, or a node has nearly as many mounts as it may have.
const StackedMounts Code = "StackedMounts"

var stackedMounts = Entry{
	Code:     StackedMounts,
	Title:    "The same thing is mounted many times at one place, or the node has nearly as many mounts as it may have",
	Severity: Warning,
	Repair: "unmount the topmost mount, one at a time, as long as it equals the one beneath it and nothing uses it; one stays; the " +
		"program that mounts so often has to be repaired",
	Chinese: Translation{
		Title:  "同一个东西在同一个位置挂载了很多次，或者节点的挂载数量接近上限",
		Repair: "逐个卸载最上层的挂载，前提是它与下面一层相同而且没有被使用；保留一层；反复挂载的程序需要修复",
	},

	Family: FamilyMount, Scope: ScopePlace, Breaks: BreaksNothing,
	Searches:  []Search{SearchStacks},
	Operation: "node-mount-recover",
	Actions:   []ActionKind{Unmount},
	Alerts:    []string{"MountsLeftBehind"},

	Symptom: Symptom{
		Impact: func(f Finding) Impact {
			if f.Details.Place == PlaceMountLimit {
				return ImpactNextStart
			}
			return ImpactCleanup
		},
		Fact: func(f Finding) string {
			if f.Details.Place == PlaceMountLimit {
				return fmt.Sprintf("the node has %d mounts, and may have few more", f.Details.Layers)
			}
			return fmt.Sprintf("%d mounts lie on each other there", f.Details.Layers)
		},
		BySpec: byKernel,
	},
	Ways: map[ActionKind]Way{
		Unmount: {always("the topmost equal the one beneath each"), always("unmount the topmost one by one, each while it equals the one beneath it and nothing uses it; one stays")},
	},
	At: map[Place]Remedy{
		PlaceMounts:     {Commands: remedyLines{(*Case).recoverPlace, (*Case).showPlaces}},
		PlaceMountLimit: {Commands: remedyLines{(*Case).showPlaces}},
		PlaceUnknown:    {},
	},
	NoPlan: "nothing: the mounts at the place are not all the same, or are in use",
	Next:   "find the program that mounts there again and again, such as a driver or a service that binds a directory at each start, and repair that first",
	Prevention: Prevention{
		None: "no change of the pod can: the program that mounts there has to look first whether its mount is there already",
	},

	Without: []string{"Symptom.Culprit", "Loss", "Prevention.Change"},
}

// recoverPlace has kubediag repair the mounts at a place.
func (c *Case) recoverPlace() []Command {
	f := c.Finding
	if f.Details.Repair == "" {
		return nil
	}
	return []Command{{asksFirst, "kubediag recover --only " + string(f.Code) + c.Caller.Flags + c.Caller.Pods, EffectRepair}}
}

// showPlaces shows where the mounts are.
func (c *Case) showPlaces() []Command {
	return []Command{{"shows the places, with the number of mounts at each", "kubediag scan --verbose --only " + string(c.Finding.Code) + c.Caller.Flags + c.Caller.Pods, EffectNone}}
}
