// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

// TestEachStateIsSaidOnce: of several findings about one state, the one at the first broken part of the chain stays.
func TestEachStateIsSaidOnce(t *testing.T) {
	t.Parallel()
	pod, other := fault.Pod{UID: "u"}, fault.Pod{UID: "w"}
	at := fault.Mount{Namespace: 1, MountInfoID: 7, Point: "/k/0"}
	stuck := func(reason fault.Reason, volume string) fault.Finding {
		return fault.Finding{Code: fault.StuckTermination, Pod: pod, Volume: volume, Details: fault.Details{Reason: reason, KeepsPod: true}}
	}
	keeps := fault.Finding{Code: fault.DisconnectedFUSE, Pod: pod, Volume: "v", Details: fault.Details{KeepsPod: true}}
	stale, deleted := fault.Finding{Code: fault.StaleSubPath, Pod: pod, Mount: at}, fault.Finding{Code: fault.DeletedVolumeSource, Pod: pod, Mount: at}
	beneath := deleted
	beneath.Mount.MountInfoID = 8
	elsewhere := deleted
	elsewhere.Mount.Namespace = 2
	for name, c := range map[string]struct{ all, want []fault.Finding }{
		"nothing":                         {},
		"one mount":                       {[]fault.Finding{stale, deleted}, []fault.Finding{stale}},
		"one mount, the other way around": {[]fault.Finding{deleted, stale}, []fault.Finding{deleted}},
		"two mounts at a place":           {[]fault.Finding{stale, beneath}, []fault.Finding{stale, beneath}},
		"two namespaces":                  {[]fault.Finding{stale, elsewhere}, []fault.Finding{stale, elsewhere}},
		"one code":                        {[]fault.Finding{stale, stale}, []fault.Finding{stale, stale}},
		"no mount": {
			[]fault.Finding{{Code: fault.StaleSubPath}, {Code: fault.DeletedVolumeSource}}, []fault.Finding{{Code: fault.StaleSubPath}, {Code: fault.DeletedVolumeSource}},
		},
		"a mount that is not broken by itself": {
			[]fault.Finding{{Code: fault.StackedMounts, Mount: at}, deleted}, []fault.Finding{{Code: fault.StackedMounts, Mount: at}, deleted},
		},
		"a broken volume keeps its pod":           {[]fault.Finding{keeps, stuck(fault.ReasonInUse, "v")}, []fault.Finding{keeps}},
		"the reason comes first":                  {[]fault.Finding{stuck(fault.ReasonInUse, "v"), keeps}, []fault.Finding{keeps}},
		"another volume keeps it, too":            {[]fault.Finding{keeps, stuck(fault.ReasonInUse, "w")}, []fault.Finding{keeps, stuck(fault.ReasonInUse, "w")}},
		"no cause beside a cause":                 {[]fault.Finding{keeps, stuck(fault.ReasonNotTakenDown, "")}, []fault.Finding{keeps}},
		"no cause beside another reason":          {[]fault.Finding{stuck(fault.ReasonInUse, "v"), stuck(fault.ReasonNotTakenDown, "")}, []fault.Finding{stuck(fault.ReasonInUse, "v")}},
		"a mount that the kubelet has not made":   {[]fault.Finding{keeps, stuck(fault.ReasonForeignMount, "v")}, []fault.Finding{keeps, stuck(fault.ReasonForeignMount, "v")}},
		"a broken volume that does not keep it":   {[]fault.Finding{deleted, stuck(fault.ReasonInUse, "")}, []fault.Finding{deleted, stuck(fault.ReasonInUse, "")}},
		"a broken volume of a pod that is not it": {[]fault.Finding{{Code: keeps.Code, Pod: other, Volume: "v", Details: keeps.Details}, stuck(fault.ReasonInUse, "v")}, []fault.Finding{{Code: keeps.Code, Pod: other, Volume: "v", Details: keeps.Details}, stuck(fault.ReasonInUse, "v")}},
	} {
		s := Survey{Findings: c.all, Unknown: Unknown{Places: []Place{{Pod: pod, Volume: "v", Point: "/k"}}}}
		s.Attribute()
		if diff := cmp.Diff(c.want, s.Findings); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if broken := len(c.all) > 0 && c.all[0].Volume == "v" && c.all[0].Code == keeps.Code && c.all[0].Pod == pod; broken && len(s.Unknown.Places) > 0 {
			t.Errorf("%s: %+v is said beside the finding", name, s.Unknown.Places)
		}
	}
}
