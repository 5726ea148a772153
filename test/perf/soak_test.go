// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package perf

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

const (
	soakPods       = 10
	soakContainers = 4
	raceSpread     = 2 * time.Second // between an update and the end of the containers, at most, where they race
)

// soakStarts is how many starts race with an update of their own. A quarter of that many follow one.
var soakStarts = flag.Int("soak", 2000, "starts of containers in the soak")

// BenchmarkSoak updates ConfigMaps and starts the containers that have an item of them as a subPath, 2,000 times, on a
// kubelet that has kubernetes#68211, with the sentinel on Automatic and all processors busy. Every start that fails is
// counted and explained. In "updated" the volume is written before its container ends; in "racing" the kubelet writes the
// volume at any time before, while or after it starts the container.
func BenchmarkSoak(b *testing.B) {
	s := newSoak(b)
	b.Run("updated", func(b *testing.B) { s.measure(b, *soakStarts/4, s.updateFirst) })
	b.Run("racing", func(b *testing.B) { s.measure(b, *soakStarts, s.race) })
}

// soak is a busy node with pods whose containers each have a ConfigMap of their own.
type soak struct {
	*install.Env
	runtime  cri.Client
	pods     []*soakPod
	revision int
	recorder *recorder
	log      kubeletLog
}

// soakPod is one pod.
type soakPod struct {
	name, uid string
	seen      map[string]bool // containers that were there before
}

const soakManifest = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {app: soak}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [%[2]s]
  volumes: [%[3]s]
---
`

const soakContainer = `{name: %[1]s, image: ` + install.Busybox + `, imagePullPolicy: Never,
    command: ["/bin/sh", "-c", "cat /seen; exec sleep 1000000"],
    resources: {requests: {cpu: 10m}}, volumeMounts: [{name: %[1]s, mountPath: /seen, subPath: value}]}`

// burners take all that others leave of the processors.
const burners = `
apiVersion: v1
kind: Pod
metadata: {name: burners, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: one, image: ` + install.Busybox + `, imagePullPolicy: Never, command: ["/bin/sh", "-c", "while :; do :; done"]}
  - {name: two, image: ` + install.Busybox + `, imagePullPolicy: Never, command: ["/bin/sh", "-c", "while :; do :; done"]}
---
`

func newSoak(b *testing.B) *soak {
	b.Helper()
	s := &soak{Env: install.Start(b, cluster.Options{
		Kubelet: cluster.Kubernetes118, SyncFrequency: time.Second, KubeletArgs: []string{"--v=3"},
	})}
	s.runtime.Socket = func(context.Context) (string, error) { return s.RuntimeEndpoint(), nil }
	s.log.file = filepath.Join(s.Dir(), "log/kubelet.log")
	s.SetSentinel(b, "Automatic")
	manifest := ""
	for i := range soakPods {
		p := &soakPod{name: fmt.Sprint("soak-", i)}
		s.pods = append(s.pods, p)
		var containers, volumes []string
		for _, name := range names() {
			containers = append(containers, fmt.Sprintf(soakContainer, name))
			volumes = append(volumes, fmt.Sprintf("{name: %[1]s, configMap: {name: %[2]s-%[1]s}}", name, p.name))
			manifest += fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s-%s, namespace: default}\ndata: {value: \"r0\"}\n---\n", p.name, name)
		}
		manifest += fmt.Sprintf(soakManifest, p.name, strings.Join(containers, ", "), strings.Join(volumes, ", "))
	}
	s.Kubectl(b, manifest, "apply", "-f", "-")
	s.Wait(b, "all pods to run", func(ctx context.Context) bool {
		var list corev1.PodList
		must(b, s.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{"app": "soak"}))
		for _, pod := range list.Items {
			s.pod(pod.Name).uid = string(pod.UID)
			if len(pod.Status.ContainerStatuses) != soakContainers || pod.Status.Phase != corev1.PodRunning {
				return false
			}
		}
		return len(list.Items) == soakPods
	})
	s.recorder = newRecorder(b, s)
	s.Kubectl(b, burners, "apply", "-f", "-")
	s.Wait(b, "the processors to be busy", func(ctx context.Context) bool {
		var pod corev1.Pod
		must(b, s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "burners"}, &pod))
		return pod.Status.Phase == corev1.PodRunning
	})
	return s
}

func names() (names []string) {
	for i := range soakContainers {
		names = append(names, fmt.Sprint("c", i))
	}
	return names
}

func (s *soak) pod(name string) *soakPod {
	for _, p := range s.pods {
		if p.name == name {
			return p
		}
	}
	return nil
}

// volume is where the ConfigMap of a container is on the node, point where the subPath of it is bound.
func (s *soak) volume(p *soakPod, container string) string {
	return filepath.Join(s.KubeletRoot(), "pods", p.uid, "volumes/kubernetes.io~configmap", container)
}

func (s *soak) point(p *soakPod, container string) string {
	return filepath.Join(s.KubeletRoot(), "pods", p.uid, "volume-subpaths", container, container, "0")
}

// measure has every container started again and again, until there were enough starts.
func (s *soak) measure(b *testing.B, starts int, restart func(*testing.B, *soakPod)) {
	s.recorder.forget()
	from, began, started := s.log.length(b), time.Now(), 0
	for b.Loop() {
		for started = 0; started < starts; started += soakPods * soakContainers {
			s.revision++
			var all sync.WaitGroup
			for _, p := range s.pods {
				all.Go(func() {
					restart(b, p)
					s.awaitStart(b, p)
				})
			}
			all.Wait()
		}
	}
	failures := s.log.failures(b, from)
	count := map[cause]int{}
	for _, f := range failures {
		p := s.pod(f.pod)
		cause, why := s.recorder.explain(f, s.volume(p, f.container))
		count[cause]++
		b.Logf("%s: %s, container %s: %s\n\t%s", cause, f.pod, f.container, why, f.message)
	}
	b.Logf("%d starts, each with an update of its own, in %v: %d failures", started, time.Since(began).Round(time.Second), len(failures))
	for _, c := range causes {
		b.ReportMetric(float64(count[c]), "failed-"+string(c))
	}
	b.ReportMetric(float64(started), "starts")
	s.recorder.report(b)
}

// update writes the revision to the ConfigMap of each container of a pod.
func (s *soak) update(b *testing.B, p *soakPod) {
	for _, name := range names() {
		err := s.Patch(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.name + "-" + name}},
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"value":"r%d"}}`, s.revision)))
		if err != nil {
			b.Error(err)
		}
	}
}

// updateFirst ends the containers once the kubelet has written their volumes.
func (s *soak) updateFirst(b *testing.B, p *soakPod) {
	before := s.recorder.updatesOf(p)
	s.update(b, p)
	s.await(b, "the volumes of "+p.name+" to be written", func(context.Context) bool {
		return s.recorder.updatesOf(p) >= before+soakContainers
	})
	s.kill(b, p)
}

// race updates and ends the containers at about the same time.
func (s *soak) race(b *testing.B, p *soakPod) {
	apart := rand.N(2*raceSpread) - raceSpread
	if apart < 0 {
		s.update(b, p)
		<-time.After(-apart)
		s.kill(b, p)
		return
	}
	s.kill(b, p)
	<-time.After(apart)
	s.update(b, p)
}

// kill ends the containers of a pod and removes their records, so that the kubelet starts them without a back-off.
func (s *soak) kill(b *testing.B, p *soakPod) {
	records, err := s.runtime.PodRecords(b.Context(), p.uid)
	if err != nil {
		b.Error(err)
	}
	p.seen = map[string]bool{}
	for _, r := range records {
		p.seen[r.ID] = true
	}
	s.await(b, "the containers of "+p.name+" to be removed", func(ctx context.Context) bool {
		err := s.RemoveContainers(ctx, p.uid)
		if err != nil && !strings.Contains(err.Error(), "is in starting state") {
			b.Error(err)
			return true
		}
		return err == nil
	})
}

// awaitStart waits until every container of a pod runs that did not before. The record of one that has failed to start is
// removed, so that there is no back-off: what the kubelet says of it is in its log.
func (s *soak) awaitStart(b *testing.B, p *soakPod) {
	nudged := time.Now()
	s.await(b, "the containers of "+p.name+" to run", func(ctx context.Context) bool {
		records, err := s.runtime.PodRecords(ctx, p.uid)
		if err != nil {
			b.Error(err)
			return true
		}
		run := map[string]bool{}
		for _, r := range records {
			if r.NeverStarted() {
				s.recorder.failed(r)
				if err := s.runtime.Remove(ctx, r); err != nil && !errors.Is(err, cri.ErrNotRemovable) {
					b.Error(err)
				}
			}
			run[r.Name] = run[r.Name] || !r.Exited && !r.Started.IsZero() && !p.seen[r.ID]
		}
		if time.Since(nudged) > 3*time.Second { // a kubelet of 1.18 waits for 10 s and more after a failure
			nudged = time.Now()
			must(b, s.Nudge(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.name}}))
		}
		for _, name := range names() {
			if !run[name] {
				return false
			}
		}
		return true
	})
}

// await is Wait that a goroutine of the benchmark may call.
func (s *soak) await(b *testing.B, what string, done func(context.Context) bool) {
	for deadline := time.Now().Add(2 * time.Minute); !done(b.Context()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Errorf("waited too long for %s", what)
			return
		}
	}
}
