// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/install"
)

// keptPods are pods that a mount keeps from going, all in the same way.
type keptPods struct {
	name  string
	code  string // of the fault
	place string // of the mount, below the directory of the pod
	says  string // a part of the line that the kubelet logs about the pod when it fails
	pods  []corev1.Pod
}

// point is where the mount of a pod is.
func (g *goingPods) point(w keptPods, p corev1.Pod) string {
	return filepath.Join(g.KubeletRoot(), "pods", string(p.UID), w.place)
}

// mountsOf are the mounts at the place that keeps the pod.
func (g *goingPods) mountsOf(t *testing.T, w keptPods, p corev1.Pod) []mountinfo.Mount {
	t.Helper()
	return slices.DeleteFunc(g.mounts(t), func(m mountinfo.Mount) bool { return m.Point != g.point(w, p) })
}

// keptLabel is that of the pods that startKept starts.
const keptLabel = "test.kubediag.org/kept"

// keptPod has an emptyDir whose mounts the node sees, too. Its program ends by SIGKILL alone.
const keptPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {` + keptLabel + `: "true"}}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: app
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [/bin/sh, -c, %[2]q]
    terminationMessagePath: %[3]s
    securityContext: {privileged: true}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: w, mountPath: /w, mountPropagation: Bidirectional}
  volumes:
  - name: usr
    hostPath: {path: /usr}
  - name: w
    emptyDir: {}
---
`

// Programs of such pods. The first one mounts a file system inside the emptyDir, by a program and the loader of the node.
const (
	mountsInside = "mkdir /w/build; set -- /usr/lib/*-linux-gnu/ld-linux-*.so.?; $1 /usr/bin/bindfs -f /tmp /w/build & echo $! >/tmp/pid; wait"
	sleepsOnly   = "sleep 2147483647"
)

// startKept starts the pods that have mounts inside an emptyDir, and returns those whose daemons are to stop.
func (g *goingPods) startKept(t *testing.T) (hung keptPods) {
	t.Helper()
	const inside, busy = "volumes/kubernetes.io~empty-dir/w/", "device or resource busy"
	daemon := keptPods{name: "daemon", code: "DisconnectedFUSE", place: inside + "build", says: "transport endpoint is not connected"}
	hung = keptPods{name: "hung", code: daemon.code, place: daemon.place, says: daemon.says}
	log := keptPods{name: "log", code: "StuckTermination", place: inside + "log", says: busy}
	var manifest string
	for i := range 2 {
		for _, w := range []*keptPods{&daemon, &hung, &log} {
			program, last := mountsInside, "/tmp/last"
			if w == &log {
				program, last = sleepsOnly, "/w/log"
			}
			w.pods = append(w.pods, corev1.Pod{})
			w.pods[i].Namespace, w.pods[i].Name = "default", fmt.Sprintf("%s-%d", w.name, i)
			manifest += fmt.Sprintf(keptPod, w.pods[i].Name, program, last)
		}
	}
	g.Kubectl(t, manifest, "apply", "-f", "-")
	for _, w := range []keptPods{daemon, hung, log} { // their pods are in the same arrays
		for i := range w.pods {
			p := &w.pods[i]
			g.Wait(t, "the node to have the mount of pod "+p.Name, func(ctx context.Context) bool {
				return g.Get(ctx, client.ObjectKeyFromObject(p), p) == nil && running(p) && len(g.mountsOf(t, w, *p)) == 1
			})
		}
		g.ways = append(g.ways, w)
	}
	return hung
}

// hang has the daemons of mounts stop, and waits until a scan finds these mounts. Nothing is done to them.
func (g *goingPods) hang(t *testing.T, hung keptPods) {
	t.Helper()
	for _, p := range hung.pods {
		g.Kubectl(t, "", "exec", "-n", "default", p.Name, "--", "sh", "-c", "kill -STOP $(cat /tmp/pid)")
	}
	g.Wait(t, "a scan to find the mounts that hang", func(context.Context) bool {
		report, status := g.scan(t)
		return status == 1 && len(report.Faults) > 0 && !slices.ContainsFunc(hung.pods, func(p corev1.Pod) bool {
			return !slices.ContainsFunc(report.Faults, func(f scanFault) bool { return f.Code == slowCode && f.Mount.Point == g.point(hung, p) })
		})
	})
}
