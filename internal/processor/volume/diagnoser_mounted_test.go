// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/oomlog"
	"kubediag.org/kubediag/internal/processor"
)

// connections has the times of connections by their numbers. Zero: it does not know.
type connections map[uint32]time.Time

func (c connections) Since(minor uint32) (time.Time, bool, error) {
	at, ok := c[minor]
	if !ok {
		return time.Time{}, false, errors.New("no such connection")
	}
	return at, !at.IsZero(), nil
}

// driverRuntime has the driver's container, and the one before it, which ended at a time.
type driverRuntime struct{ ended time.Time }

const podUID = "29da79e5-386c-4e0d-82c1-215f93ff955d"

func (driverRuntime) Owner(context.Context, string) (cri.Owner, error) {
	return cri.Owner{PodUID: podUID, PodNamespace: "kube-system", PodName: "csi-x", Container: "plugin", ContainerID: "now"}, nil
}

func (r driverRuntime) PodRecords(context.Context, string) ([]cri.Container, error) {
	return []cri.Container{
		{ID: "now", PodUID: podUID, Name: "plugin", Started: r.ended.Add(time.Second)},
		{ID: "before", PodUID: podUID, Name: "plugin", Exited: true, Started: r.ended.Add(-time.Hour), Finished: r.ended, ExitCode: 137},
	}, nil
}

// TestNamesNoCauseBeforeTheMount: two volumes of one driver were mounted at different times, and its container ended,
// or the kernel killed a process of it, in between.
func TestNamesNoCauseBeforeTheMount(t *testing.T) {
	t.Parallel()
	event := time.Now().Add(-time.Hour).Truncate(time.Second)
	older, younger := event.Add(-time.Hour), event.Add(30*time.Minute)
	const ended, killed, why = "ended at", "the kernel killed process", "when the volume was mounted is not known"
	for name, c := range map[string]struct {
		change      func(v *volume.Health)
		connections Connections
		says, never []string
	}{
		"mounted before": {func(*volume.Health) {}, connections{77: older, 78: younger},
			[]string{ended, killed, "mounted at " + older.UTC().Format(time.RFC3339)}, []string{why}},
		"mounted after": {func(v *volume.Health) { v.Evidence.Mount.Minor = 78 }, connections{77: older, 78: younger},
			[]string{"why is not known", "mounted at " + younger.UTC().Format(time.RFC3339)}, []string{ended, killed, why}},
		// The mount that the driver has staged since is younger than the dead one.
		"staged again": {func(v *volume.Health) {
			v.Evidence.Staging = &volume.Staging{Mount: v.Evidence.Mount}
			v.Evidence.Staging.Mount.Minor = 78
		}, connections{77: older, 78: younger}, []string{ended, killed}, []string{why}},
		"not told":         {func(*volume.Health) {}, connections{77: {}}, []string{ended, killed, why}, []string{"was mounted at"}},
		"no connection":    {func(*volume.Health) {}, connections{}, []string{ended, killed, why}, []string{"was mounted at"}},
		"no connections":   {func(*volume.Health) {}, nil, []string{ended, killed, why}, []string{"was mounted at"}},
		"on block devices": {func(v *volume.Health) { v.Evidence.Mount.Major = 8 }, connections{77: older}, []string{ended, killed, why}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, pods := kubelettest.NewPod(), &kubelettest.Pods{}
			pods.Set(pod)
			v := brokenVolumeOf(pod, "a", fault.DisconnectedFUSE)
			c.change(v)
			node, _ := kubelettest.Driver(t, v.Evidence.Record.Driver, true)
			other := brokenVolumeOf(pod, "b", fault.DisconnectedFUSE) // the same driver's, mounted before
			d := &Diagnoser{
				Pods: pods, Inspector: &fakeSurveyor{survey: volume.Survey{Volumes: []*volume.Health{v, other}}}, Connections: c.connections,
				Exits: &fusedaemon.Analyzer{
					Kubelet: node, Runtime: driverRuntime{event},
					Kills: func(context.Context) ([]oomlog.Kill, error) {
						return []oomlog.Kill{{Time: event, PID: 4711, Name: "fuse", Cgroup: "/kubepods/pod" + podUID + "/now"}}, nil
					},
				},
			}
			result, err := d.Run(t.Context(), processor.Request{})
			if err != nil {
				t.Fatal(err)
			}
			list := brokenVolumes(t, result)
			said := strings.Join(list[0].DaemonExit, "\n")
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			for _, never := range c.never {
				if strings.Contains(said, never) {
					t.Errorf("it says %q:\n%s", never, said)
				}
			}
			if others := strings.Join(list[1].DaemonExit, "\n"); !strings.Contains(others, ended) || !strings.Contains(others, killed) {
				t.Errorf("of the other volume it says:\n%s", others)
			}
		})
	}
}

// TestMountedOfACopy: where the volume itself is healthy, the copy's connection is the one that counts.
func TestMountedOfACopy(t *testing.T) {
	t.Parallel()
	older, younger := time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	v := healthyVolume(kubelettest.NewPod(), "a")
	v.Copies = []*volume.Copy{{Mount: v.Evidence.Mount, Verdict: volume.Verdict{Code: fault.DisconnectedFUSE}}}
	v.Copies[0].Mount.Minor = 78
	if got := (&Diagnoser{Connections: connections{77: younger, 78: older}}).mountTime(v); got != older {
		t.Errorf("mounted at %v, want %v", got, older)
	}
}
