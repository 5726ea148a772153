// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// TestScope narrows by each of its fields, and the zero value by neither.
func TestScope(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		scope Scope
		want  [3]bool // pod a volume v, pod a volume w, pod b volume v
	}{
		"node":             {Scope{}, [3]bool{true, true, true}},
		"pod":              {Scope{PodUIDs: []string{"a"}}, [3]bool{true, true, false}},
		"volume":           {Scope{Volume: "v"}, [3]bool{true, false, true}},
		"volume of a pod":  {Scope{PodUIDs: []string{"a"}, Volume: "v"}, [3]bool{true, false, false}},
		"neither of these": {Scope{PodUIDs: []string{"c"}}, [3]bool{}},
	} {
		if got := [3]bool{tc.scope.Includes("a", "v"), tc.scope.Includes("a", "w"), tc.scope.Includes("b", "v")}; got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestMerge holds that counts which each look makes again are not added up, and that times and notes are.
func TestMerge(t *testing.T) {
	t.Parallel()
	renews := true
	sum := Survey{Coverage: Coverage{
		Namespace: 5, Pods: 3, Mounts: 40, Renewed: 1, Took: time.Second, Notes: []string{"a"},
		Namespaces: &mountns.Survey{Denied: 2, Partial: 1},
	}}
	first := sum.Coverage.Namespaces
	sum.Merge(Survey{
		Findings: []fault.Finding{{Code: fault.HungMount}},
		Coverage: Coverage{
			Pods: 2, Binds: 7, Mounts: 41, Asked: 9, Renewed: 2, Took: time.Second, Notes: []string{"b"}, RenewsBinds: &renews,
			Namespaces: &mountns.Survey{Denied: 1, Partial: 4},
		},
		Unknown: Unknown{Places: []Place{{Point: "/p"}, {Point: "/p"}}, Gaps: []Gap{{What: "x"}, {What: "x"}}},
	})
	want := Survey{
		Findings: []fault.Finding{{Code: fault.HungMount}},
		Coverage: Coverage{
			Namespace: 5, Pods: 3, Binds: 7, Mounts: 41, Asked: 9, Renewed: 3, Took: 2 * time.Second, Notes: []string{"a", "b"}, RenewsBinds: &renews,
			Namespaces: &mountns.Survey{Denied: 2, Partial: 4},
		},
		Unknown: Unknown{Places: []Place{{Point: "/p"}}, Gaps: []Gap{{What: "x"}}},
	}
	if diff := cmp.Diff(want, sum); diff != "" {
		t.Error(diff)
	}
	if first.Denied != 2 || first.Partial != 1 {
		t.Errorf("the first look has changed: %+v", first)
	}
}

// TestSentences has the places first, each with its pod and its mount namespace as far as they are known.
func TestSentences(t *testing.T) {
	t.Parallel()
	web := fault.Pod{Namespace: "shop", Name: "web", UID: "u"}
	var u Unknown
	u.AddGap("devices", "no right")
	u.AddSkipped("namespaces")
	u.Merge(Unknown{Gaps: []Gap{{What: "runtime", Why: "none", Do: "start it"}}})
	u.AddPlace(Place{Point: "/a", Reason: "slow"})
	u.AddPlace(Place{Pod: fault.Pod{UID: "u"}, Point: "/b", Reason: "slow"})
	u.AddPlace(Place{Pod: web, Volume: "v", Point: "/c", Namespace: "7", Reason: "slow"})
	want := []string{
		`"/a": slow`,
		`pod "u" at "/b": slow`,
		`the mount of volume "v" of pod shop/web at "/c" in mount namespace 7: slow`,
		"devices: no right",
		"namespaces: there are more of them than are looked at",
		"runtime: none: start it",
	}
	if got := u.Sentences(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
