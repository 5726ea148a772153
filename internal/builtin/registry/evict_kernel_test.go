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
	must(t, p.store.Load(bytes.NewReader(evict)))
	p.Stop()
	const key = "param.recover.kubernetes.pod_evict.allowed"
	for _, set := range []string{"", "volume-health-op-set", "pod-evict-op-set"} {
		for _, mode := range []v1.DiagnosisMode{v1.ModePlan, v1.ModeRecover} {
			for _, parameters := range []map[string]string{nil, {key: "false"}, {"param.recover.kubernetes.pod_evict.daemon_set": "true"}} {
				p.pod.OperationSet, p.pod.Mode, p.pod.Parameters = set, mode, parameters
				d := p.ask(t, p.pod)
				last := d.Status.Operations[len(d.Status.Operations)-1]
				if len(e.evicted) > 0 || len(last.Actions) > 0 || !strings.Contains(last.Message+d.Status.Summary, key) {
					t.Errorf("set %q, mode %q, %v: evicted %q, operation %+v", set, mode, parameters, e.evicted, last)
				}
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
