// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

// run has the Writer run in a bubble of time, and ends it with the test.
func run(t *testing.T, test func(t *testing.T, n *testNode)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer n.start(t)()
		test(t, n)
	})
}

func (n *testNode) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	w := n.Writer
	go func() { done <- w.Start(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (n *testNode) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, n.requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestAHealthyNodeCostsOneList while the sentinel reports its status.
func TestAHealthyNodeCostsOneList(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		for range 1000 {
			n.Changed()
			time.Sleep(time.Minute)
		}
		n.expect(t, "list 0s")
	})
}

// TestComesChangesGoes: an object is written at once, and then at most once in ten seconds.
func TestComesChangesGoes(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		n.expect(t, "list 0s")
		f := stale(n.pod("web"), "app")
		time.Sleep(time.Second)
		n.set(f)
		n.expect(t, "create StaleSubPath 1s")
		worse := down(f)
		for range 3 {
			time.Sleep(time.Second)
			n.set(worse)
		}
		n.expect(t)
		time.Sleep(Interval)
		n.expect(t, "patch StaleSubPath 11s")
		n.set(f) // to and fro
		time.Sleep(time.Second)
		n.set(worse)
		time.Sleep(time.Minute)
		n.expect(t)
		n.set()
		n.expect(t, "delete StaleSubPath 1m15s")
		if left := n.objects(t); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		n.set(f) // back at once
		n.expect(t)
		time.Sleep(Interval)
		n.expect(t, "create StaleSubPath 1m25s")
		n.set()
		time.Sleep(time.Second)
		n.set(f) // gone for a second
		time.Sleep(time.Minute)
		n.set()
		time.Sleep(time.Hour)
		n.expect(t, "patch StaleSubPath 1m35s", "delete StaleSubPath 2m26s") // another beginning
	})
}

// TestNothingIsWrittenWhileNothingChanges: evidence alone is no reason, and Events are repeated every half hour.
func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		f := stale(n.pod("web"), "app")
		n.set(f)
		for i := range 2*3600 + 60 {
			time.Sleep(time.Second)
			n.set(changed(f, func(f *sentinel.Fault) { f.Evidence = []string{fmt.Sprint("look ", i)} }))
		}
		var writes []string
		for _, r := range n.requests() {
			if !strings.HasPrefix(r, "list") {
				writes = append(writes, r)
			}
		}
		if diff := cmp.Diff([]string{"create StaleSubPath 0s"}, writes); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		events := n.said()
		if len(events) != 5 || len(slices.Compact(events)) != 1 {
			t.Errorf("events in two hours: %q", events)
		}
		n.set()
		time.Sleep(time.Minute)
		want := []string{"Pod shop/web uid-web Normal FaultGone: StaleSubPath is gone after 2h1m0s: container app, volume config"}
		if diff := cmp.Diff(want, n.said()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestManyFaults: 200 have an object, the worst first, and one object counts the others.
func TestManyFaults(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		var all []*sentinel.Fault
		for i := range 300 {
			if i < 10 {
				all = append(all, dead(n.pod(fmt.Sprint("dead-", i)), ""))
			} else {
				all = append(all, stale(n.pod(fmt.Sprint("web-", i)), "app"))
			}
		}
		check := func(listed int, unlisted int32, codes ...string) {
			t.Helper()
			synctest.Wait()
			objects := n.objects(t)
			rest, ok := objects["kubediag/n1-unlisted"]
			if len(objects) != listed || rest.Status.Unlisted != unlisted || ok != (unlisted > 0) {
				t.Fatalf("%d objects, %d are unlisted, want %d and %d", len(objects), rest.Status.Unlisted, listed, unlisted)
			}
			if diff := cmp.Diff(codes, rest.Status.Evidence); diff != "" {
				t.Errorf("unlisted (-want +got):\n%s", diff)
			}
		}
		slices.Reverse(all)
		n.set(all...)
		check(201, 100, "StaleSubPath: 100")
		dead := slices.DeleteFunc(slices.Collect(maps.Values(n.objects(t))), func(f v1.MountFault) bool { return f.Status.Code != "DisconnectedFUSE" })
		if len(dead) != 10 {
			t.Errorf("%d of the 10 faults that hurt now are listed", len(dead))
		}
		if events := n.said(); len(events) != 201 || !slices.ContainsFunc(events, func(e string) bool {
			return strings.HasPrefix(e, "Node /n1 n1 Warning UnlistedFaults: 100 more faults of the node have no object of their own. See: kubectl get mf ")
		}) {
			t.Errorf("%d events: %.1000q", len(events), events)
		}
		n.requests()
		n.set(all[:250]...)
		time.Sleep(time.Minute)
		check(201, 50, "StaleSubPath: 50")
		n.set(all[:200]...)
		time.Sleep(time.Minute)
		check(200, 0)
		n.set()
		time.Sleep(time.Minute)
		check(0, 0)
	})
}

// TestRestart: the next agent finds what the last one left, decides when the sentinel has looked, and touches no other node.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start(t)
		web, old := stale(n.pod("web"), "app"), dead(n.pod("old"), "")
		n.set(web, old, orphan("u1"))
		synctest.Wait()
		first := n.objects(t)
		foreign := v1.MountFault{Status: v1.MountFaultStatus{Node: "n2", Code: "StaleSubPath"}}
		foreign.Namespace, foreign.Name, foreign.Labels = "shop", "foreign", map[string]string{v1.LabelNode: "n1"} // a forged label
		must(t, n.store.Create(t.Context(), &foreign))
		stop()

		time.Sleep(time.Hour)
		n.Writer, n.present = n.writer(), nil
		n.looking(fault.DisconnectedFUSE, fault.OrphanedPodVolumes, fault.StaleSubPath)
		n.requests()
		n.said()
		defer n.start(t)()
		n.expect(t, "list 1h0m0s")
		n.looking(fault.OrphanedPodVolumes)
		n.set(web)
		n.expect(t, "delete DisconnectedFUSE 1h0m0s")
		n.looking()
		n.set(web)
		n.expect(t, "delete OrphanedPodVolumes 1h0m0s")
		objects := n.objects(t)
		if _, there := objects["shop/foreign"]; len(objects) != 2 || !there {
			t.Errorf("left: %v", slices.Collect(maps.Keys(objects)))
		}
		for name, f := range objects {
			if was, known := first[name]; known && !f.Status.Since.Equal(&was.Status.Since) {
				t.Errorf("%s began at %v, and now at %v", name, was.Status.Since, f.Status.Since)
			}
		}
	})
}

// TestManyLargeObjects: an agent that was taken over has made more objects of this node than it ever has, with labels and annotations that it
// does not read. The list keeps a bounded number of them, without these, and deletes the rest at once.
func TestManyLargeObjects(t *testing.T) {
	n := newNode(t)
	for i := range maxAdopted + 3 {
		f := &v1.MountFault{Status: v1.MountFaultStatus{Node: "n1", Code: "StaleSubPath"}}
		f.Namespace, f.Name = "shop", fmt.Sprintf("f-%03d", i)
		f.Labels, f.Annotations = map[string]string{v1.LabelNode: "n1", "example.org/text": "x"}, map[string]string{"example.org/text": "x"}
		must(t, n.store.Create(t.Context(), f))
	}
	for _, deleted := range []int{3, 0} { // by the first list, and by the second
		must(t, n.list(t.Context()))
		if asked := n.requests(); len(asked) != 1+deleted || len(n.entries) != maxAdopted || len(n.objects(t)) != maxAdopted {
			t.Errorf("%d entries, %d objects after %q", len(n.entries), len(n.objects(t)), asked)
		}
	}
	for name, e := range n.entries {
		for _, f := range []*v1.MountFault{e.written, e.last} {
			if len(f.Labels) != 1 || len(f.Annotations) > 0 {
				t.Fatalf("%s is kept with labels %v, annotations %v", name, f.Labels, f.Annotations)
			}
		}
	}
}

// TestOff: where no faults are watched, those that are left are deleted, and no Event says that they are gone.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start(t)
		n.set(stale(n.pod("web"), "app"))
		synctest.Wait()
		stop()
		n.said()
		n.Writer = n.writer()
		n.Faults = nil
		defer n.start(t)()
		time.Sleep(time.Hour)
		if objects, events := n.objects(t), n.said(); len(objects) != 0 || len(events) != 0 {
			t.Errorf("left: %v, events: %q", objects, events)
		}
	})
}

// TestAServerThatCannotBeAsked is left alone for a while, and then has all that is present.
func TestAServerThatCannotBeAsked(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		n.expect(t, "list 0s")
		n.answer(errors.New("no route to host"))
		web := stale(n.pod("web"), "app")
		other := stale(n.pod("web-2"), "app")
		for range 10 {
			n.set(web, other)
			synctest.Wait()
			time.Sleep(time.Second)
		}
		n.expect(t, "create StaleSubPath 0s")
		n.answer(nil)
		time.Sleep(retryDelay)
		n.expect(t, "create StaleSubPath 30s", "create StaleSubPath 30s")
	})
}

// TestARefusal of one object keeps no other from being written.
func TestARefusal(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		resource := schema.GroupResource{Group: v1.Group, Resource: "mountfaults"}
		n.answer(apierrors.NewForbidden(resource, "web", errors.New("the namespace is being terminated")))
		n.set(stale(n.pod("web"), "app"))
		n.expect(t, "list 0s", "create StaleSubPath 0s")
		n.answer(nil)
		n.set(stale(n.pod("web"), "app"), stale(n.pod("web-2"), "app"))
		n.expect(t, "create StaleSubPath 0s")
		time.Sleep(refusedDelay)
		n.expect(t, "create StaleSubPath 5m0s")
	})
}

// TestObjectsThatOthersDelete come back: at the next change, or at the comparison every half hour.
func TestObjectsThatOthersDelete(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		f := stale(n.pod("web"), "app")
		n.set(f)
		time.Sleep(time.Minute)
		n.requests()
		drop := func() {
			for _, object := range n.objects(t) {
				must(t, n.store.Delete(t.Context(), &object))
			}
			n.requests()
		}
		drop()
		n.set(down(f))
		time.Sleep(Interval)
		n.expect(t, "patch StaleSubPath 1m0s", "create StaleSubPath 1m10s")
		drop()
		time.Sleep(repeatInterval)
		if asked := n.requests(); len(asked) != 2 || !strings.HasPrefix(asked[0], "list ") || !strings.HasPrefix(asked[1], "create ") {
			t.Errorf("requests: %q", asked)
		}
	})
}

// TestAnObjectInTheWay is taken over if it is of this node, and else left alone.
func TestAnObjectInTheWay(t *testing.T) {
	for node, want := range map[string]string{"n1": "n1", "n2": "n2"} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			f := stale(n.pod("web"), "app")
			for name := range n.Writer.objects.candidates([]*sentinel.Fault{f}) {
				there := &v1.MountFault{Status: v1.MountFaultStatus{Node: node, Code: "Other"}}
				there.Namespace, there.Name = name.Namespace, name.Name // without a label, so that it is not found
				must(t, n.store.Create(t.Context(), there))
			}
			defer n.start(t)()
			n.set(f)
			time.Sleep(time.Minute)
			for name, f := range n.objects(t) {
				if f.Status.Node != want || (f.Status.Code == "StaleSubPath") != (want == "n1") {
					t.Errorf("%s of node %s has code %s", name, f.Status.Node, f.Status.Code)
				}
			}
		})
	}
}

// TestDiagnosisThatWorksOnAFault is named while it has not ended.
func TestDiagnosisThatWorksOnAFault(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "d"}}
		d.Spec = v1.DiagnosisSpec{NodeName: "n1", PodReference: &v1.PodReference{Namespace: "shop", Name: "web"}}
		whole := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "whole"}, Spec: v1.DiagnosisSpec{NodeName: "n1"}}
		elsewhere := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "elsewhere"}, Spec: v1.DiagnosisSpec{NodeName: "n2"}}
		n.set(stale(n.pod("web"), "app"), orphan("u"))
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(Interval + time.Second)
			var got []string
			for _, f := range n.objects(t) {
				got = append(got, f.Status.Code+" "+f.Status.Diagnosis)
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("diagnoses (-want +got):\n%s", diff)
			}
		}
		expect("OrphanedPodVolumes ", "StaleSubPath ")
		for _, d := range []*v1.Diagnosis{d, whole, elsewhere} {
			must(t, n.store.Create(t.Context(), d))
		}
		expect("OrphanedPodVolumes ops/whole", "StaleSubPath ops/d")
		d.Status.Phase = v1.DiagnosisSucceeded
		must(t, n.store.Update(t.Context(), d))
		expect("OrphanedPodVolumes ops/whole", "StaleSubPath ops/whole")
	})
}

// TestTextsOfTheNode: every object fits the schema, with any text from the node.
func TestTextsOfTheNode(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		long := strings.Repeat("\x1b[31m\u202e\xff é", 1000)
		p := n.pod(strings.Repeat("p", 253))
		for i, entry := range fault.Known() {
			f := changed(stale(p, strings.Repeat("c", 63)), func(f *sentinel.Fault) {
				f.Code, f.Volume, f.Details.Driver, f.Details.Device, f.Mount.Point = entry.Code, fmt.Sprint(i, long), long, long, long
				f.Details.HeldBy = &fault.Process{PID: 7, Command: long}
				f.Evidence = slices.Repeat([]string{long, "password=hunter2"}, 9)
			})
			n.set(f)
			time.Sleep(Interval)
			for name, o := range n.objects(t) {
				checkBounds(t, name, o)
			}
		}
		for _, e := range n.said() {
			if text := e[strings.Index(e, ": ")+2:]; len([]rune(text)) > 200 {
				t.Errorf("an Event of %d characters: %q", len([]rune(text)), text)
			}
		}
	})
}

func checkBounds(t *testing.T, name string, o v1.MountFault) {
	t.Helper()
	s := o.Status
	for field, most := range map[string]int{
		name: 253 + 64, s.Summary: v1.MaxFaultSummary, s.Plan: v1.MaxFaultPlan, s.Device: v1.MaxFaultDevice, s.Target: v1.MaxFaultName,
		s.Volume: v1.MaxFaultName, s.Driver: v1.MaxFaultName, s.Holder: v1.MaxFaultFact, strings.Join(s.Evidence, "\n"): 8 * 513,
	} {
		if n := len([]rune(field)); n > most {
			t.Errorf("%s: %d characters, at most %d: %.80q", s.Code, n, most, field)
		}
		printed := strings.ReplaceAll(field, "\n", "")
		if !utf8.ValidString(field) || strings.ContainsFunc(printed, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.Contains(field, "hunter2") {
			t.Errorf("%s: %.99q", s.Code, field)
		}
	}
	for _, c := range s.Commands {
		if utf8.RuneCountInString(c.Line) > v1.MaxFaultCommand || utf8.RuneCountInString(c.Purpose) > v1.MaxFaultSummary || c.Line == "" {
			t.Errorf("%s: command %.99q", s.Code, c)
		}
	}
	if len(s.Evidence) > v1.MaxFaultEvidence || len(s.Commands) > v1.MaxFaultCommands || s.Summary == "" || s.Plan == "" {
		t.Errorf("%+v", s)
	}
}

// TestOlderAPI does not know the impact Terminating: the object gets Cleanup, with one refusal for all, and again once the
// CustomResourceDefinition is the agent's.
func TestOlderAPI(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		n.older = true
		one, two := dead(n.pod("one"), ""), dead(n.pod("two"), "")
		one.Details.KeepsPod, two.Details.KeepsPod = true, true
		n.set(one)
		n.expect(t, "list 0s", "create DisconnectedFUSE 0s", "create DisconnectedFUSE 0s")
		n.set(one, two)
		n.expect(t, "create DisconnectedFUSE 0s")
		for name, f := range n.objects(t) {
			if f.Status.Impact != v1.ImpactCleanup {
				t.Errorf("%s has impact %s", name, f.Status.Impact)
			}
		}
		n.mu.Lock()
		n.older = false
		n.mu.Unlock()
		time.Sleep(repeatInterval + Interval)
		n.set(one, two)
		time.Sleep(Interval)
		for name, f := range n.objects(t) {
			if f.Status.Impact != v1.ImpactTerminating {
				t.Errorf("%s has impact %s after the list", name, f.Status.Impact)
			}
		}
	})
}
