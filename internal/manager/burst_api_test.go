// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/freeport"
	"kubediag.org/kubediag/test/program"
)

// Sizes of the burst.
const (
	burstFaults = 400
	burstNodes  = 20
	// killedAfter is how many Diagnoses there are when the leader is killed, at least.
	killedAfter = 100
	// fastest is the highest pace that a Trigger can have.
	fastest = 600
)

// burstCodes are those of the faults, in turn. Each has a Trigger, so that they are answered in half the time.
var burstCodes = [...]string{"StaleSubPath", "DisconnectedFUSE"}

// The leader of two processes is killed in a burst of faults. The other one takes over, and each fault has one Diagnosis in
// the end. The test lasts as long as the pace of the Triggers and the Lease of the leader say, which is about 40 seconds.
func TestLeaderIsKilledInBurst(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.mark(t)
	manager := &process{world: w, path: program.Build(t, "cmd/manager"), kubeconfig: apitest.Kubeconfig(t, w.config)}
	leader := manager.start(t)
	first := w.leader(t, "")
	manager.start(t)
	var triggers []*v1.Trigger
	for _, code := range burstCodes {
		triggers = append(triggers, w.trigger(t, v1.TriggerSpec{
			DiagnosesPerMinute: new(int32(fastest)), SourceTemplate: w.faultTemplate(v1.MountFaultTemplate{Codes: []string{code}}),
		}))
	}
	pods := w.burst(t)
	w.stored(t, killedAfter)
	must(t, leader.Process.Kill())
	_ = leader.Wait()
	before := make([][]v1.Diagnosis, len(triggers))
	for i, tr := range triggers {
		before[i] = w.made(t, tr)
	}
	if n := len(slices.Concat(before...)); n >= burstFaults {
		t.Fatalf("%d Diagnoses when the leader was killed: it was not in the midst", n)
	}
	w.leader(t, first)
	for n := killedAfter; n <= burstFaults; n += 100 { // each step in the time of one wait
		w.stored(t, n)
	}
	made := map[string]int{}
	for i, tr := range triggers {
		// The second leader has compared the faults of the first.
		w.Until(t, tr, func() bool { return tr.Status.Repeated >= int64(len(before[i])) })
		for _, d := range w.made(t, tr) {
			made[d.Spec.PodReference.Name]++
		}
	}
	for pod := range pods {
		if made[pod] != 1 {
			t.Errorf("pod %s has %d Diagnoses", pod, made[pod])
		}
	}
	if len(made) != burstFaults {
		t.Errorf("there are Diagnoses of %d pods, and %d faults", len(made), burstFaults)
	}
	for _, d := range slices.Concat(before...) {
		now := v1.Diagnosis{}
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(&d), &now); err != nil || now.UID != d.UID {
			t.Errorf("Diagnosis %s was made again: %v", d.Name, err)
		}
	}
}

// burst makes faults of as many pods as the agents of some nodes would, a few at a time, and returns the names of the pods.
func (w *world) burst(t *testing.T) map[string]bool {
	t.Helper()
	var nodes []string
	for range burstNodes {
		nodes = append(nodes, w.node(t))
	}
	pods := map[string]bool{}
	var mu sync.Mutex
	var work sync.WaitGroup
	var errs error
	slots := make(chan bool, 8)
	for i := range burstFaults {
		slots <- true
		work.Go(func() {
			defer func() { <-slots }()
			name, err := w.faultOfNewPod(t, fmt.Sprint("burst-", i), nodes[i%burstNodes], burstCodes[i%len(burstCodes)])
			mu.Lock()
			defer mu.Unlock()
			pods[name], errs = true, errors.Join(errs, err)
		})
	}
	work.Wait()
	if errs != nil {
		t.Fatal(errs)
	}
	return pods
}

// faultOfNewPod returns its error, because a goroutine may not end the test. The world deletes its objects. An API server of 1.24 generates a
// name once, which may be taken among so many.
func (w *world) faultOfNewPod(t testing.TB, name, node, code string) (string, error) {
	p := w.newPod(node)
	p.GenerateName, p.Name = "", name
	if err := w.Client.Create(t.Context(), p); err != nil {
		return "", fmt.Errorf("creating pod: %w", err)
	}
	if err := w.Client.Create(t.Context(), newFault(p, code)); err != nil {
		return "", fmt.Errorf("creating mountfault: %w", err)
	}
	return p.Name, nil
}

// stored waits until the world has that many Diagnoses. The API server counts them.
func (w *world) stored(t *testing.T, least int) {
	t.Helper()
	apitest.Eventually(t, func() error {
		one := &metav1.PartialObjectMetadataList{}
		one.SetGroupVersionKind(v1.GroupVersion.WithKind("DiagnosisList"))
		if err := w.Client.List(t.Context(), one, client.InNamespace(w.ns), client.Limit(1)); err != nil {
			return err
		}
		n := len(one.Items)
		if one.RemainingItemCount != nil {
			n += int(*one.RemainingItemCount)
		}
		if n < least {
			return fmt.Errorf("%d Diagnoses, want %d", n, least)
		}
		return nil
	})
}

// leader waits until a manager leads that is not the one before, and returns it.
func (w *world) leader(t *testing.T, before string) (now string) {
	t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: leaderElectionID}}
	apitest.Eventually(t, func() error {
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil {
			return err
		}
		if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || *l.Spec.HolderIdentity == before {
			return fmt.Errorf("leader election = %+v", l.Spec)
		}
		now = *l.Spec.HolderIdentity
		return nil
	})
	return now
}

// process is a manager as a process of its own, with the rights of a manager.
type process struct {
	*world
	path, kubeconfig string
}

// start starts a manager, and waits until it can lead. It ends with the test.
func (p *process) start(t *testing.T) *exec.Cmd {
	t.Helper()
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	must(t, err)
	health := free[0].String()
	cmd := exec.Command(p.path, "--namespace="+p.ns, "--kubeconfig="+p.kubeconfig, "--metrics-bind-address="+flags.Off, "--health-probe-bind-address="+health,
		"--agent-check-interval=1h") // there are no agents
	program.Start(t, cmd)
	apitest.Eventually(t, func() error {
		_, err := get(health + "/readyz")
		return err
	})
	return cmd
}
