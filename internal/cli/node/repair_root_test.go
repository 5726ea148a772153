// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// TestPlanThatOverlapsAnAgents: only the types decide, so the agent's journal has other sentences.
func TestPlanThatOverlapsAnAgents(t *testing.T) {
	t.Parallel()
	mount := func(id, namespace uint64, point string) fault.Action {
		return fault.Action{Kind: fault.Replace, Mount: &fault.Mount{ID: id, Namespace: namespace, Point: point}}
	}
	device := func(name string) fault.Action {
		return fault.Action{Kind: fault.Detach, Device: &fault.Device{Name: name, Sequence: 7}}
	}
	file := func(path string) fault.Action {
		return fault.Action{Kind: fault.RemoveDirectory, File: &fault.File{Path: path, Inode: 3}}
	}
	record := func(id string) fault.Action { return fault.Action{Kind: fault.RemoveContainerRecord, Record: id} }
	evict := func(uid string) fault.Action { return fault.Action{Kind: fault.Evict, Pod: &fault.Pod{UID: uid}} }
	served := mount(5, 1, "/m")
	served.Pod = &fault.Pod{UID: "a"}
	for name, c := range map[string]struct {
		agents, planned fault.Action
		want            bool
	}{
		"one mount":                     {mount(5, 1, "/m"), mount(5, 1, "/m"), true},
		"one place, replaced since":     {mount(5, 1, "/m"), mount(6, 1, "/m"), true},
		"one place, in any namespace":   {mount(0, 0, "/m"), mount(6, 1, "/m"), true},
		"two mounts":                    {mount(5, 1, "/m"), mount(6, 1, "/n"), false},
		"two namespaces":                {mount(5, 1, "/m"), mount(6, 2, "/m"), false},
		"one device":                    {device("rbd3"), device("rbd3"), true},
		"two devices":                   {device("rbd3"), device("rbd4"), false},
		"one directory":                 {file("/pods/a"), file("/pods/a"), true},
		"two directories":               {file("/pods/a"), file("/pods/b"), false},
		"one record":                    {record("1"), record("1"), true},
		"two records":                   {record("1"), record("2"), false},
		"one pod":                       {evict("a"), evict("a"), true},
		"two pods":                      {evict("a"), evict("b"), false},
		"the eviction of a mount's pod": {evict("a"), served, true},
		"a mount and a device":          {mount(5, 1, "/m"), device("rbd3"), false},
		"the agent's is not known":      {fault.Action{Kind: fault.Unmount}, mount(5, 1, "/m"), true},
		"the plan's is not known":       {mount(5, 1, "/m"), fault.Action{Kind: fault.Unmount}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.agents.Target, c.planned.Target = "/the/same", "/the/same"
			agents, planned := []fault.Action{c.agents}, []fault.Action{c.planned}
			if got := overlapsPlan(agents, planned); got != c.want {
				t.Errorf("with equal sentences: %v, want %v", got, c.want)
			}
			processortest.RewordActions(agents)
			if got := overlapsPlan(agents, planned); got != c.want {
				t.Errorf("with other sentences: %v, want %v", got, c.want)
			}
		})
	}
}

func TestUnknownRepairOfAnAgentIsRefused(t *testing.T) {
	t.Parallel()
	never := func(pipeline.Repair) bool { return false }
	known := pipeline.Repair{UID: "known", Actions: []fault.Action{{Record: "1"}}}
	if why := agentRefusal([]pipeline.Repair{known}, never); why != "" {
		t.Errorf("refused beside another repair: %s", why)
	}
	why := agentRefusal([]pipeline.Repair{known, {UID: "strange", Unknown: true}}, never)
	for _, part := range []string{"UID strange", "Wait until", "delete it"} {
		if !strings.Contains(why, part) {
			t.Errorf("%q does not say %q", why, part)
		}
	}
	if why = agentRefusal([]pipeline.Repair{known}, func(r pipeline.Repair) bool { return r.UID == known.UID }); !strings.Contains(why, "UID known") {
		t.Errorf("refusal %q, want one that names the Diagnosis", why)
	}
}
