// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package perf

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

const (
	rows     = 4 // of pods for each back-off, one for each treatment
	healTime = 10 * time.Minute
)

// treatment is the way in which a pod is healed.
type treatment int

const (
	heals       treatment = iota // a Diagnosis is made
	replaces                     // it is deleted, and its Deployment makes another at once
	replacesOwn                  // it is deleted, and its StatefulSet makes another of the same name when it is gone
)

var treatments = []treatment{heals, replaces, replacesOwn}

func (t treatment) String() string { return [...]string{"healed", "replaced", "replaced-in-set"}[t] }

func (t treatment) kind() string { return [...]string{"Deployment", "Deployment", "StatefulSet"}[t] }

// backOffs are those that the kubelet is in when something is done about it. It doubles them from 10 s.
var backOffs = []time.Duration{10 * time.Second, 40 * time.Second, 160 * time.Second}

// BenchmarkHealing measures, on a real cluster with a kubelet that has kubernetes#68211, how long it takes until a
// container runs again that fails to start for a stale subPath, by the back-off that it has reached: from the creation of
// a Diagnosis, and for an equal pod, from its deletion until the container of the pod that replaces it runs. It runs when
// the runtime has started it; the kubelet reports that up to a second later, of all.
func BenchmarkHealing(b *testing.B) {
	w := &healingCluster{Env: install.Start(b, cluster.Options{Kubelet: cluster.Kubernetes118})}
	w.SetSentinel(b, "Off")
	w.Kubectl(b, operations.SubPathRemount, "apply", "-f", "-")
	type group struct {
		treatment
		backOff time.Duration
	}
	took := map[group][]time.Duration{}
	for b.Loop() {
		w.startPods(b)
		w.breakAll(b)
		w.repairAll(b)
		for _, p := range w.failing {
			w.checkHealed(b, p)
			took[group{p.treatment, p.backOff}] = append(took[group{p.treatment, p.backOff}], p.took)
		}
	}
	for _, d := range backOffs {
		heal := median(took[group{heals, d}])
		for _, t := range treatments {
			all := took[group{t, d}]
			b.Logf("back-off %v, %v: %v", d, t, all)
			b.ReportMetric(median(all).Seconds(), fmt.Sprintf("s-%v-of-%v", t, d))
			if t != heals {
				b.ReportMetric(float64(median(all))/float64(heal), fmt.Sprintf("ratio-%v-of-%v", t, d))
			}
		}
	}
}

// failingPod is one pod with a subPath of a ConfigMap, and what it is made by.
type failingPod struct {
	treatment
	name    string
	backOff time.Duration
	delay   time.Duration // after which something is done, so that it falls at all times between two looks of the kubelet

	uid      string // of the pod
	due      time.Time
	begun    time.Time
	took     time.Duration // until the container ran
	reported time.Duration // until the kubelet had said so
}

// healingCluster is a cluster with pods that fail.
type healingCluster struct {
	*install.Env
	rounds  int
	failing []*failingPod
}

const podManifest = `
apiVersion: apps/v1
kind: %[2]s
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: 1%[3]s
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
      - name: app
        image: ` + install.Busybox + `
        imagePullPolicy: Never
        command: ["/bin/sh", "-c", "exec sleep 100000"]
        volumeMounts: [{name: conf, mountPath: /etc/app.conf, subPath: app.conf}]
      volumes: [{name: conf, configMap: {name: conf}}]
---
`

const confManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: default}
data: {app.conf: "%d\n"}
---
`

// startPods makes the pods and waits until all of them run.
func (w *healingCluster) startPods(b *testing.B) {
	b.Helper()
	w.rounds++
	w.failing = nil
	manifest := fmt.Sprintf(confManifest, 2*w.rounds)
	for _, d := range backOffs {
		for row := range rows {
			for _, t := range treatments {
				p := &failingPod{treatment: t, backOff: d, delay: time.Second * time.Duration(row) / rows}
				p.name = fmt.Sprintf("round-%d-%v-%v-%d", w.rounds, t, d, row)
				w.failing = append(w.failing, p)
				own := ""
				if t == replacesOwn {
					own = "\n  serviceName: " + p.name
				}
				manifest += fmt.Sprintf(podManifest, p.name, t.kind(), own)
			}
		}
	}
	w.Kubectl(b, manifest, "apply", "-f", "-")
	w.Wait(b, "all pods to run", func(ctx context.Context) bool {
		pods := w.pods(ctx, b)
		for _, p := range w.failing {
			if len(pods[p.name]) != 1 || !runs(pods[p.name][0]) {
				return false
			}
			p.uid = string(pods[p.name][0].UID)
		}
		return true
	})
}

// breakAll updates the ConfigMap, waits until every bind has lost its source, and ends all containers. The record of each
// goes with it, so that the kubelet tries to start it at once, and begins with its back-off.
func (w *healingCluster) breakAll(b *testing.B) {
	b.Helper()
	w.Kubectl(b, fmt.Sprintf(confManifest, 2*w.rounds+1), "apply", "-f", "-")
	w.Wait(b, "every bind to lose its source", func(context.Context) bool {
		table, err := mountns.Table(w.KubeletPID())
		must(b, err)
		for _, p := range w.failing {
			if !slices.ContainsFunc(table.Mounts(), func(m mountinfo.Mount) bool { return m.Deleted() && strings.Contains(m.Point, p.uid) }) {
				return false
			}
		}
		return true
	})
	errs := make([]error, len(w.failing))
	var all sync.WaitGroup
	for i, p := range w.failing {
		all.Go(func() { errs[i] = w.RemoveContainers(b.Context(), p.uid) })
	}
	all.Wait()
	must(b, errors.Join(errs...))
}

// repairAll has each pod healed or replaced when it has reached its back-off, and waits until all run again.
func (w *healingCluster) repairAll(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), healTime)
	defer cancel()
	left := slices.Clone(w.failing)
	for tick := time.NewTicker(100 * time.Millisecond); len(left) > 0; <-tick.C {
		pods := w.pods(ctx, b)
		left = slices.DeleteFunc(left, func(p *failingPod) bool { return w.visit(ctx, b, p, pods[p.name]) })
	}
}

// visit does the due work for a failing pod, with the pods of its owner, and reports whether it runs again.
func (w *healingCluster) visit(ctx context.Context, b *testing.B, p *failingPod, pods []corev1.Pod) (runsAgain bool) {
	b.Helper()
	for _, pod := range pods {
		same, waits := string(pod.UID) == p.uid, backOffOf(pod)
		switch {
		case !same && (p.treatment == heals || p.begun.IsZero()):
			b.Fatalf("pod %s was not to be replaced", p.name)
		case p.due.IsZero() && waits >= p.backOff: // the kubelet does not report every one
			p.due = time.Now().Add(p.delay)
		case !p.due.IsZero() && p.begun.IsZero() && !time.Now().Before(p.due):
			p.begun = time.Now()
			must(b, w.act(ctx, p, &pod))
		case !p.begun.IsZero() && same == (p.treatment == heals) && runs(pod):
			p.reported = time.Since(p.begun)
			at, err := w.Started(ctx, string(pod.UID), pod.Spec.Containers[0].Name)
			must(b, err)
			p.took = at.Sub(p.begun)
			return true
		}
	}
	return false
}

func (w *healingCluster) act(ctx context.Context, p *failingPod, pod *corev1.Pod) error {
	if p.treatment != heals {
		return w.Delete(ctx, pod)
	}
	return w.Create(ctx, &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: p.name},
		Spec: v1.DiagnosisSpec{
			OperationSet: "subpath-remount-op-set", NodeName: w.NodeName(),
			PodReference: &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name},
		},
	})
}

// checkHealed makes sure that a healed pod is the one that it was, that its Diagnosis says healed, and waits until a pod that
// was deleted is gone.
func (w *healingCluster) checkHealed(b *testing.B, p *failingPod) {
	b.Helper()
	if p.treatment == heals {
		d := w.AwaitDiagnosis(b, p.name, (*v1.Diagnosis).Ended)
		if d.Status.Outcome != v1.OutcomeHealed {
			b.Fatalf("the Diagnosis of %s ended with %+v", p.name, d.Status)
		}
		last := d.Status.Operations[len(d.Status.Operations)-1]
		b.Logf("%s: it was begun to heal it after %.2f s", p.name, last.StartTime.Sub(p.begun).Seconds())
	}
	var pods []corev1.Pod
	w.Wait(b, "one pod to be left", func(ctx context.Context) bool { // the next may run before the deleted one is gone
		pods = w.pods(ctx, b)[p.name]
		return len(pods) == 1
	})
	if (string(pods[0].UID) == p.uid) != (p.treatment == heals) || pods[0].DeletionTimestamp != nil {
		b.Fatalf("%s, which was %q, has the pods %+v", p.name, p.uid, pods)
	}
	b.Logf("%s: %.2f s, reported after %.2f s", p.name, p.took.Seconds(), p.reported.Seconds())
	w.Kubectl(b, "", "delete", p.kind(), "-n", "default", p.name)
}

// pods lists the pods by the name of the failing pod.
func (w *healingCluster) pods(ctx context.Context, b *testing.B) map[string][]corev1.Pod {
	b.Helper()
	var list corev1.PodList
	must(b, w.List(ctx, &list, client.InNamespace("default")))
	found := map[string][]corev1.Pod{}
	for _, pod := range list.Items {
		found[pod.Labels["app"]] = append(found[pod.Labels["app"]], pod)
	}
	return found
}

func runs(pod corev1.Pod) bool {
	s := pod.Status.ContainerStatuses
	return pod.DeletionTimestamp == nil && len(s) == 1 && s[0].State.Running != nil
}

var backOffText = regexp.MustCompile(`^back-off (\S+) restarting failed container`)

// backOffOf is the back-off that a pod's container is in, as the kubelet says.
func backOffOf(pod corev1.Pod) time.Duration {
	if s := pod.Status.ContainerStatuses; len(s) == 1 && s[0].State.Waiting != nil {
		if text := backOffText.FindStringSubmatch(s[0].State.Waiting.Message); text != nil {
			d, _ := time.ParseDuration(text[1])
			return d
		}
	}
	return 0
}
