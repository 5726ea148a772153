// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/test/fakenode"
)

// TestHungVolumesKeepNoOtherPodBroken: while five connections hang, and processes wait for them, an agent that has found
// that out goes on saying that it is well, and a Diagnosis of another pod, whose volume has died and is staged again,
// heals it.
func TestHungVolumesKeepNoOtherPodBroken(t *testing.T) {
	s := fakenode.New(t)
	s.Apply(t, operations.VolumeHealth)
	for _, name := range []string{"manager", "agent"} {
		s.Build(t, name, "")
	}
	s.Launch(t, "manager")
	shares := s.AddShares(t, fakenode.Shares{Name: "share", Volumes: hungShares + 1, Pods: hungShares + 1, Servers: hungShares + 1})
	agent := s.LaunchAgent(t, "Observe")
	agent.Await(t, "the sentinel to see the connections", func(m map[string]float64) bool {
		return m["kubediag_sentinel_watching"] == 1 && m["kubediag_sentinel_connections"] == hungShares+1
	})
	for _, v := range shares[1:] {
		v.Stop(t)
		user := exec.Command("stat", v.Points[0]+"/data")
		if err := user.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			v.Continue(t)
			_ = user.Wait()
		})
	}
	agent.Await(t, "the hung mounts to be told of", func(m map[string]float64) bool { return m[hung] >= hungShares })
	restarts := probe(t, agent, 100*time.Millisecond)
	dead := shares[0]
	dead.Kill(t)
	agent.Await(t, "the dead mounts to be told of", func(m map[string]float64) bool { return m[disconnected] == 2 && m[hung] >= hungShares })
	dead.Remount(t, "second")
	d := s.RunThat(t, &v1.Diagnosis{
		ObjectMeta: s.Diagnosis("another").ObjectMeta,
		Spec: v1.DiagnosisSpec{
			OperationSet: "volume-health-op-set", NodeName: fakenode.NodeName,
			PodReference: &v1.PodReference{Namespace: dead.Pods[0].Namespace, Name: dead.Pods[0].Name},
		},
	}, func() {})
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("the Diagnosis ended with %+v", d.Status)
	}
	for _, at := range slices.Concat(dead.Points, dead.Inside) {
		if got, err := dead.Read(at); err != nil || got != "second" {
			t.Errorf("%s reads %q, %v", at, got, err)
		}
	}
	if n := restarts(); n > 0 {
		t.Errorf("while mounts hung, the kubelet would have started the agent again %d times", n)
	}
	agent.Await(t, "the hung mounts alone to be left", func(m map[string]float64) bool { return m[disconnected] == 0 && m[hung] >= hungShares })
}
