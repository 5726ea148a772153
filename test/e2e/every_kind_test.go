// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/install"
)

// everyVolume are the objects that pods of every kind have volumes of.
const everyVolume = `
apiVersion: v1
kind: ConfigMap
metadata: {name: every, namespace: default}
data: {key: value, other: value}
---
apiVersion: v1
kind: Secret
metadata: {name: every, namespace: default}
stringData: {key: value}
---
`

// podOfEveryKind has volumes of every kind, whole ones and subPaths, and mounts below mounts. The arguments are its name, the policy for
// restarts, the program of its container, lines of its spec, a directory of the node, and the name of a Secret.
const podOfEveryKind = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {every: kind}}
spec:
  restartPolicy: %[2]s
  initContainers:
  - name: init
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [/bin/sh, -c, "mkdir -p /empty/sub && touch /empty/file"]
    volumeMounts: [{name: empty, mountPath: /empty}]
  containers:
  - name: app
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [/bin/sh, -c, %[3]q]
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: config, mountPath: /etc/key, subPath: key}
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: secret, mountPath: /config-of-pod/key, subPath: key}
    - {name: projected, mountPath: /projected}
    - {name: downward, mountPath: /downward}
    - {name: empty, mountPath: /empty}
    - {name: empty, mountPath: /sub, subPath: sub}
    - {name: empty, mountPath: /file, subPath: file}
    - {name: empty, mountPath: /of-pod, subPathExpr: $(NAME)}
    - {name: memory, mountPath: /empty/memory}
    - {name: host, mountPath: /host}
    - {name: host, mountPath: /host-file, subPath: file}
    - {name: host-file, mountPath: /one-file}
    - {name: data, mountPath: /data, mountPropagation: HostToContainer}
    - {name: data, mountPath: /kept, subPath: kept}
  volumes:
  - {name: config, configMap: {name: every}}
  - {name: secret, secret: {secretName: %[6]s}}
  - name: projected
    projected:
      sources:
      - configMap: {name: every}
      - secret: {name: every, items: [{key: key, path: dir/secret}]}
      - downwardAPI: {items: [{path: dir/name, fieldRef: {fieldPath: metadata.name}}]}
  - name: downward
    downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: host, hostPath: {path: %[5]s, type: Directory}}
  - {name: host-file, hostPath: {path: %[5]s/file, type: File}}
  - {name: data, persistentVolumeClaim: {claimName: ` + volumeName + `}}
%[4]s
---
`

// everyPod is a pod that is healthy, or has ended, or does not run for another reason than a mount.
type everyPod struct {
	name, restart, program string
	more                   string // lines of its spec
	secret                 string // default "every"
	done                   func(p *corev1.Pod) bool
}

func hasPhase(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.Phase == phase }
}

// waitsFor has the container wait for a reason.
func waitsFor(reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && s.State.Waiting.Reason == reason
		})
	}
}

var everyPods = []everyPod{
	{name: "runs", restart: "Always", program: sleepsOnly, done: running},
	{name: "host-network", restart: "Always", program: sleepsOnly, more: "  hostNetwork: true\n  securityContext: {fsGroup: 1000}", done: running},
	{name: "succeeded", restart: "Never", program: "true", done: hasPhase(corev1.PodSucceeded)},
	{name: "failed", restart: "Never", program: "false", done: hasPhase(corev1.PodFailed)},
	{name: "too-late", restart: "Never", program: sleepsOnly, more: "  activeDeadlineSeconds: 10\n  terminationGracePeriodSeconds: 1", done: hasPhase(corev1.PodFailed)},
	{name: "crashes", restart: "Always", program: "false", done: waitsFor("CrashLoopBackOff")},
	{name: "lacks-secret", restart: "Always", program: sleepsOnly, secret: "none", done: hasPhase(corev1.PodPending)},
	{name: "ends-slowly", restart: "Always", program: sleepsOnly, more: "  terminationGracePeriodSeconds: 3600", done: running},
}

// startEveryKind starts pods of every kind, deletes one of them that has an hour for its end, and waits until all are as they are to be.
func (g *goingPods) startEveryKind(t *testing.T) {
	t.Helper()
	host := t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "file"), nil, 0o600))
	manifest := everyVolume
	for _, p := range everyPods {
		manifest += fmt.Sprintf(podOfEveryKind, p.name, p.restart, p.program, p.more, host, cmp.Or(p.secret, "every"))
	}
	g.Kubectl(t, manifest, "apply", "-f", "-")
	for _, p := range everyPods {
		g.Wait(t, "pod "+p.name+" to be as it is to be", func(ctx context.Context) bool {
			var now corev1.Pod
			return g.Get(ctx, client.ObjectKey{Namespace: "default", Name: p.name}, &now) == nil && p.done(&now)
		})
	}
	g.Kubectl(t, "", "delete", "pod", "-n", "default", "ends-slowly", "--wait=false")
}

// checkHealthy shows that neither a scan, nor the agent, nor a Diagnosis of one of the pods finds anything.
func (g *goingPods) checkHealthy(t *testing.T) {
	t.Helper()
	g.awaitCleanScan(t)
	for _, p := range everyPods {
		must(t, g.Create(t.Context(), automatic(p.name, p.name)))
	}
	for _, p := range everyPods {
		g.checkFindsNothing(t, p.name)
	}
	g.Wait(t, "the agent to show nothing", func(ctx context.Context) bool {
		var shown v1.MountFaultList
		must(t, g.List(ctx, &shown))
		for _, f := range shown.Items {
			text := fmt.Sprintf("the agent shows %s of %s: %q", f.Status.Code, f.Status.Target, f.Status.Evidence)
			if t.Log(text); f.Status.Code != slowCode {
				t.Error(text)
			}
		}
		return len(shown.Items) == 0
	})
}

// checkFindsNothing shows that the Diagnosis of a pod that is healthy finds nothing. Only if the living daemon of the volume has answered neither of two
// looks, another Diagnosis follows, until one finds nothing.
func (g *goingPods) checkFindsNothing(t *testing.T, pod string) {
	t.Helper()
	d := g.AwaitDiagnosis(t, pod, (*v1.Diagnosis).Ended)
	for n := 2; len(d.Status.Faults) > 0 && !slices.ContainsFunc(d.Status.Faults, func(f v1.Fault) bool { return !isSlow(f) }); n++ {
		name := fmt.Sprintf("%s-%d", pod, n)
		t.Logf("the daemon of the volume does not answer: %s", d.Status.Summary)
		d = g.runDiagnosis(t, automatic(name, pod))
	}
	if d.Status.Outcome != v1.OutcomeNoFault || len(d.Status.Faults) > 0 || strings.Contains(d.Status.Summary, "not known") {
		t.Errorf("pod %s: outcome %q, faults %+v: %s", pod, d.Status.Outcome, d.Status.Faults, d.Status.Summary)
	}
}

// awaitCleanScan waits until a scan of the node that knows the pods finds nothing.
func (e *env) awaitCleanScan(t *testing.T) {
	t.Helper()
	e.Wait(t, "a scan to find nothing", func(context.Context) bool {
		report, status := e.scan(t, "--pods", e.podsFile(t))
		if status != 0 {
			t.Logf("the scan ends with status %d: %+v", status, report)
		}
		return status == 0 && len(report.Faults) == 0
	})
}
