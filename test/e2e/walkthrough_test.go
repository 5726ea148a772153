// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

// workload is the ConfigMap and the Deployment of the walkthrough, with an image that needs no registry.
const workload = `
apiVersion: v1
kind: ConfigMap
metadata: {name: nginx-logrotate, namespace: default}
data: {nginx.log: "first content\n"}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  labels: {app: core2}
  name: core2
  namespace: default
spec:
  replicas: 1
  selector: {matchLabels: {app: core2}}
  template:
    metadata: {labels: {app: core2}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - image: ` + install.Busybox + `
        imagePullPolicy: Never
        name: debian
        command: ["/bin/sh", "-c", "cat /etc/logrotate.d/nginx.log; exec sleep 100000"]
        volumeMounts:
        - mountPath: /etc/logrotate.d/nginx.log
          name: logrotateconf
          subPath: nginx.log
      volumes:
      - configMap:
          defaultMode: 420
          items: [{key: nginx.log, path: nginx.log}]
          name: nginx-logrotate
        name: logrotateconf
`

// samples is the file with the Operations and the OperationSet of the walkthrough.
const samples = "../../config/operations/subpath-remount.yaml"

func TestWalkthroughHealsAPod(t *testing.T) {
	e := start(t, cluster.Options{Kubelet: cluster.Kubernetes118})
	pod := e.deploy(t)
	e.breakSubPath(t, pod, "second content")
	dir := filepath.Join(e.KubeletRoot(), "pods", string(pod.UID))
	point := filepath.Join(dir, "volume-subpaths/logrotateconf/debian/0")
	before, stale := e.mounts(t), e.mountedAt(t, point)

	e.Kubectl(t, "", "apply", "-f", samples)
	d := e.walkThrough(t, pod)

	checkSeedStatus(t, d, e.NodeName())
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Fatalf("phase %q, outcome %q", d.Status.Phase, d.Status.Outcome)
	}
	after := e.podOf(t.Context(), "core2")
	if after == nil || after.UID != pod.UID || !running(after) || !maps.Equal(after.Annotations, pod.Annotations) {
		t.Fatalf("the pod is not running again as it was, under its own UID: %+v", after)
	}
	// With the records of containers goes the count of restarts, after which the kubelet names the log: the log of the
	// container that was removed may stand before it.
	e.Wait(t, "the container to say that it sees the new content", func(context.Context) bool {
		return strings.HasSuffix(e.Kubectl(t, "", "logs", "-n", "default", pod.Name), "second content\n")
	})
	e.checkOtherMounts(t, before, func(p string) bool { return p == point })
	e.checkRenewed(t, stale, filepath.Join(dir, "volumes/kubernetes.io~configmap/logrotateconf/nginx.log"))
	checkEvents(t, e)
	t.Logf("kubectl get diag:\n%s", e.Kubectl(t, "", "get", "diag", "-n", "default"))
	e.logMemory(t)
	t.Run("tenants attack", func(t *testing.T) { e.withstandsTenants(t, after) })
}

// healsAgain breaks and heals the pod once more.
func (e *env) healsAgain(t *testing.T, pod *corev1.Pod, content string) {
	t.Helper()
	e.breakSubPath(t, pod, content)
	e.Kubectl(t, "", "delete", "diag", "-n", "default", "subpath-remount-diagnosis")
	d := e.walkThrough(t, pod)
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Fatalf("phase %q, outcome %q", d.Status.Phase, d.Status.Outcome)
	}
	after := e.podOf(t.Context(), "core2")
	if after == nil || after.UID != pod.UID || !running(after) || !maps.Equal(after.Annotations, pod.Annotations) {
		t.Errorf("the pod is not what it was: %+v", after)
	}
	started, err := e.Started(t.Context(), string(pod.UID), "debian")
	must(t, err)
	t.Logf("the container was started %.2f s after the Diagnosis", started.Sub(d.CreationTimestamp.Time).Seconds())
}

// deploy applies the workload and waits until it runs.
func (e *env) deploy(t *testing.T) *corev1.Pod {
	t.Helper()
	e.Kubectl(t, workload, "apply", "-f", "-")
	var pod *corev1.Pod
	e.Wait(t, "the pod of the walkthrough to run", func(ctx context.Context) bool {
		pod = e.podOf(ctx, "core2")
		return pod != nil && running(pod)
	})
	return pod
}

// makeStale updates the ConfigMap of the walkthrough's pod, and waits until the kernel marks the source of the bind deleted.
func (e *env) makeStale(t *testing.T, pod *corev1.Pod, content string) {
	t.Helper()
	e.Kubectl(t, "", "patch", "configmap", "-n", "default", "nginx-logrotate", "--type=merge",
		"-p", fmt.Sprintf(`{"data":{"nginx.log":"%s\n"}}`, content))
	e.Wait(t, "the source of the bind to be deleted", func(context.Context) bool {
		return slices.ContainsFunc(e.mounts(t), func(m mountinfo.Mount) bool {
			return m.Deleted() && strings.Contains(m.Point, string(pod.UID))
		})
	})
}

// breakSubPath makes the bind stale, removes the container through the runtime and waits until its next start has failed.
func (e *env) breakSubPath(t *testing.T, pod *corev1.Pod, content string) {
	t.Helper()
	e.makeStale(t, pod, content)
	must(t, e.RemoveContainer(t.Context(), string(pod.UID), "debian"))
	e.Wait(t, "the container's next start to fail", func(ctx context.Context) bool {
		p := e.podOf(ctx, "core2")
		return p != nil && !running(p) && strings.Contains(fmt.Sprint(p.Status.ContainerStatuses), "no such file or directory")
	})
}

func running(p *corev1.Pod) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil {
			return false
		}
	}
	return len(p.Status.ContainerStatuses) > 0
}

// walkThrough runs the Diagnosis of the walkthrough to its end.
func (e *env) walkThrough(t *testing.T, pod *corev1.Pod) *v1.Diagnosis {
	t.Helper()
	return e.runDiagnosis(t, diagnosisOf("default", "subpath-remount-diagnosis", "subpath-remount-op-set", e.NodeName(), pod))
}

// checkSeedStatus compares a status with the one that the walkthrough shows.
func checkSeedStatus(t *testing.T, d *v1.Diagnosis, node string) {
	t.Helper()
	for kind, message := range map[string]string{
		"Accepted": "Diagnosis is accepted by agent on node " + node,
		"Complete": "Diagnosis is completed",
	} {
		c := meta.FindStatusCondition(d.Status.Conditions, kind)
		if c == nil || c.Status != "True" || c.Message != message || c.Reason != "Diagnosis"+kind {
			t.Errorf("condition %s is %+v", kind, c)
		}
	}
	if d.Status.Checkpoint == nil || *d.Status.Checkpoint != (v1.Checkpoint{PathIndex: 0, NodeIndex: 3}) {
		t.Errorf("checkpoint is %+v", d.Status.Checkpoint)
	}
	var path []string
	for _, n := range d.Status.SucceededPath {
		path = append(path, fmt.Sprint(n.ID, " ", n.Operation, " ", n.To))
	}
	want := []string{
		"1 pod-detail-collector [2]", "2 mount-info-collector [3]",
		"3 subpath-remount-diagnoser [4]", "4 subpath-remount-recover []",
	}
	if !slices.Equal(path, want) {
		t.Errorf("succeededPath is %q", path)
	}
	for key, pattern := range map[string]string{
		"collector.system.mountinfo":                                     `(?m)/volume-subpaths/logrotateconf/debian/0 .*`,
		"collector.kubernetes.pod.detail":                                `^\{"kind":"Pod","apiVersion":"v1"`,
		"diagnoser.kubernetes.subpath_remount.bug_link":                  `^https://github\.com/kubernetes/kubernetes/issues/68211$`,
		"diagnoser.kubernetes.subpath_remount.original_destination_path": `/pods/[^/]+/volume-subpaths/logrotateconf/debian/0$`,
		"diagnoser.kubernetes.subpath_remount.original_source_path":      `/nginx\.log//deleted$`,
		"diagnoser.kubernetes.subpath_remount.result":                    `^pod met a bug of subpath-remounting$`,
		"recover.kubernetes.subpath_remount.result":                      `^Succeesfully umount .*/volume-subpaths/logrotateconf/debian/0 on host$`,
	} {
		if value := d.Status.OperationResults[key]; !regexp.MustCompile(pattern).MatchString(value) {
			t.Errorf("result %s is %.300q", key, value)
		}
	}
}

// checkOtherMounts compares the mounts in the cluster's directory with what they were: only the binds of subPaths that are
// touched, and what the runtime mounts for new containers, may have come or gone. Others mount elsewhere as they please.
func (e *env) checkOtherMounts(t *testing.T, before []mountinfo.Mount, touched func(point string) bool) {
	t.Helper()
	after := e.mounts(t)
	compared := func(m mountinfo.Mount) bool {
		return mountinfo.Within(e.Dir(), m.Point) && !touched(m.Point) &&
			!strings.HasPrefix(m.Point, e.Dir()+"/containerd") // its folders for state and for content
	}
	in := func(list []mountinfo.Mount, m mountinfo.Mount) bool {
		return slices.ContainsFunc(list, func(o mountinfo.Mount) bool { return o.ID == m.ID && o.Point == m.Point && o.Root == m.Root })
	}
	for _, m := range before {
		if compared(m) && !in(after, m) {
			t.Errorf("mount %d of %q at %q has gone", m.ID, m.Root, m.Point)
		}
	}
	for _, m := range after {
		if compared(m) && !in(before, m) {
			t.Errorf("mount %d of %q at %q has come", m.ID, m.Root, m.Point)
		}
	}
}

// place is a mount point and the mount that is seen there, by the id that the kernel uses once.
type place struct {
	point string
	id    uint64
}

// mountedAt gives what is mounted at a point, the resolved path of one.
func (e *env) mountedAt(t *testing.T, point string) place {
	t.Helper()
	var st unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, point, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID_UNIQUE, &st))
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		t.Fatalf("nothing is mounted at %q, or this kernel does not number mounts: %+v", point, st)
	}
	return place{point, st.Mnt_id}
}

// checkRenewed looks at the place of what was a stale bind: one mount is there, which is another, and the file that it
// is of is the one that has the name source now.
func (e *env) checkRenewed(t *testing.T, stale place, source string) {
	t.Helper()
	at := slices.DeleteFunc(e.mounts(t), func(m mountinfo.Mount) bool { return m.Point != stale.point })
	if len(at) != 1 || at[0].Deleted() {
		t.Errorf("mounted at %q is %+v", stale.point, at)
		return
	}
	if e.mountedAt(t, stale.point).id == stale.id {
		t.Errorf("the stale mount at %q is still there", stale.point)
	}
	have, err := os.Stat(stale.point)
	must(t, err)
	want, err := os.Stat(source)
	must(t, err)
	if !os.SameFile(have, want) {
		t.Errorf("what is mounted at %q is not %q", stale.point, source)
	}
}

// checkEvents looks for what a user sees on the Diagnosis and on the Pod.
func checkEvents(t *testing.T, e *env) {
	t.Helper()
	e.Wait(t, "Events on the Diagnosis and on the Pod", func(ctx context.Context) bool {
		var events corev1.EventList
		if err := e.List(ctx, &events, client.InNamespace("default")); err != nil {
			return false
		}
		seen := map[string]bool{}
		for _, ev := range events.Items {
			seen[ev.InvolvedObject.Kind+"/"+ev.Reason] = true
		}
		return seen["Diagnosis/DiagnosisSucceeded"] && seen["Pod/StaleSubPath"] && seen["Pod/MountRepaired"]
	})
}

// processOf finds the process of a pod of kubediag by its cgroup.
func (e *env) processOf(t *testing.T, component string) int {
	t.Helper()
	return processIn(t, string(e.Component(t, component).UID), component)
}

// processIn finds the process of a pod that runs a program, by its cgroup.
func processIn(t *testing.T, podUID, program string) int {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	must(t, err)
	for _, file := range groups {
		group, err := os.ReadFile(file)
		exe, exeErr := os.Readlink(filepath.Join(filepath.Dir(file), "exe"))
		if err == nil && exeErr == nil && strings.Contains(string(group), podUID) && filepath.Base(exe) == program {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			return pid
		}
	}
	t.Fatalf("pod %s has no process of %s", podUID, program)
	return 0
}

// logMemory prints the resident memory of agent and manager.
func (e *env) logMemory(t *testing.T) {
	t.Helper()
	for _, name := range []string{"agent", "manager"} {
		pid := e.processOf(t, name)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(t, err)
		t.Logf("resident memory of the %s: %s", name, regexp.MustCompile(`VmRSS:\s+(.*)`).FindSubmatch(status)[1])
	}
}
