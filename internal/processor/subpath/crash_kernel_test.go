// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// roles are also that of a process that has the mount namespace in which a kubelet would be, and that of a rival in races.
var roles = kerneltest.Roles{"hold": kerneltest.HoldPrivately, "half": applyHalfRole, "rival": playRival}

// killedPlan is what survives of a recoverer that is killed.
type killedPlan struct {
	Root    string
	PID     int
	Pod     *corev1.Pod
	Request processor.Request
	Plan    repair.Part
}

func (j killedPlan) newRecoverer(ctx context.Context) (*Recoverer, error) {
	n, err := (&kubelet.Finder{PID: j.PID, Root: j.Root}).Node(ctx)
	pods := &kubelettest.Pods{}
	pods.Set(j.Pod)
	return &Recoverer{Pods: pods, Kubelet: n}, err
}

// applyHalfRole does as many actions of the plan as it is told, and then waits to be killed.
func applyHalfRole(args []string, ready func(string)) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var j killedPlan
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	done, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ctx := context.Background() //nolint:forbidigo // a role is no test
	healer, err := j.newRecoverer(ctx)
	if err != nil {
		return err
	}
	for _, a := range j.Plan.Actions[:done] {
		if _, err := healer.Apply(ctx, j.Request, a); err != nil {
			return err
		}
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// TestKilledHalfWayEndsTheSame kills a recoverer after each number of actions, and has another one go on.
func TestKilledHalfWayEndsTheSame(t *testing.T) {
	for done := range 3 {
		t.Run(strconv.Itoa(done)+" actions done", func(t *testing.T) {
			w := newRepairScene(t)
			j, healer := w.newKilledPlan(t)
			before := tableOf(t, j.PID)
			text, err := json.Marshal(j)
			must(t, err)
			file := filepath.Join(t.TempDir(), "journal")
			must(t, os.WriteFile(file, text, 0o600))
			kerneltest.Start(t, "half", file, strconv.Itoa(done)).Kill()
			const another = "was gone already; another mount is there now and is left alone"
			j.resume(t, healer, []string{another, another, "unmounted", "unmounted"}[2-done:4-done]...)
			holds(t, j.PID, before, w.repairs(j.Plan, "configmap")...)
		})
	}
}

// TestKilledInTheActEndsTheSame kills a recoverer that has put the new bind beneath the stale one, and has another one
// go on.
func TestKilledInTheActEndsTheSame(t *testing.T) {
	kerneltest.Needs(t, sys.HasMoveBeneath)
	w := newRepairScene(t)
	j, healer := w.newKilledPlan(t)
	before := tableOf(t, j.PID)
	n, err := healer.Kubelet.Node(t.Context())
	must(t, err)
	source, err := filepath.EvalSymlinks(filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, "configmap"), "key"))
	must(t, err)
	must(t, n.Do(t.Context(), func() error { return putBeneath(source, w.point) }))
	j.resume(t, healer, "unmounted", "unmounted")
	holds(t, j.PID, before, w.repairs(j.Plan, "configmap")...)
}

// putBeneath is the first half of an unmount.
func putBeneath(source, point string) error {
	from, err := sys.Lookup(source)
	if err != nil {
		return err
	}
	defer from.Close()
	at, err := sys.Lookup(point)
	if err != nil {
		return err
	}
	defer at.Close()
	tree, err := sys.CloneTree(from)
	if err != nil {
		return err
	}
	defer tree.Close()
	return sys.Attach(tree, at, true)
}

// killedPlan is of a plan for stale binds in the namespace of another process.
func (w *repairScene) newKilledPlan(t *testing.T) (killedPlan, *Recoverer) {
	t.Helper()
	j := killedPlan{Root: w.Root, PID: kerneltest.Start(t, "hold").PID, Pod: w.pod, Request: w.request}
	healer, err := j.newRecoverer(t.Context())
	must(t, err)
	w.renew()
	j.Plan, err = healer.Plan(t.Context(), j.Request)
	must(t, err)
	return j, healer
}

// resume applies the whole plan, and verifies it.
func (j killedPlan) resume(t *testing.T, healer *Recoverer, want ...string) {
	t.Helper()
	var got []string
	for _, a := range j.Plan.Actions {
		done, err := healer.Apply(t.Context(), j.Request, a)
		must(t, err)
		got = append(got, done.Message)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	result, err := processortest.Prove(t.Context(), healer, j.Request, j.Plan)
	must(t, err)
	if got, want := result.Values[keyRecoverResult], "Succeesfully umount "+j.Plan.Actions[0].Target+" on host"; got != want {
		t.Errorf("result %q, want %q", got, want)
	}
}
