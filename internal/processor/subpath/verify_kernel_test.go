// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// fail has container app fail to start because its source is missing.
func (w *repairScene) fail() {
	w.renew()
	w.set(kubelettest.Failing("app", "no such file or directory"), kubelettest.Running("sidecar"))
}

func (w *repairScene) record(id, name string, change func(*cri.Container)) {
	c := cri.Container{ID: id, PodUID: string(w.pod.UID), Name: name, Exited: true, ExitCode: 128, Reason: "StartError"}
	if change != nil {
		change(&c)
	}
	w.runtime.records = append(w.runtime.records, c)
}

func ran(c *cri.Container) { c.Started = time.Unix(1, 0) }

func TestBringsTheNextStartForward(t *testing.T) {
	w := newRepairScene(t)
	w.fail()
	w.record("newest", "app", nil)
	w.record("older", "app", nil)
	w.record("has-run", "app", ran)
	w.record("oldest", "app", nil)
	w.record("another", "sidecar", nil) // which runs
	p := w.plan(t)
	want := []string{"Unmount " + w.point, "Unmount " + w.Point(w.pod, "configmap", "sidecar", 0), "RemoveContainerRecord newest", "RemoveContainerRecord older"}
	if diff := cmp.Diff(want, processortest.Targets(p)); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	w.apply(t, p)
	if diff := cmp.Diff([]string{"app newest", "app older"}, w.runtime.removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

func TestNextStartIsNotBroughtForward(t *testing.T) {
	for name, change := range map[string]func(w *repairScene){
		"by parameter":          func(w *repairScene) { w.request.Values = map[string]string{paramBringForward: "false"} },
		"no runtime":            func(w *repairScene) { w.healer.Runtime = nil },
		"runtime fails":         func(w *repairScene) { w.runtime.err = cri.ErrUnavailable },
		"the last has run":      func(w *repairScene) { w.runtime.records[0].Started = time.Unix(1, 0) },
		"the container runs":    func(w *repairScene) { w.set(kubelettest.Running("app"), kubelettest.Running("sidecar")) },
		"record of another pod": func(w *repairScene) { w.runtime.records[0].PodUID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRepairScene(t)
			w.fail()
			w.record("newest", "app", nil)
			change(w)
			p := w.plan(t)
			if got := processortest.Targets(p); len(got) != 2 {
				t.Errorf("plan %q, want two unmounts alone", got)
			}
		})
	}
}

// TestFailureToBringForwardIsNoFailure: the back-off is waited for instead.
func TestFailureToBringForwardIsNoFailure(t *testing.T) {
	w := newRepairScene(t)
	w.fail()
	w.record("newest", "app", nil)
	p := w.plan(t)
	w.runtime.err = errors.New("cannot be removed")
	messages := w.apply(t, p)
	if got := messages[len(messages)-1]; !strings.Contains(got, "left alone") || !strings.Contains(got, "cannot be removed") {
		t.Errorf("message %q does not say that and why the record was left alone", got)
	}
}

// lateStart has the containers run when the pod is looked at for the third time: once to judge the mounts, and once
// before anybody waits.
type lateStart struct {
	*repairScene
	looks int
}

func (l *lateStart) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if l.looks++; l.looks == 3 {
		l.set(kubelettest.Running("app"), kubelettest.Running("sidecar"))
	}
	return l.pods.Pod(ctx, namespace, name)
}

func TestWaitsUntilTheContainerRuns(t *testing.T) {
	w := newRepairScene(t)
	w.fail()
	p := w.plan(t)
	w.apply(t, p)
	kubelet := &lateStart{repairScene: w}
	w.healer.Pods = kubelet
	start := time.Now()
	result, err := processortest.Prove(t.Context(), w.healer, w.request, p)
	must(t, err)
	took, err := strconv.ParseFloat(result.Values[KeyRecoverRunningAfter], 64)
	if most := time.Since(start).Seconds() + 0.05; err != nil || took <= 0 || took > most || kubelet.looks != 3 {
		t.Errorf("running after %q and %d looks, want the seconds that it took, %.1f at most", result.Values[KeyRecoverRunningAfter],
			kubelet.looks, most)
	}
}

func TestVerifyFails(t *testing.T) {
	for name, c := range map[string]struct {
		wait   string
		change func(t *testing.T, w *repairScene)
		want   []string
	}{
		"container does not run": {
			"1", func(*testing.T, *repairScene) {},
			[]string{"its mounts are repaired", `container "app" is still not running`, "waiting (CrashLoopBackOff)", "StartError, exit code 128"},
		},
		"pod replaced": {
			"1", func(_ *testing.T, w *repairScene) { w.pod.UID = "another"; w.pods.Set(w.pod) },
			[]string{`"another" is there now`},
		},
		"pod gone": {
			"1", func(_ *testing.T, w *repairScene) { w.pods.Set(nil) },
			[]string{"default/web", "pod not found"},
		},
		"another mount of the pod is gone": {
			"0", func(t *testing.T, w *repairScene) {
				must(t, systest.UnmountPath(w.Point(w.pod, "configmap", "extra", 0), false))
			},
			[]string{"was not to be touched, and is gone", "configmap/extra/0"},
		},
		"stale again": {
			"0", func(_ *testing.T, w *repairScene) { w.rebind(); w.renew() },
			[]string{"another stale mount is there now"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRepairScene(t)
			w.Bind(filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, "configmap"), "key"), w.Point(w.pod, "configmap", "extra", 0))
			w.fail()
			w.request.Values = map[string]string{ParamWaitSeconds: c.wait}
			p := w.plan(t)
			w.apply(t, p)
			c.change(t, w)
			_, err := processortest.Prove(t.Context(), w.healer, w.request, p)
			for _, part := range c.want {
				if !processor.IsStalled(err) || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v, want a stalled one with %q", err, part)
				}
			}
		})
	}
}

func TestVerifySeesWhatWasNotDone(t *testing.T) {
	w := newRepairScene(t)
	w.renew()
	p := w.plan(t)
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, p); !processor.IsStalled(err) || !strings.Contains(err.Error(), "still in the mount table") {
		t.Errorf("error %v, want that the mount is still there", err)
	}
}

func TestWaitEndsWithTheOperation(t *testing.T) {
	w := newRepairScene(t)
	w.fail()
	plan := w.plan(t)
	w.apply(t, plan)
	ctx, cancel := context.WithTimeout(t.Context(), processor.ReserveTime+500*time.Millisecond)
	defer cancel()
	_, err := processortest.Prove(ctx, w.healer, w.request, plan)
	if !processor.IsStalled(err) || ctx.Err() != nil {
		t.Errorf("error %v, context %v, want an answer before the time is up", err, ctx.Err())
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := processortest.Prove(stopped, w.healer, w.request, plan); !errors.Is(err, context.Canceled) || processor.IsStalled(err) {
		t.Errorf("after cancellation: %v, want context.Canceled", err)
	}
}
