// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package sweep

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/blockdev/krbdtest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/loopback"
	"kubediag.org/kubediag/test/program"
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

const (
	// withKRBD has a program run where the files of krbd are in /sys, in a mount namespace of its own.
	withKRBD = `mkdir -p "$0/fs" && mount --rbind /sys/fs "$0/fs" && mount --rbind "$0" /sys && exec "$@"`

	minimumIdle = "param.recover.system.idle_device.minimum_idle_seconds"
	result      = "recover.system.idle_device.result"
	firstSeen   = "seen idle for 0 seconds only"
	secondsOnly = "seconds only"
)

// TestSweepGoesOnAfterRestart: a Trigger has each node that it selects swept again and again. The agent of one of them is killed. The
// next agent counts on from what the first has seen of a device, and unmaps it when it has been idle for long enough.
func TestSweepGoesOnAfterRestart(t *testing.T) {
	w := newWorld(t)
	agent := w.launchAgent(t)
	tr := w.sweep(t)
	w.await(t, tr, func(r run) bool {
		return strings.Contains(r.message, secondsOnly) && !strings.Contains(r.message, firstSeen)
	})
	program.End(agent)
	before := map[string]bool{}
	for _, r := range w.runs(t, tr) {
		before[r.diagnosis] = true
		if r.result != "" {
			t.Fatalf("the first agent has unmapped the device: %+v", r)
		}
	}
	w.launchAgent(t)
	last := w.await(t, tr, func(r run) bool { return r.result != "" })
	if !strings.Contains(last.result, "unmapped idle device /dev/rbd0 (") {
		t.Errorf("the last run: %+v", last)
	}
	for _, r := range w.runs(t, tr) {
		if !before[r.diagnosis] && strings.Contains(r.message, firstSeen) {
			t.Errorf("a run of the second agent has seen the device for the first time: %+v", r)
		}
	}
	swept := map[string]bool{}
	for _, d := range w.made(t, tr) {
		swept[d.Spec.NodeName] = true
	}
	if len(swept) != 2 || !swept[fakenode.NodeName] || !swept[w.other] {
		t.Errorf("swept nodes %v, want %s and %s", swept, fakenode.NodeName, w.other)
	}
}

// world is a node with a krbd device and an agent, one that is selected as well and has none, and one that is not selected.
type world struct {
	*fakenode.Node
	krbd  *krbdtest.Tree
	other string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Node: fakenode.New(t), krbd: krbdtest.New(t), other: "selected-node"}
	w.Build(t, "manager", "")
	w.Build(t, "agent", "")
	w.mapDevice(t)
	w.drive(t)
	label := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"sweep": "yes"}}}`))
	for _, name := range []string{w.other, "plain-node"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must(t, w.Create(t.Context(), n))
		t.Cleanup(func() { must(t, w.Delete(context.WithoutCancel(t.Context()), n)) })
	}
	for _, name := range []string{fakenode.NodeName, w.other} {
		must(t, w.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, label))
	}
	w.Launch(t, "manager")
	return w
}

// mapDevice has a loop device be rbd0, mounted nowhere.
func (w *world) mapDevice(t *testing.T) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	node := loopback.Attach(t, image)
	t.Cleanup(func() { loopback.Detach(t, node, image) })
	number, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(node), "dev"))
	must(t, err)
	var major, minor uint32
	_, err = fmt.Sscanf(string(number), "%d:%d", &major, &minor)
	must(t, err)
	w.krbd.Map(0, major, minor)
}

// drive does what the driver does with what is written to it, until the test ends.
func (w *world) drive(t *testing.T) {
	done := make(chan bool)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if text, _ := os.ReadFile(filepath.Join(w.krbd.Root, krbdtest.Remove)); string(text) == "0" {
				if err := w.krbd.Unmap("0"); err != nil {
					t.Error(err)
				}
				return
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

func (w *world) launchAgent(t *testing.T) *exec.Cmd {
	t.Helper()
	return w.Launch(t, "agent", "unshare", "--mount", "--propagation=private", "/bin/sh", "-c", withKRBD, filepath.Join(w.krbd.Root, "sys"))
}

// sweep makes the Trigger.
func (w *world) sweep(t *testing.T) *v1.Trigger {
	t.Helper()
	tr := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "sweep"}}
	tr.Spec = v1.TriggerSpec{
		OperationSet: "idle-device-op-set", Parameters: map[string]string{minimumIdle: "30"}, DiagnosesPerMinute: new(int32(600)),
		SuccessfulHistoryLimit: new(int32(100)), FailedHistoryLimit: new(int32(100)),
		NodeSelector:   &metav1.LabelSelector{MatchLabels: map[string]string{"sweep": "yes"}},
		SourceTemplate: v1.SourceTemplate{CronTemplate: &v1.CronTemplate{Schedule: "@every 2s"}},
	}
	must(t, w.Create(t.Context(), tr))
	t.Cleanup(func() { must(t, w.Delete(context.WithoutCancel(t.Context()), tr)) })
	return tr
}

// run is one look of the agent at its devices.
type run struct {
	diagnosis, message, result string
}

// made are the Diagnoses of the Trigger.
func (w *world) made(t *testing.T, tr *v1.Trigger) []v1.Diagnosis {
	t.Helper()
	var all v1.DiagnosisList
	must(t, w.List(t.Context(), &all, client.InNamespace("default"), client.MatchingLabels{v1.LabelTrigger: tr.Name}))
	return all.Items
}

// runs are those that have ended.
func (w *world) runs(t *testing.T, tr *v1.Trigger) []run {
	t.Helper()
	var runs []run
	for _, d := range w.made(t, tr) {
		if d.Status.CompletionTime == nil || len(d.Status.Operations) == 0 {
			continue
		}
		runs = append(runs, run{d.Name, d.Status.Operations[0].Message, d.Status.OperationResults[result]})
	}
	return runs
}

// await waits for a run.
func (w *world) await(t *testing.T, tr *v1.Trigger, wanted func(run) bool) (found run) {
	t.Helper()
	apitest.Eventually(t, func() error {
		runs := w.runs(t, tr)
		for _, r := range runs {
			if wanted(r) {
				found = r
				return nil
			}
		}
		return fmt.Errorf("not among %+v, Trigger %+v", runs, w.statusOf(t, tr))
	})
	return found
}

func (w *world) statusOf(t *testing.T, tr *v1.Trigger) v1.TriggerStatus {
	t.Helper()
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(tr), tr))
	return tr.Status
}

var must = kerneltest.Must
