// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

type noKubelet struct{}

func (noKubelet) Node(context.Context) (*kubelet.Node, error) { return nil, kubelet.ErrNotFound }

// TestBadRequests has every method say what is wrong before it looks at anything.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	good := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: "default", Name: "web"}}
	for name, c := range map[string]struct {
		change func(*processor.Request)
		want   string
	}{
		"no pod":        {func(r *processor.Request) { r.Pod = processor.Pod{} }, "podReference"},
		"unknown pod":   {func(r *processor.Request) { r.Pod.Name = "gone" }, "default/gone"},
		"bad parameter": {func(r *processor.Request) { r.Values = map[string]string{ParamWaitSeconds: "x"} }, ParamWaitSeconds},
		"no kubelet":    {func(*processor.Request) {}, kubelet.ErrNotFound.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, pods := good, &kubelettest.Pods{}
			pods.Set(kubelettest.NewPod())
			c.change(&r)
			if _, err := (&Recoverer{Pods: pods, Kubelet: noKubelet{}}).Plan(t.Context(), r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not speak of %q", err, c.want)
			}
		})
	}
	pods := &kubelettest.Pods{}
	pods.Set(kubelettest.NewPod())
	h := &Recoverer{Pods: pods, Kubelet: noKubelet{}}
	plan, err := h.Plan(t.Context(), processor.Request{Node: "other", Pod: good.Pod})
	if err != nil || plan.NotApplicable == "" {
		t.Errorf("on another node: %+v, %v, want not applicable", plan, err)
	}
	if _, err := h.Apply(t.Context(), good, fault.Action{Kind: "Reboot"}); err == nil || !strings.Contains(err.Error(), `"Reboot"`) {
		t.Errorf("action of an unknown kind: %v", err)
	}
	if _, err := processortest.Prove(t.Context(), h, good, repair.Part{}); !processor.IsStalled(err) {
		t.Errorf("plan without notes: %v, want a stalled error", err)
	}
	if _, err := h.Apply(t.Context(), processor.Request{Node: "other", Pod: good.Pod}, fault.Action{Kind: fault.Unmount}); !processor.IsStalled(err) {
		t.Errorf("action on another node: %v, want a stalled error", err)
	}
	if _, err := h.Apply(t.Context(), good, fault.Action{Kind: fault.Unmount}); !errors.Is(err, kubelet.ErrNotFound) {
		t.Errorf("unmount without a kubelet: %v, want ErrNotFound", err)
	}
}

// TestClaimsNoDeedOfOthers: only what was really unmounted is said to have been.
func TestClaimsNoDeedOfOthers(t *testing.T) {
	t.Parallel()
	const another = "was gone already; another mount is there now and is left alone"
	plan := repair.Part{
		Actions: []fault.Action{
			{Kind: fault.Unmount, Mount: &fault.Mount{Point: "/p/0"}}, {Kind: fault.Unmount, Mount: &fault.Mount{Point: "/p/1"}},
			{Kind: fault.RemoveContainerRecord, Record: "c1"},
		},
		Applied: []fault.Applied{fault.AlreadySo(another), {Message: "unmounted"}, fault.AlreadySo("was gone already")},
	}
	got, err := resultValues(plan)
	want := map[string]string{
		keyRecoverResult:  "did not umount /p/0 on host: " + another,
		keyRecoverResults: `["did not umount /p/0 on host: ` + another + `","Succeesfully umount /p/1 on host"]`,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("results (-want +got), %v:\n%s", err, diff)
	}
}

// TestAbsenceIsProven: a fault is gone only if each bind was judged, and by itself.
func TestAbsenceIsProven(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[subpath.Verdict]bool{
		subpath.Alive: true, subpath.SourceGone: true, subpath.WrongSource: true, subpath.Unproven: false, subpath.OfVolume: false,
	} {
		bind := subpath.Bind{Verdict: verdict, Reason: "its file system is silent"}
		bind.State.Point = "/p/0"
		why := unprovenAbsence(&subpath.Report{Binds: []subpath.Bind{{Verdict: subpath.Alive}, bind}})
		if (why == "") != want || why != "" && (!strings.Contains(why, `"/p/0"`) || !strings.Contains(why, bind.Reason)) {
			t.Errorf("%s: %q", verdict, why)
		}
	}
}
