// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestRecordingIsJudgedAgain writes down a volume with each answer that a mount can give, and reaches the same findings
// from it.
func TestRecordingIsJudgedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer probe.Answer
		want   fault.Code
	}{
		"alive":        {probe.Answer{State: probe.Alive, Bindable: probe.Yes, Stat: probe.Stat{Fresh: true, Dir: true, Nlink: 2}}, ""},
		"deleted":      {probe.Answer{State: probe.Alive, Bindable: probe.No, Deleted: true}, fault.DeletedVolumeSource},
		"disconnected": {probe.Answer{State: probe.Disconnected, Errno: sys.ENOTCONN, Evidence: []string{"statx: not connected"}}, fault.DisconnectedFUSE},
		"hung":         {probe.Answer{State: probe.Hung, Took: 2 * time.Second}, fault.HungMount},
		"stale":        {probe.Answer{State: probe.Stale, Errno: sys.ESTALE}, fault.StaleFileHandle},
		"no access":    {probe.Answer{State: probe.Stale, Errno: sys.EACCES}, fault.StaleFileHandle},
		"denied":       {probe.Answer{State: probe.Denied, Errno: sys.EPERM}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{}
			pod.UID = "u"
			at := mountns.Mount{Mount: mountinfo.Mount{ID: 7, Root: "/", Point: "/v", FSType: "fuse.x", Source: "x"}, Namespace: mountns.Namespace{Inode: 3}}
			e := Evidence{Answer: c.answer, Volume: Volume{
				Pod: fault.Pod{UID: "u"}, Plugin: kubelet.CSIPlugin, Name: "v", Point: "/v", Mount: at, Record: &kubelet.VolumeRecord{Driver: "d", Handle: "h"},
				Staging:    &Staging{Point: "/s", Mount: at, location: Location{Known: true, Below: "b"}},
				MountsUpon: 2, spec: podSpec{pod: pod},
			}}
			around := Surroundings{DaemonNotes: []string{"it is served"}, Daemon: &fault.Process{PID: 9}, SharedWithCount: 1}
			health := &Health{Evidence: e, Verdict: Judge(e), Surroundings: around}
			health.Replacement.Source, health.Replacement.NoSourceReason = findSource(&health.Evidence, health.Verdict)
			if health.Verdict.Code != c.want {
				t.Fatalf("judged %q, want %q", health.Verdict.Code, c.want)
			}
			text, err := json.Marshal((&Survey{Volumes: []*Health{health}, Unknown: mountstate.Unknown{Gaps: []mountstate.Gap{{What: "x", Why: "y"}}}}).Record())
			if err != nil {
				t.Fatal(err)
			}
			var r Recording
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			s := r.Judge(func(string) *corev1.Pod { return pod })
			if diff := cmp.Diff(health.Findings(), s.Volumes[0].Findings()); diff != "" || len(s.Unknown.Gaps) != 1 {
				t.Errorf("findings (-node +recording):\n%s", diff)
			}
		})
	}
}

// TestEvidenceKeepsItsFormat reads and writes evidence that has all fields: bundles of earlier releases are read, and theirs read these.
func TestEvidenceKeepsItsFormat(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/evidence.json")
	if err != nil {
		t.Fatal(err)
	}
	var e Evidence
	if err := json.Unmarshal(want, &e); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(e, "", "  ")
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
