// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/schematest"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// faultOf is a fault of a pod of a Deployment.
func faultOf(code string, impact v1.FaultImpact, heal v1.FaultHeal, pod string) *v1.MountFault {
	found := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: code, Impact: impact, Heal: heal, Node: "worker-7", Target: pod, Volume: "conf", Summary: "the file was replaced",
		Since: metav1.NewTime(noon.Add(-time.Minute)), Pod: &v1.FaultPod{Namespace: "shop", Name: pod},
	}}
	found.Namespace, found.Name = "shop", pod+"-1a2b"
	if at := strings.LastIndexByte(pod, '-'); at > 0 {
		found.Status.Workload = &v1.Workload{Kind: "Deployment", Name: pod[:at]}
	}
	return found
}

func some() []*v1.MountFault {
	left := faultOf("OrphanedPodVolumes", v1.ImpactCleanup, v1.HealSafe, "x")
	left.Namespace, left.Status.Pod, left.Status.Workload, left.Status.Target = "kubediag", nil, nil, "/var/lib/kubelet/pods/0ffd0c49-626d-4a4b-9e2d-c4b2455e3586"
	left.Status.Volume = ""
	hung := faultOf("HungMount", v1.ImpactNow, v1.HealPerson, "trainer-1")
	hung.Status.Diagnosis = "shop/trainer-x"
	list := []*v1.MountFault{
		left, faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-a"), faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-b"), hung,
	}
	return (&faultsOptions{}).chosenFaults(objectsOf(list))
}

func objectsOf(list []*v1.MountFault) []runtime.Object {
	items := make([]runtime.Object, len(list))
	for i, f := range list {
		items[i] = f
	}
	return items
}

func TestFaultsTable(t *testing.T) {
	t.Parallel()
	view := faultsView{screen: terminal.Screen{Width: 120}, api: &client{flags: []string{"--context=prod"}}, now: noon,
		states: map[string]diagnosisState{"shop/trainer-x": diagnosisRuns}}
	verbtest.Golden(t, "faults.some.120", view.listText(some(), ""))
}

// TestFaultsToApprove: while the plan of the only fault waits for its approval, the next command approves it.
func TestFaultsToApprove(t *testing.T) {
	t.Parallel()
	f := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-a")
	f.Status.Diagnosis, f.Status.Recovery = "kubediag/web-a-7", &v1.FaultRecovery{Mode: v1.RecoveryApprove}
	const approve, run = "  kubectl kubediag approve web-a-7 -n kubediag ", "  kubectl kubediag run pod/web-a "
	for state, want := range map[diagnosisState]struct{ next, not, text string }{
		diagnosisWaits:   {approve, run, "; Diagnosis kubediag/web-a-7 waits for approval of its plan\n"},
		diagnosisRuns:    {run, approve, "; Diagnosis kubediag/web-a-7 works on it\n"},
		diagnosisPending: {run, approve, "; Diagnosis kubediag/web-a-7 has not begun\n"},
		diagnosisLost:    {run, approve, "; Diagnosis kubediag/web-a-7 waits for its agent, which does not answer\n"},
		diagnosisUnread:  {run, approve, "; Diagnosis kubediag/web-a-7 is about it\n"},
	} {
		got := faultsView{api: &client{}, now: noon, states: map[string]diagnosisState{f.Status.Diagnosis: state}}.listText([]*v1.MountFault{f}, "")
		if !strings.Contains(got, want.next) || strings.Contains(got, want.not) || !strings.Contains(got, want.text) {
			t.Errorf("state %d:\n%s", state, got)
		}
	}
}

func TestFaultsFitTheScreen(t *testing.T) {
	t.Parallel()
	for _, width := range []int{40, 80, 100, 120} {
		view := faultsView{screen: terminal.Screen{Width: width}, api: &client{}, now: noon}
		for _, line := range strings.Split(view.tableText(groupRows(some(), false)), "\n") {
			if terminal.Columns(line) > width {
				t.Errorf("%d columns: %q", width, line)
			}
		}
	}
}

// TestNoFaults: a list without faults has its tick only if every node is watched.
func TestNoFaults(t *testing.T) {
	t.Parallel()
	none := faultsView{api: &client{}, now: noon, home: "elsewhere"}
	if got, want := none.listText(nil, "shop"), "✓ No fault is known in namespace shop. All namespaces: kubectl kubediag faults -A\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	none.problems = []string{"1 of 1 nodes is not watched: node-1 (agent silent for 3m)"}
	want := "! 1 of 1 nodes is not watched: node-1 (agent silent for 3m)\n! No fault is known in all namespaces, but that counts only for what was looked at.\n" +
		"\nNext:\n  kubectl kubediag doctor --kubediag-namespace=elsewhere  # checks the agents and the manager\n"
	if got := none.listText(nil, ""); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	some := none.listText([]*v1.MountFault{faultOf("StaleSubPath", v1.ImpactNow, v1.HealSafe, "web-a")}, "")
	if !strings.HasPrefix(some, "✗ 1 fault in all namespaces. Hurt now: 1 pod.\n! 1 of 1 nodes is not watched: node-1 (agent silent for 3m)\n") {
		t.Errorf("%q", some)
	}
}

// TestManyFaults: thousands of faults with one cause take few rows, and names that a terminal would act on are escaped.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	var list []*v1.MountFault
	for i := range 5000 {
		list = append(list, faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, fmt.Sprintf("app%d-%d", i%50, i)))
	}
	odd := faultOf("HungMount", v1.ImpactNow, v1.HealPerson, "\x1b[31mred\u202e")
	odd.Status.Summary = "a\x07bell\nand a line"
	view := faultsView{screen: terminal.Screen{Width: 100}, api: &client{}, now: noon}
	text := view.listText(append([]*v1.MountFault{odd}, list...), "")
	if n := strings.Count(text, "\n"); n > 40 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	if strings.ContainsAny(text, "\x1b\x07\u202e") || !strings.Contains(text, "shop: 5000 pods") || !strings.Contains(text, "5001 faults") {
		t.Errorf("%q", text)
	}
}

func TestChangeLines(t *testing.T) {
	t.Parallel()
	f := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-a")
	for kind, want := range map[watch.EventType]string{
		watch.Added:    "12:00:00 ✗ StaleSubPath shop/web-a: next start, heal: safe: the file was replaced\n",
		watch.Modified: "12:00:00 ! StaleSubPath shop/web-a: next start, heal: safe: the file was replaced\n",
		watch.Deleted:  "12:00:00 ✓ StaleSubPath shop/web-a: gone after 60s\n",
	} {
		if got := changeLine(terminal.Screen{}, kind, f, noon); got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}

// TestPausedFaults: a repair that a policy holds is not offered as safe.
func TestPausedFaults(t *testing.T) {
	t.Parallel()
	for heal, want := range map[v1.FaultHeal]string{v1.HealSafe: "paused", v1.HealAutomatic: "paused", v1.HealDriver: "driver", v1.HealPerson: "person"} {
		f := faultOf("StaleSubPath", v1.ImpactNow, heal, "web-a")
		f.Status.Recovery = &v1.FaultRecovery{Mode: v1.RecoveryObserve, PausedBy: "pause"}
		got := faultsView{api: &client{}, now: noon}.listText([]*v1.MountFault{f}, "")
		if !strings.Contains(got, "\nStaleSubPath  now    "+want) || strings.Contains(got, "  kubectl edit recoverypolicy pause ") != (want == "paused") {
			t.Errorf("%s:\n%s", heal, got)
		}
	}
	paused, other := faultOf("StaleSubPath", v1.ImpactNow, v1.HealSafe, "web-a"), faultOf("StaleSubPath", v1.ImpactNow, v1.HealSafe, "web-b")
	paused.Status.Recovery = &v1.FaultRecovery{PausedBy: "pause"}
	if got := (faultsView{api: &client{}, now: noon}).listText([]*v1.MountFault{paused, other}, ""); !strings.Contains(got, "run pod/web-b -n shop ") {
		t.Errorf("no other fault is offered:\n%s", got)
	}
}

func TestFaultsSchema(t *testing.T) {
	t.Parallel()
	kind := v1.GroupVersion.WithKind("MountFaultList")
	list := &v1.MountFaultList{Items: []v1.MountFault{
		*faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-a"), *faultOf("HeldDevice", v1.ImpactDetach, v1.HealPerson, "web-b"),
	}}
	list.SetGroupVersionKind(kind)
	for i := range list.Items {
		list.Items[i].Status.LastSeen = metav1.NewTime(noon)
	}
	none := &v1.MountFaultList{Items: []v1.MountFault{}}
	none.SetGroupVersionKind(kind)
	schema := schematest.TypeSchema(reflect.TypeFor[v1.MountFaultList](), map[reflect.Type][]string{
		reflect.TypeFor[v1.FaultImpact](): {string(v1.ImpactNow), string(v1.ImpactTerminating), string(v1.ImpactNextStart), string(v1.ImpactDetach), string(v1.ImpactCleanup)},
		reflect.TypeFor[v1.FaultHeal]():   {string(v1.HealAutomatic), string(v1.HealSafe), string(v1.HealDriver), string(v1.HealPerson)},
	})
	schema["title"] = "kubectl kubediag faults -o json, " + v1.GroupVersion.String()
	schematest.Check(t, "kubectl kubediag faults", schema, "items", map[string]any{"two": list, "none": none})
}
