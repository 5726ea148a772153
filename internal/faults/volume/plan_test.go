// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestPlan: each reason for which a broken volume and its copy are left alone.
func TestPlan(t *testing.T) {
	t.Parallel()
	dead, hung := errorAnswer(probe.Disconnected, sys.ENOTCONN), errorAnswer(probe.Hung, 0)
	replaceable := Decision{Replaceable: true, Reason: "the runtime made it"}
	copyOf := func(v *Health, d Decision) {
		c := &Copy{Mount: mountAt49(9, "/v", "/data"), volume: v, Answer: v.Evidence.Answer, Decision: d}
		c.judge(nil, nil)
		v.Copies = append(v.Copies, c)
	}
	for name, c := range map[string]struct {
		evidence *Evidence
		change   func(v *Health)
		options  PlanOptions
		actions  []fault.ActionKind
		refusals []string
	}{
		"healthy": {stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()), func(*Health) {}, PlanOptions{Abort: true}, nil, nil},
		"dead": {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()), func(v *Health) { copyOf(v, replaceable) }, PlanOptions{},
			[]fault.ActionKind{fault.Replace, fault.Replace}, nil},
		"dead, the copy not ours": {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()), func(v *Health) { copyOf(v, refuseReplacement("it is another's")) }, PlanOptions{},
			[]fault.ActionKind{fault.Replace}, []string{"it is another's"}},
		"no source": {stagedEvidence("/v", dead, dead, probe.Answer{}), func(v *Health) { copyOf(v, replaceable) }, PlanOptions{}, nil,
			[]string{"is not alive either", "is not alive either"}},
		"hung": {stagedEvidence("/v", hung, aliveAnswer(), aliveAnswer()), func(v *Health) { copyOf(v, replaceable) }, PlanOptions{}, nil,
			[]string{"must be requested", "but may recover"}},
		"hung, to be aborted": {stagedEvidence("/v", hung, aliveAnswer(), aliveAnswer()), func(*Health) {}, PlanOptions{Abort: true},
			[]fault.ActionKind{fault.Abort, fault.Replace}, nil},
		"hung, and no FUSE": {stagedEvidence("/v", hung, hung, probe.Answer{}), func(v *Health) { v.Evidence.Mount.FSType = "nfs4" }, PlanOptions{Abort: true}, nil,
			[]string{"only FUSE has a connection", "is not alive either"}},
		"hung hostPath": {hostPathEvidence("/m", hung, probe.Answer{}), func(*Health) {}, PlanOptions{Abort: true}, nil,
			[]string{"is not the kubelet's", "is not the kubelet's"}},
		"a mount lies on it": {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()), func(v *Health) { v.Evidence.MountsUpon = 1 }, PlanOptions{}, nil,
			[]string{"other mounts lie on it"}},
		"written to the node's disk": {stagedEvidence("/k/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).onNodeDisk(), func(v *Health) {
			v.Replacement.WrittenToNodeDisk = []string{"file"}
			copyOf(v, replaceable)
			v.Copies[0].Verdict.Code = fault.DeletedVolumeSource
		}, PlanOptions{}, nil, []string{"cp -a", "cp -a"}},
		"the source is a file": {stagedEvidence("/v", aliveAnswer(unbindable), aliveAnswer(), aliveAnswer(file)), func(*Health) {}, PlanOptions{}, nil, []string{"is no directory"}},
		"no right to ask":      {stagedEvidence("/v", errorAnswer(probe.Denied, sys.EACCES), aliveAnswer(), aliveAnswer()), func(*Health) {}, PlanOptions{Abort: true}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := healthOf(c.evidence)
			c.change(v)
			actions, refusals, err := (&Inspector{}).Plan(t.Context(), v, c.options)
			var kinds []fault.ActionKind
			for _, a := range actions {
				kinds = append(kinds, a.Kind)
				if a.Safety == "" || a.Loss == "" || a.Key().Volume != "pvc-1" || a.Lossless != (a.Kind == fault.Replace) {
					t.Errorf("action %+v", a)
				}
			}
			matches := slices.EqualFunc(refusals, c.refusals, strings.Contains)
			if err != nil || !slices.Equal(kinds, c.actions) || !matches {
				t.Errorf("%v, %q, %v; want %v, %q", kinds, refusals, err, c.actions, c.refusals)
			}
		})
	}
}

// TestPlanNamesUsers: the plan for a volume names the containers that keep its broken mount, with their processes, and each once. A mount that the runtime has not
// made may go with that of the host.
func TestPlanNamesUsers(t *testing.T) {
	t.Parallel()
	of := func(container string, pid int, replaceable bool, origin copyOrigin) func(v *Health) {
		return func(v *Health) {
			c := &Copy{Mount: mountAt49(9, "/v", "/data"), volume: v, Answer: v.Evidence.Answer, Decision: Decision{Replaceable: replaceable, Reason: "a reason"}, origin: origin}
			c.Mount.Namespace = mountns.Namespace{Inode: 7, PID: pid}
			c.Holder = Holder{Pod: fault.Pod{Namespace: "shop", Name: "web"}, Container: container}
			c.judge(nil, nil)
			v.Copies = append(v.Copies, c)
		}
	}
	recorded, bind := copyOrigin{runtimeRecord: &cri.Mount{ContainerPath: "/data"}}, copyOrigin{onHost: true}
	const begin = "; the broken mount stays until they start again in: "
	for name, c := range map[string]struct {
		copies []func(v *Health)
		want   string
	}{
		"none":                      {nil, ""},
		"a copy that is replaced":   {[]func(v *Health){of("app", 5, true, recorded)}, ""},
		"one of two containers":     {[]func(v *Health){of("app", 5, true, recorded), of("side", 6, false, recorded)}, begin + `container "side" of pod shop/web (process 6)`},
		"two mounts of a container": {[]func(v *Health){of("app", 5, false, recorded), of("app", 5, false, recorded)}, begin + `container "app" of pod shop/web (process 5)`},
		"a bind of the kubelet":     {[]func(v *Health){of("app", 5, false, bind)}, begin + `container "app" of pod shop/web`},
		"not made by the runtime":   {[]func(v *Health){of("app", 5, false, copyOrigin{})}, ""},
	} {
		v := healthOf(stagedEvidence("/v", errorAnswer(probe.Disconnected, sys.ENOTCONN), aliveAnswer(), aliveAnswer()))
		for _, add := range c.copies {
			add(v)
		}
		actions, _, err := (&Inspector{}).Plan(t.Context(), v, PlanOptions{})
		if err != nil || len(actions) == 0 {
			t.Errorf("%s: %+v, %v", name, actions, err)
			continue
		}
		if want := fault.Known().Entry(fault.DisconnectedFUSE).Loss + c.want; actions[0].Loss != want {
			t.Errorf("%s: %q, want %q", name, actions[0].Loss, want)
		}
	}
}
