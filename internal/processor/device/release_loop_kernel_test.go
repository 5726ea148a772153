// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// loopScene has the loop device of a raw block volume whose pod is gone.
type loopScene struct {
	*devicetest.Scene
	healer  *ReleaseRecoverer
	request processor.Request
}

func newLoopScene(t *testing.T) loopScene {
	t.Helper()
	kerneltest.Needs(t, sys.HasDiskSequence)
	s, _ := devicetest.NewBlockVolume(t)
	return loopScene{s, &ReleaseRecoverer{Inspector: s.Inspector}, processor.Request{Values: map[string]string{device.ParamDevice: s.Device.Node()}}}
}

// faults are those of the loop device, by the node and from evidence that was written down.
func (w loopScene) faults(t *testing.T) []fault.Finding {
	t.Helper()
	usages, evidence, err := w.Inspector.FindAbandonedWithEvidence(t.Context())
	must(t, err)
	text, err := json.Marshal(evidence)
	must(t, err)
	var again device.Evidence
	must(t, json.Unmarshal(text, &again))
	recorded, err := again.Judge(t.Context(), w.Node)
	must(t, err)
	own := func(all []*device.Usage) (found []fault.Finding) {
		for _, f := range device.Summarize(all).Findings {
			if f.Details.Device == w.Device.Name {
				found = append(found, f)
			}
		}
		return found
	}
	found := own(usages)
	if diff := cmp.Diff(len(found), len(own(recorded))); diff != "" {
		t.Errorf("faults from evidence that was written down (-node +evidence):\n%s", diff)
	}
	return found
}

// TestDetachesLeftLoop: the loop device that a kubelet has left is detached, and the disk below it is free then.
func TestDetachesLeftLoop(t *testing.T) {
	w := newLoopScene(t)
	host := w.Mounts()
	found := w.faults(t)
	if len(found) != 1 || found[0].Code != fault.HeldDevice || found[0].Volume != devicetest.Volume || found[0].Details.Repair != fault.Detach {
		t.Fatalf("findings %+v", found)
	}
	advice := fault.Known().Advise(found[0], fault.Caller{})
	if !strings.Contains(advice.Summary, "left over from a raw block volume") || !strings.Contains(advice.Plan, "detach the loop device") {
		t.Errorf("advice %+v", advice)
	}
	diagnosed, err := (&Diagnoser{Inspector: w.Inspector}).Run(t.Context(), w.request)
	if err != nil || len(diagnosed.Findings) != 1 || !strings.Contains(diagnosed.Values[keyDiagnoserResult], "left over from raw block volume") {
		t.Errorf("diagnosed %+v, %v", diagnosed, err)
	}
	plan, err := w.healer.Plan(t.Context(), w.request)
	must(t, err)
	if diff := cmp.Diff([]string{"Detach " + device.DescribeTarget(w.Device)}, processortest.Targets(plan)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s\n%s", diff, plan.NotApplicable)
	}
	if diff := cmp.Diff([]string{"detached"}, processortest.ApplyAll(t, w.healer, w.request, plan)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	result, err := w.healer.Verify(t.Context(), w.request, plan)
	if err != nil || len(result.Findings) != 1 || !result.Findings[0].Healed || !strings.Contains(result.Values[keyReleaseResult], "it is detached") {
		t.Errorf("result %+v, %v", result, err)
	}
	if _, err := w.Inspector.Finder.Sys.Backing(w.Device); !errors.Is(err, blockdev.ErrNotAttached) && !device.IsGone(err) {
		t.Errorf("behind it: %v", err)
	}
	if diff := cmp.Diff(host, w.Mounts()); diff != "" {
		t.Errorf("mounts of the host (-want +got):\n%s", diff)
	}
	if found := w.faults(t); len(found) != 0 {
		t.Errorf("afterwards: %+v", found)
	}
	if diff := cmp.Diff([]string{"was gone already"}, processortest.ApplyAll(t, w.healer, w.request, plan)); diff != "" {
		t.Errorf("messages of a second time (-want +got):\n%s", diff)
	}
}

// TestLoopsThatStay are of pods that are there, or may be, or are in use. No plan detaches one, nor does a plan of an earlier time.
func TestLoopsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(t *testing.T, w loopScene) error
		found bool
	}{
		"the pod has a directory": {func(_ *testing.T, w loopScene) error {
			defer w.ComeOrGo(time.Hour)
			return os.MkdirAll(w.Node.PodDir(devicetest.PodUID), 0o755)
		}, false},
		"a source has the pod": {func(_ *testing.T, w loopScene) error {
			w.Inspector.Specs = specs{devicetest.PodUID: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
			return nil
		}, false},
		"its sandbox is ready": {func(_ *testing.T, w loopScene) error {
			w.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Ready: true}}
			return nil
		}, false},
		"the runtime is silent": {func(_ *testing.T, w loopScene) error {
			w.Runtime.Broken = errors.New("no answer")
			return nil
		}, false},
		"a pod has come just now": {func(_ *testing.T, w loopScene) error {
			w.ComeOrGo(0)
			return nil
		}, false},
		"a process has it open": {func(t *testing.T, w loopScene) error {
			f, err := os.Open(w.Device.Node())
			if err == nil {
				t.Cleanup(func() { f.Close() })
			}
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newLoopScene(t)
			early, err := w.healer.Plan(t.Context(), w.request)
			must(t, err)
			must(t, c.set(t, w))
			found := w.faults(t)
			if (len(found) == 1) != c.found || c.found && (found[0].Details.Repair != "" || found[0].Details.Refusal.Reason != fault.InUse) {
				t.Errorf("findings %+v", found)
			}
			if plan, err := w.healer.Plan(t.Context(), w.request); err != nil || len(plan.Actions) != 0 || plan.NotApplicable == "" {
				t.Errorf("plan %q, %q, %v", processortest.Targets(plan), plan.NotApplicable, err)
			}
			if len(early.Actions) != 1 {
				t.Fatalf("the plan before: %q", processortest.Targets(early))
			}
			if _, err := w.healer.Apply(t.Context(), w.request, early.Actions[0]); err == nil {
				t.Error("it was detached by an earlier plan")
			}
			if _, err := w.Inspector.Finder.Sys.Backing(w.Device); err != nil {
				t.Errorf("behind it: %v", err)
			}
		})
	}
}
