// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
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
	healthy := stayHealthy(t, agent)
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
	if err := healthy(); err != nil {
		t.Errorf("while mounts hung: %v", err)
	}
	agent.Await(t, "the hung mounts alone to be left", func(m map[string]float64) bool { return m[disconnected] == 0 && m[hung] >= hungShares })
}

// maxFailures is how many failures in a row have the kubelet restart a container, see failureThreshold of a probe.
const maxFailures = 3

// stayHealthy asks the agent for its health again and again. end returns an error if the kubelet would have restarted
// the agent, and otherwise waits for one more answer that it is well.
func stayHealthy(t *testing.T, a *fakenode.Agent) (end func() error) {
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for failures := 0; ; {
			asked := ctx.Err()
			err := a.Health()
			failures++
			if err == nil {
				failures = 0
			}
			if failures == maxFailures || failures == 0 && asked != nil {
				result <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return func() error {
		stop()
		return <-result
	}
}
