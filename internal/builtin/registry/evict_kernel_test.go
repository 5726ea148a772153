// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package registry

import (
	"bytes"
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
)

// podEvictor notes the evictions that the API server would have made, and has the pod go.
type podEvictor struct {
	*brokenPod
	evicted []string
}

func (e *podEvictor) Evict(_ context.Context, namespace, name, uid string) error {
	e.evicted = append(e.evicted, namespace+"/"+name+" "+uid)
	e.Pods.Set(nil)
	return nil
}

// TestPodIsEvictedOnlyIfAsked: the volume of a pod hangs, and the agent may evict pods. Every OperationSet that evicts does that only
// if a parameter of the Diagnosis allows it. Otherwise the Diagnosis says which parameter that takes.
func TestPodIsEvictedOnlyIfAsked(t *testing.T) {
	p := newBrokenPod(t)
	p.Pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u", Controller: new(true)}}
	p.Pods.Set(p.Pod)
	e := &podEvictor{brokenPod: p}
	p.asker = newAsker(t, Deps{Pods: p.Pods, Kubelet: p.Node, Volumes: p.Inspector, Lister: lister{p}, Evictor: e})
	must(t, p.store.Load(strings.NewReader(operations.VolumeHealth)))
	evict, err := operations.Files.ReadFile("pod-evict.yaml")
	must(t, err)
	_, set, _ := bytes.Cut(evict, []byte("\n---\n")) // its Operation is in the other file, too
	must(t, p.store.Load(bytes.NewReader(set)))
	p.Stop()
	const key = "param.recover.kubernetes.pod_evict.allowed"
	asked := map[string][]v1.DiagnosisSpec{
		"": {{Mode: v1.ModePlan}, {Parameters: map[string]string{key: "false"}}}, "volume-health-op-set": {{}},
		"pod-evict-op-set": {{Parameters: map[string]string{"param.recover.kubernetes.pod_evict.daemon_set": "true"}}},
	}
	for set, specs := range asked {
		p.pod.OperationSet = set
		for _, spec := range specs {
			p.pod.Mode, p.pod.Parameters = spec.Mode, spec.Parameters
			d := p.ask(t, p.pod)
			last := d.Status.Operations[len(d.Status.Operations)-1]
			if len(e.evicted) > 0 || len(last.Actions) > 0 || !strings.Contains(last.Message+d.Status.Summary, key) {
				t.Errorf("set %q, %+v: evicted %q, operation %+v", set, spec, e.evicted, last)
			}
		}
		p.pod.Mode, p.pod.Parameters = v1.ModeRecover, map[string]string{key: "true"}
		d := p.ask(t, p.pod)
		if want := "default/web " + string(p.Pod.UID); len(e.evicted) != 1 || e.evicted[0] != want {
			t.Fatalf("set %q: evicted %q, want %q; %+v", set, e.evicted, want, d.Status)
		}
		e.evicted = nil
		p.Pods.Set(p.Pod)
	}
}
