// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/debian"
)

// TestDeadSubPathKeepsPods deletes the directory that pods have as a subPath of a volume on FUSE, as another client does, and
// then the pods. Their binds answer ENOENT, and neither kubelet unmounts such a bind: the pods stay in Terminating. A Diagnosis
// unmounts the bind of one of them, the sentinel that of the other, and both pods go. A third pod of the volume runs on.
func TestDeadSubPathKeepsPods(t *testing.T) {
	t.Parallel()
	must(t, debian.Install(t.Context(), "bindfs"))
	for _, version := range []string{cluster.Kubernetes118, cluster.Kubernetes137} {
		t.Run("kubelet "+version, func(t *testing.T) {
			t.Parallel()
			checkGoing(t, cluster.Options{Kubelet: version})
		})
	}
}

func checkGoing(t *testing.T, o cluster.Options) {
	g := startGoing(t, o)
	g.strand(t)
	g.healOne(t)
	g.checkStays(t)
	g.healAlone(t)
}

// goingPods are two pods that are to go, and one of the same volume that is to stay.
type goingPods struct {
	*env
	driver *csi.Driver
	data   string // what the volume shows
	going  []corev1.Pod
	stays  []corev1.Pod
	before []mountinfo.Mount
}

// startGoing starts a cluster with a CSI driver whose daemon is bindfs, and three pods with a subPath of its volume.
func startGoing(t *testing.T, o cluster.Options) *goingPods {
	t.Helper()
	g := &goingPods{data: t.TempDir()}
	for name, text := range map[string]string{"file": "whole\n", "gone/file": "part\n", "kept/file": "kept\n"} {
		path := filepath.Join(g.data, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	g.env = start(t, o)
	g.driver = csi.Install(t, g.Env, "bindfs", "-f", g.data, "{}")
	g.driver.AddVolume(t, volumeName, "")
	g.going = g.driver.Start(t, csi.Readers{Name: "going", Volume: volumeName, Pods: 2, File: "file", SubPath: "gone"})
	g.stays = g.driver.Start(t, csi.Readers{Name: "stays", Volume: volumeName, Pods: 1, File: "file", SubPath: "kept"})
	for i := range g.going {
		g.driver.Await(t, &g.going[i], csi.Part, "part")
	}
	g.driver.Await(t, &g.stays[0], csi.Part, "kept")
	return g
}

// point is where the kubelet has the subPath of a pod.
func (g *goingPods) point(p *corev1.Pod) string {
	return filepath.Join(g.KubeletRoot(), "pods", string(p.UID), "volume-subpaths", volumeName, csi.Part, "0")
}

// strand deletes the directory, and the pods, and waits until the kubelet has failed to take their volumes away.
func (g *goingPods) strand(t *testing.T) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(g.data, "gone")))
	for i := range g.going {
		point := g.point(&g.going[i])
		g.Wait(t, "the subPath to be dead", func(context.Context) bool {
			var st unix.Stat_t
			return errors.Is(unix.Lstat(point, &st), unix.ENOENT)
		})
	}
	g.Kubectl(t, "", "scale", "-n", "default", "deployment/going", "--replicas=0")
	for i := range g.going {
		p := &g.going[i]
		g.Wait(t, "the kubelet to keep the subPath of pod "+p.Name, func(context.Context) bool { return g.kubeletFails(t, p) })
		g.checkStuck(t, p)
	}
	g.before = g.mounts(t)
}

// kubeletFails reports whether the kubelet has said that it cannot unmount a subPath of the pod.
func (g *goingPods) kubeletFails(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.Dir(), "log/kubelet.log"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "error cleaning subPath mounts") && strings.Contains(line, string(p.UID)) {
			t.Logf("the kubelet says: %s", line)
			return true
		}
	}
	return false
}

// checkStuck shows that the pod is being deleted and there, and so is its bind.
func (g *goingPods) checkStuck(t *testing.T, p *corev1.Pod) {
	t.Helper()
	var now corev1.Pod
	must(t, g.Get(t.Context(), client.ObjectKeyFromObject(p), &now))
	if now.UID != p.UID || now.DeletionTimestamp == nil || len(g.bindsOf(t, p)) != 1 {
		t.Errorf("pod %s does not wait for its bind to go: deleted at %v, mounts %+v", now.Name, now.DeletionTimestamp, g.bindsOf(t, p))
	}
}

// bindsOf are the mounts at the place of the pod's subPath.
func (g *goingPods) bindsOf(t *testing.T, p *corev1.Pod) []mountinfo.Mount {
	t.Helper()
	return slices.DeleteFunc(g.mounts(t), func(m mountinfo.Mount) bool { return m.Point != g.point(p) })
}

// goingDiagnosis names no OperationSet.
const goingDiagnosis = `
apiVersion: diagnosis.kubediag.org/v1
kind: Diagnosis
metadata: {name: going, namespace: default}
spec: {podReference: {namespace: default, name: %s}}
`

// healOne has a Diagnosis unmount the bind of the first pod. The second one stays as it is.
func (g *goingPods) healOne(t *testing.T) {
	t.Helper()
	p := &g.going[0]
	bind := g.bindsOf(t, p)[0]
	g.Kubectl(t, fmt.Sprintf(goingDiagnosis, p.Name), "apply", "-f", "-")
	d := g.AwaitDiagnosis(t, "going", (*v1.Diagnosis).Ended)
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("phase %q, outcome %q: %s", d.Status.Phase, d.Status.Outcome, d.Status.Summary)
	}
	g.checkRepair(t, d, p, bind)
	g.awaitGone(t, p)
	g.checkStuck(t, &g.going[1])
}

// checkRepair shows that a Diagnosis has found nothing but the dead bind of the pod, and has done nothing but unmount it.
func (g *goingPods) checkRepair(t *testing.T, d *v1.Diagnosis, p *corev1.Pod, bind mountinfo.Mount) {
	t.Helper()
	type repair struct {
		Code   string
		State  v1.FaultState
		Pod    string
		Action string
		Mount  int64
		Point  string
		Phase  v1.ActionPhase
	}
	var got []repair
	for _, f := range d.Status.Faults {
		for _, a := range lastActions(d) {
			if f.Pod == nil || f.Mount == nil || a.Mount == nil || f.Mount.MountInfoID != a.Mount.MountInfoID {
				t.Errorf("fault %+v, action %+v", f, a)
				continue
			}
			got = append(got, repair{f.Code, f.State, string(f.Pod.UID), a.Kind, a.Mount.MountInfoID, a.Target, a.Phase})
		}
	}
	want := []repair{{"StaleSubPath", v1.FaultHealed, string(p.UID), "Unmount", int64(bind.ID), g.point(p), v1.ActionDone}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repair (-want +got):\n%s", diff)
	}
	t.Logf("%s", d.Status.Summary)
}

// awaitGone waits until the API server and the node have nothing of the pod.
func (g *goingPods) awaitGone(t *testing.T, p *corev1.Pod) {
	t.Helper()
	g.Wait(t, "pod "+p.Name+" to go", func(ctx context.Context) bool {
		var pods corev1.PodList
		must(t, g.List(ctx, &pods, client.InNamespace(p.Namespace)))
		return !slices.ContainsFunc(pods.Items, func(now corev1.Pod) bool { return now.UID == p.UID })
	})
	g.Wait(t, "all of pod "+p.Name+" to go", func(context.Context) bool {
		_, err := os.Lstat(filepath.Join(g.KubeletRoot(), "pods", string(p.UID)))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// healAlone starts an agent whose sentinel may repair. It looks at all binds when it starts, and later every five minutes. It
// unmounts the bind of the second pod, and makes a record of that.
func (g *goingPods) healAlone(t *testing.T) {
	t.Helper()
	p := &g.going[1]
	bind := g.bindsOf(t, p)[0]
	g.SetSentinel(t, "Automatic")
	g.awaitGone(t, p)
	g.Wait(t, "a record of the repair", func(ctx context.Context) bool {
		var all v1.DiagnosisList
		must(t, g.List(ctx, &all))
		all.Items = slices.DeleteFunc(all.Items, func(d v1.Diagnosis) bool { return d.Spec.Mode != v1.ModeRecord || !d.Ended() })
		for i := range all.Items {
			g.checkRepair(t, &all.Items[i], p, bind)
		}
		return len(all.Items) > 0
	})
}

// checkStays shows that the third pod has what it had, and nothing else of the node has changed.
func (g *goingPods) checkStays(t *testing.T) {
	t.Helper()
	var now corev1.Pod
	must(t, g.Get(t.Context(), client.ObjectKeyFromObject(&g.stays[0]), &now))
	for i, s := range now.Status.ContainerStatuses {
		if s.ContainerID != g.stays[0].Status.ContainerStatuses[i].ContainerID || s.State.Running == nil {
			t.Errorf("container %s of pod %s was started again", s.Name, now.Name)
		}
	}
	if said := g.Kubectl(t, "", "exec", "-n", "default", now.Name, "-c", csi.Part, "--", "cat", "/data/file"); said != "kept\n" {
		t.Errorf("the pod that stays reads %q", said)
	}
	g.checkOtherMounts(t, g.before, func(point string) bool {
		return slices.ContainsFunc(g.going, func(p corev1.Pod) bool { return strings.Contains(point, "/pods/"+string(p.UID)+"/") })
	})
}
