// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/processor"
)

func TestMain(m *testing.M) { volumetest.Main(m) }

// sceneRequest is a request about the pod of a scene.
func sceneRequest(s *volumetest.Scene) processor.Request {
	return processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: s.Pod.Namespace, Name: s.Pod.Name}}
}

// recordedQuestions keeps the questions about daemons.
type recordedQuestions []fusedaemon.Question

func (a *recordedQuestions) AnalyzeAll(_ context.Context, questions []fusedaemon.Question) []fusedaemon.Exit {
	*a = append(*a, questions...)
	return make([]fusedaemon.Exit, len(questions))
}

// TestAsksWithTheTimeOfTheDeadMount, not with that of what the driver has staged since.
func TestAsksWithTheTimeOfTheDeadMount(t *testing.T) {
	opened := time.Now()
	connections, err := fuse.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connections.Close() })
	for time.Since(opened) < 1500*time.Millisecond { // what is mounted at once may be older as far as can be told
		time.Sleep(10 * time.Millisecond)
	}
	from := time.Now()
	s := volumetest.New(t)
	to := time.Now()
	for time.Since(to) < 500*time.Millisecond { // the two mounts have to be told apart
		time.Sleep(10 * time.Millisecond)
	}
	s.Kill()
	s.Remount("new")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var a recordedQuestions
	d := &Diagnoser{Pods: s.Pods, Inspector: s.Inspector, Exits: &a, Connections: connections}
	if _, err := d.Run(ctx, sceneRequest(s)); err != nil {
		t.Fatal(err)
	}
	const tick = 20 * time.Millisecond
	if len(a) != 1 || a[0].Driver != volumetest.Driver || a[0].Mounted.Before(from.Add(-tick)) || a[0].Mounted.After(to.Add(tick)) {
		t.Errorf("asked %+v, want the driver %q and a time from %v to %v", a, volumetest.Driver, from, to)
	}
}

// TestDistinguishesStates on a real volume, of the pod and of the whole node, without changing a mount by looking.
func TestDistinguishesStates(t *testing.T) {
	for name, c := range map[string]struct {
		happen func(s *volumetest.Scene)
		code   fault.Code // empty: healthy
		want   string
		source bool
		shares bool
	}{
		"healthy":            {happen: func(*volumetest.Scene) {}, want: `volume "pvc-1"`},
		"the daemon died":    {happen: func(s *volumetest.Scene) { s.Kill() }, code: fault.DisconnectedFUSE, want: "nothing that could take its place"},
		"and came back":      {happen: func(s *volumetest.Scene) { s.Kill(); s.Remount("new") }, code: fault.DisconnectedFUSE, want: "belongs in its place", source: true},
		"it is stopped":      {happen: func(s *volumetest.Scene) { s.Stop() }, code: fault.HungMount, want: "HungMount"},
		"another pod, too":   {happen: func(s *volumetest.Scene) { s.Share(); s.Kill() }, code: fault.DisconnectedFUSE, want: "1 other pods", shares: true},
		"healthy and shared": {happen: func(s *volumetest.Scene) { s.Share() }, want: `volume "pvc-1"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := volumetest.New(t)
			app := s.Start()
			c.happen(s)
			before, inside := s.Mounts(), s.MountsOf(app.PID)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			d := &Diagnoser{Pods: s.Pods, Inspector: s.Inspector}
			for _, r := range []processor.Request{sceneRequest(s), {Node: sceneRequest(s).Node}} {
				result, err := d.Run(ctx, r)
				if err != nil {
					t.Fatal(err)
				}
				if text := result.Values[keyHealthResult] + result.NotApplicable; !strings.Contains(text, c.want) || (result.NotApplicable == "") != (c.code != "") {
					t.Errorf("%q, want %q", text, c.want)
				}
				if c.code == "" {
					continue
				}
				list := brokenVolumes(t, result)
				if result.Values[keyHealthCode] != string(c.code) || list[0].Code != c.code || (list[0].Source != nil) != c.source {
					t.Errorf("code %q, list %+v", result.Values[keyHealthCode], list)
				}
				// The container's copy is told, too, as what it is.
				if len(list[0].Copies) != 1 || list[0].Copies[0].Container != "app" || len(result.Findings) < 2 {
					t.Errorf("copies %+v, findings %+v", list[0].Copies, result.Findings)
				}
				if shares := strings.Contains(result.Values[keyHealthSharedWith], volumetest.OtherUID); shares != c.shares {
					t.Errorf("shares %q", result.Values[keyHealthSharedWith])
				}
			}
			if diff := cmp.Diff(before, s.Mounts()); diff != "" || !cmp.Equal(inside, s.MountsOf(app.PID)) {
				t.Errorf("looking has changed mounts (-before +after):\n%s", diff)
			}
		})
	}
}
