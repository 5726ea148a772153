// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"context"
	"errors"
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

// linkedPod has a file of a directory of the node as a subPath.
const linkedPod = `
apiVersion: v1
kind: Pod
metadata: {name: linked, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [sh, -c, "cat /seen; exec sleep 1000000"]
    volumeMounts: [{name: host, mountPath: /seen, subPath: value}]
  volumes:
  - {name: host, hostPath: {path: %s}}
`

// keptBindIsRepaired makes a stale bind that every kubelet keeps: the name of its file is unlinked, and linked again. A Diagnosis replaces the
// bind while the container runs, and the next start succeeds. Without that, the start fails as it does after an update of a ConfigMap on a
// kubelet before 1.19, until a Diagnosis has replaced the bind.
func (e *env) keptBindIsRepaired(t *testing.T) {
	l := e.deployLinked(t)
	stale := l.linkAgain(t)
	l.heal(t, "running")
	e.checkRenewed(t, stale, l.source)
	if l.read(t.Context(), t); !running(l.pod) || l.pod.Status.ContainerStatuses[0].ContainerID != l.container {
		t.Errorf("the container was touched: %+v", l.pod.Status.ContainerStatuses)
	}
	must(t, e.RemoveContainer(t.Context(), string(l.pod.UID), "app"))
	l.awaitStart(t)
	if l.hasFailed() {
		t.Errorf("a start of the container has failed: %q", failedStarts(l.pod))
	}

	stale = l.linkAgain(t)
	must(t, e.RemoveContainer(t.Context(), string(l.pod.UID), "app"))
	e.Wait(t, "the next start of the container to fail", func(ctx context.Context) bool {
		l.read(ctx, t)
		return l.hasFailed()
	})
	t.Logf("the start fails: %q", failedStarts(l.pod))
	l.heal(t, "waiting")
	l.awaitStart(t)
	e.checkRenewed(t, stale, l.source)
}

// linked is a pod whose subPath is the file source.
type linked struct {
	*env
	pod       *corev1.Pod
	source    string
	point     string // where the kubelet has bound it
	container string // the ID of its newest container
}

func (e *env) deployLinked(t *testing.T) *linked {
	t.Helper()
	l := &linked{env: e, source: filepath.Join(t.TempDir(), "value"), pod: &corev1.Pod{}}
	must(t, os.WriteFile(l.source, []byte("value\n"), 0o644))
	e.Kubectl(t, fmt.Sprintf(linkedPod, filepath.Dir(l.source)), "apply", "-f", "-")
	l.pod.Namespace, l.pod.Name = "default", "linked"
	l.awaitStart(t)
	l.point = filepath.Join(e.KubeletRoot(), "pods", string(l.pod.UID), "volume-subpaths/host/app/0")
	return l
}

func (l *linked) read(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, l.Get(ctx, client.ObjectKeyFromObject(l.pod), l.pod))
}

// awaitStart waits until another container of the pod runs.
func (l *linked) awaitStart(t *testing.T) {
	t.Helper()
	uid := l.pod.UID
	l.Wait(t, "the container to run", func(ctx context.Context) bool {
		l.read(ctx, t)
		return running(l.pod) && l.pod.Status.ContainerStatuses[0].ContainerID != l.container
	})
	l.container = l.pod.Status.ContainerStatuses[0].ContainerID
	if uid != "" && l.pod.UID != uid {
		t.Errorf("the pod is another one: %s, not %s", l.pod.UID, uid)
	}
}

// linkAgain unlinks the name of the file, and links the same file again. It returns the bind, which is stale then.
func (l *linked) linkAgain(t *testing.T) place {
	t.Helper()
	bind := l.mountedAt(t, l.point)
	other := l.source + ".other"
	must(t, errors.Join(os.Link(l.source, other), os.Remove(l.source), os.Rename(other, l.source)))
	return bind
}

// hasFailed reports whether the kernel has refused the bind at a start of the container.
func (l *linked) hasFailed() bool {
	return slices.ContainsFunc(failedStarts(l.pod), func(text string) bool { return strings.Contains(text, "no such file or directory") })
}

// heal has a Diagnosis replace the bind.
func (l *linked) heal(t *testing.T, name string) {
	t.Helper()
	must(t, l.Create(t.Context(), automatic(name, l.pod.Name)))
	d := l.AwaitDiagnosis(t, name, func(d *v1.Diagnosis) bool {
		must(t, l.Nudge(t.Context(), l.pod)) // in its back-off the kubelet does not look at a pod by itself
		return d.Ended()
	})
	checkEnd(t, d, v1.DiagnosisSucceeded, v1.OutcomeHealed)
}
