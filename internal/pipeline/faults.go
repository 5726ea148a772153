// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// Faults turns findings into faults. A later finding about the same thing takes the place of an earlier one, as when it
// is healed. Evidence that only the earlier one has stays, after its own: a repair does not look for the cause of a
// fault. A mount is broken in one way: of two such codes the first stays.
func Faults(findings []fault.Finding) []v1.Fault {
	var all []v1.Fault
	at := map[identity]int{}
	for _, finding := range findings {
		f := v1.Fault{
			Code: string(finding.Code), State: v1.FaultPresent, Container: finding.Container, Volume: finding.Volume,
			Mount: mountOf(&finding.Mount), Holder: finding.Holder, Evidence: slices.Clone(finding.Evidence),
		}
		if finding.Healed {
			f.State = v1.FaultHealed
		}
		if finding.Pod != (fault.Pod{}) {
			f.Pod = &v1.FaultPod{Namespace: finding.Pod.Namespace, Name: finding.Pod.Name, UID: types.UID(finding.Pod.UID)}
		}
		// The number of a mount that the kernel never uses again may be missing in one of two findings about it: then they are one if all
		// else agrees, as fault.Mount.Same has it.
		numberless := finding
		numberless.Mount.ID = 0
		i, known := at[identityOf(finding)]
		if !known && finding.Mount.ID != 0 && finding.Mount.Point != "" {
			i, known = at[identityOf(numberless)]
			known = known && all[i].Mount.ID == 0
		}
		if !known {
			i, all = len(all), append(all, f)
		}
		at[identityOf(finding)] = i
		if finding.Mount.Point != "" {
			at[identityOf(numberless)] = i
		}
		if !known {
			continue
		}
		older := all[i]
		if f.Mount != nil && older.Mount != nil {
			f.Mount.ID = max(f.Mount.ID, older.Mount.ID)
			older.Mount.ID = f.Mount.ID
		}
		if older.Code != f.Code {
			older.State, older.Evidence, f.Evidence = f.State, f.Evidence, older.Evidence
			f, older = older, f
		}
		for _, text := range older.Evidence {
			if !slices.Contains(f.Evidence, text) {
				f.Evidence = append(f.Evidence, text)
			}
		}
		all[i] = f
	}
	return all
}

// identity has the parts by which two findings are one: the code and the mount, or if there is none, the pod, the container and the
// volume.
type identity struct {
	code                   fault.Code // empty for those that say of the mount itself that it is broken
	mount                  fault.Mount
	pod, container, volume string
}

func identityOf(f fault.Finding) identity {
	code := f.Code
	if fault.Known().Entry(code).Breaks >= fault.BreaksMount {
		code = ""
	}
	switch {
	case f.Mount.ID != 0:
		return identity{code: code, mount: fault.Mount{ID: f.Mount.ID}}
	case f.Mount.Point != "":
		m := f.Mount
		m.FSType = ""
		return identity{code: code, mount: m}
	}
	return identity{code: f.Code, pod: f.Pod.UID, container: f.Container, volume: f.Volume}
}

func mountOf(m *fault.Mount) *v1.Mount {
	if m == nil || *m == (fault.Mount{}) {
		return nil
	}
	return &v1.Mount{
		ID: m.ID, MountInfoID: int64(m.MountInfoID), ParentID: int64(m.ParentID), Namespace: m.Namespace,
		Device: m.Device, Root: m.Root, Point: m.Point, FSType: m.FSType,
	}
}
