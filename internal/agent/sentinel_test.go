// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/sentinel"
)

func TestSentinelEventsAndMetrics(t *testing.T) {
	t.Parallel()
	finding := fault.Finding{
		Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: "ns", Name: "p", UID: "u"}, Container: "app", Volume: "config",
		Mount: fault.Mount{Point: "/point"}, Evidence: []string{"root is unlinked", "nlink is 0"},
	}
	dead := fault.Finding{
		Code: fault.DisconnectedFUSE, Pod: finding.Pod, Volume: "data", Mount: fault.Mount{Point: "/volume"}, Evidence: []string{"it is gone"},
	}
	for name, c := range map[string]struct {
		mode   sentinel.Mode
		do     func(*sentinelObserver)
		events []string
		counts map[string]float64
	}{
		"observed": {
			mode:   sentinel.Observe,
			do:     func(l *sentinelObserver) { l.Found(finding, time.Millisecond) },
			counts: map[string]float64{"kubediag_fault_detection_seconds code=StaleSubPath": 1},
		},
		"healed": {
			mode: sentinel.Automatic,
			do: func(l *sentinelObserver) {
				l.Found(finding, 0)
				l.Repaired(repairOf(finding, nil))
			},
			events: []string{"Pod ns/p u Normal MountRepaired: Repaired StaleSubPath in container app, volume config: unmounted one mount"},
			counts: map[string]float64{"kubediag_repairs_total action=Unmount fault=StaleSubPath outcome=Done": 1},
		},
		"not healed": {
			mode: sentinel.Automatic,
			do: func(l *sentinelObserver) {
				l.Found(finding, 0)
				l.Repaired(repairOf(finding, errors.New("mount is busy")))
			},
			events: []string{"Pod ns/p u Warning StaleSubPath: Could not repair StaleSubPath in container app, volume config: " +
				"mount is busy. See: kubectl logs -n kubediag kubediag-agent-x"},
			counts: map[string]float64{"kubediag_repairs_total action=Unmount fault=StaleSubPath outcome=Failed": 1},
		},
		"a volume, told and healed": {
			mode: sentinel.Automatic,
			do: func(l *sentinelObserver) {
				l.Found(dead, 0)
				l.Repaired(repairOf(dead, nil))
			},
			events: []string{
				"Pod ns/p u Normal MountRepaired: Repaired DisconnectedFUSE in volume data: replaced the dead mount",
			},
			counts: map[string]float64{"kubediag_repairs_total action=Replace fault=DisconnectedFUSE outcome=Done": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, n, counter := newTestObserver(t)
			l := newTestSentinelObserver(o, c.mode, "kubectl logs -n kubediag kubediag-agent-x")
			status := sentinel.Status{
				Watching: true, Binds: 7, Unwatched: 2, Connections: 4, Present: map[fault.Code]int{fault.StaleSubPath: 3, fault.HungMount: 2},
			}
			must(t, l.register(counter.registry, func() sentinel.Status { return status }))
			c.do(l)
			if diff := cmp.Diff(c.events, n.list); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			want := map[string]float64{
				"kubediag_agent_info node=n1": 1, "kubediag_diagnoses_running": 2, "kubediag_abandoned_goroutines": 3, "kubediag_sentinel_watching": 1,
				"kubediag_sentinel_binds": 7, "kubediag_sentinel_unwatched_binds": 2,
				"kubediag_sentinel_connections": 4,
			}
			for _, code := range sentinel.Codes(fault.Known()) {
				want["kubediag_faults code="+string(code)] = float64(status.Present[code])
			}
			for name, count := range c.counts {
				want[name] = count
			}
			if diff := cmp.Diff(want, counter.nonZero(t)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// newTestSentinelObserver makes an observer whose records are lost.
func newTestSentinelObserver(o *observer, mode sentinel.Mode, logs string) *sentinelObserver {
	return &sentinelObserver{
		observer: o, mode: mode, log: logr.Discard(), logs: logs,
		decision: func(sentinel.Repair) v1.Decision {
			return v1.Decision{Mode: string(mode), Reason: "allowed by policy p"}
		},
		record: func(sentinel.Repair, v1.Decision) string { return "" },
	}
}

// repairOf is a repair of a fault by the action that the sentinel does about it.
func repairOf(f fault.Finding, err error) sentinel.Repair {
	kind := fault.Unmount
	if f.Code != fault.StaleSubPath {
		kind = fault.Replace
	}
	return sentinel.Repair{Fault: f, Action: fault.Action{Kind: kind, Target: f.Mount.Point, Mount: &f.Mount, For: []fault.Key{f.Key()}}, Err: err}
}

// TestEveryRepairOfTheSentinelIsCountedFromZero: of the faults that it repairs, none begins with its first failure.
func TestEveryRepairOfTheSentinelIsCountedFromZero(t *testing.T) {
	t.Parallel()
	o, _, counter := newTestObserver(t)
	l := newTestSentinelObserver(o, sentinel.Automatic, "")
	atFirst := len(counter.readAll(t))
	repaired := []fault.Code{
		fault.DeletedVolumeSource, fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle, fault.StaleSubPath,
	}
	for _, code := range repaired {
		l.Repaired(repairOf(fault.Finding{Code: code}, errors.New("it is busy")))
		l.Repaired(repairOf(fault.Finding{Code: code}, nil))
	}
	if all := counter.readAll(t); len(all) != atFirst || len(counter.nonZero(t)) != 2*len(repaired)+3 { // and three gauges
		t.Errorf("there were %d metrics at the start, and now there are %v", atFirst, all)
	}
}

func TestPodIndexFollowsTheCache(t *testing.T) {
	t.Parallel()
	pod := func(uid types.UID, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: uid, ResourceVersion: version}}
	}
	p := &nodePods{}
	p.replacePod(nil, pod("a", "1"))
	p.replacePod(pod("a", "1"), pod("a", "2"))
	if got := p.PodByUID("a"); got == nil || got.ResourceVersion != "2" {
		t.Errorf("got %+v, want version 2", got)
	}
	p.replacePod(pod("a", "2"), pod("b", "3")) // replaced by its namesake
	if p.PodByUID("a") != nil || p.PodByUID("b") == nil {
		t.Errorf("got %v", p.byUID)
	}
	changes(p.replacePod).OnDelete(toolscache.DeletedFinalStateUnknown{Obj: pod("b", "3")})
	if len(p.byUID) != 0 {
		t.Errorf("left: %v", p.byUID)
	}
}

// TestRepairsAreLogged: a line of the log has the facts of the status, for a Diagnosis and for the sentinel.
func TestRepairsAreLogged(t *testing.T) {
	t.Parallel()
	var lines []string
	log := funcr.NewJSON(func(line string) { lines = append(lines, line) }, funcr.Options{})
	o, _, _ := newTestObserver(t)
	o.log = log
	d := &v1.Diagnosis{}
	d.Namespace, d.Name, d.Labels = "team", "web", map[string]string{v1.LabelOrigin: v1.OriginTrigger}
	d.Status.Approval = &v1.ApprovalStatus{PlanHash: "0a", Name: "yes", Approver: "ann"}
	o.ActionEnded(d, "recover", pipeline.ActionEnd{Action: v1.Action{
		Kind: string(fault.Unmount), Target: "/m", Fault: "StaleSubPath", Phase: v1.ActionDone,
		Calls: []v1.ActionCall{{Name: "umount2", Arguments: "/m MNT_DETACH", Result: "ok"}},
	}})
	l := newTestSentinelObserver(o, sentinel.Automatic, "")
	l.log, l.record = log, func(sentinel.Repair, v1.Decision) string { return "sentinel-1" }
	r := repairOf(fault.Finding{Code: fault.StaleSubPath, Mount: fault.Mount{Point: "/m"}, Evidence: []string{"nlink 0"}}, nil)
	r.Calls, r.Proof = []calls.Call{{Name: "umount2", Arguments: "/m MNT_DETACH", Result: calls.OK}}, "the mount is gone"
	l.Repaired(r)
	want := [][]string{
		{`"origin":"trigger"`, `"diagnosis":"web"`, `"operation":"recover"`, `"action":"Unmount"`, `"result":"ok"`, `"approval":"yes"`, `"approver":"ann"`},
		{
			`"origin":"sentinel"`, `"diagnosis":"sentinel-1"`, `"mode":"Automatic"`, `"reason":"allowed by policy p"`,
			`"evidence":["nlink 0"]`, `"result":"ok"`, `"proof":"the mount is gone"`,
		},
	}
	if len(lines) != len(want) {
		t.Fatalf("lines %q", lines)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("line %s does not contain %s", lines[i], part)
			}
		}
	}
}
