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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/debian"
)

// TestPodsThatCannotGo has pods that are deleted and stay in Terminating, in each of four ways: a subPath on FUSE whose directory another
// client has deleted (kubernetes#139535), a FUSE mount inside an emptyDir whose daemon ends with its container (kubernetes#129550), one that
// has hung before that, and the bind of a termination log inside an emptyDir (kubernetes#115054). A Diagnosis unmounts the mount
// of one pod of each way, and a policy has the sentinel unmount that of another one. All of them go, and a pod that is not deleted runs on. Healthy pods
// and ended ones of every kind are there all the time, and nothing is found of them.
func TestPodsThatCannotGo(t *testing.T) {
	t.Parallel()
	must(t, debian.Install(t.Context(), "bindfs"))
	for _, version := range []string{cluster.Kubernetes118, cluster.Kubernetes137} {
		t.Run("kubelet "+version, func(t *testing.T) {
			t.Parallel()
			checkPodsThatCannotGo(t, cluster.Options{Kubelet: version})
		})
	}
}

func checkPodsThatCannotGo(t *testing.T, o cluster.Options) {
	g := startGoing(t, o)
	hung := g.startKept(t)
	g.startEveryKind(t)
	g.checkHealthy(t)
	g.hang(t, hung)
	g.strand(t)
	g.healByDiagnoses(t)
	g.checkStays(t)
	g.healAlone(t)
	for _, w := range g.ways { // a kubelet tries again after up to two minutes
		g.awaitGone(t, &w.pods[0])
		g.awaitGone(t, &w.pods[1])
	}
}

// goingPods has two deleted pods for each way, and one pod that shares a volume with them and stays.
type goingPods struct {
	*env
	driver *csi.Driver
	data   string // the directory that the volume shows
	ways   []keptPods
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
	going := g.driver.Start(t, csi.Readers{Name: "going", Volume: volumeName, Pods: 2, File: "file", SubPath: "gone"})
	g.stays = g.driver.Start(t, csi.Readers{Name: "stays", Volume: volumeName, Pods: 1, File: "file", SubPath: "kept"})
	for i := range going {
		g.driver.Await(t, &going[i], csi.Part, "part")
	}
	g.ways = []keptPods{{
		name: "subpath", code: "StaleSubPath", place: filepath.Join("volume-subpaths", volumeName, csi.Part, "0"),
		says: "error cleaning subPath mounts", pods: going,
	}}
	g.driver.Await(t, &g.stays[0], csi.Part, "kept")
	return g
}

// strand deletes the directory, and the pods, and waits until the kubelet has failed to take their volumes away.
func (g *goingPods) strand(t *testing.T) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(g.data, "gone")))
	for _, p := range g.ways[0].pods {
		point := g.point(g.ways[0], p)
		g.Wait(t, "the subPath to be dead", func(context.Context) bool {
			var st unix.Stat_t
			return errors.Is(unix.Lstat(point, &st), unix.ENOENT)
		})
	}
	g.Kubectl(t, "", "scale", "-n", "default", "deployment/going", "--replicas=0")
	g.Kubectl(t, "", "delete", "pod", "-n", "default", "-l", keptLabel, "--wait=false")
	for _, w := range g.ways {
		for _, p := range w.pods {
			g.Wait(t, "the kubelet to keep pod "+p.Name, func(context.Context) bool { return g.kubeletFails(t, w, p) })
			g.checkStuck(t, w, p)
		}
	}
	g.Wait(t, "a scan to find every pod that cannot go", func(context.Context) bool { return g.allFound(t) })
	g.before = g.mounts(t)
}

// kubeletFails reports whether the kubelet has said that it cannot take the volume of the pod away.
func (g *goingPods) kubeletFails(t *testing.T, w keptPods, p corev1.Pod) bool {
	t.Helper()
	for line := range strings.Lines(g.kubeletLog(t)) {
		if strings.Contains(line, w.says) && strings.Contains(line, string(p.UID)) {
			t.Logf("the kubelet says: %s", line)
			return true
		}
	}
	return false
}

// allFound reports whether a scan of the node finds each mount that keeps a pod, and nothing else.
func (g *goingPods) allFound(t *testing.T) bool {
	t.Helper()
	var want, got []string
	for _, w := range g.ways {
		for _, p := range w.pods {
			want = append(want, w.code+" "+g.point(w, p))
		}
	}
	report, status := g.scan(t, "--pods", g.podsFile(t))
	for _, f := range report.Faults {
		got = append(got, f.Code+" "+f.Mount.Point)
	}
	slices.Sort(want)
	slices.Sort(got)
	return status == 1 && slices.Equal(want, got)
}

// checkStuck shows that the pod is being deleted and there, and so is its mount.
func (g *goingPods) checkStuck(t *testing.T, w keptPods, p corev1.Pod) {
	t.Helper()
	var now corev1.Pod
	must(t, g.Get(t.Context(), client.ObjectKeyFromObject(&p), &now))
	if now.UID != p.UID || now.DeletionTimestamp == nil || len(g.mountsOf(t, w, p)) != 1 {
		t.Errorf("pod %s does not wait for its mount to go: deleted at %v, mounts %+v", now.Name, now.DeletionTimestamp, g.mountsOf(t, w, p))
	}
}

// automatic is a Diagnosis of a pod that names no OperationSet.
func automatic(name, pod string) *v1.Diagnosis {
	return diagnosisOf("default", name, "", "", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}})
}

// healByDiagnoses has a Diagnosis unmount the mount of the first pod of each way. The second one stays as it is.
func (g *goingPods) healByDiagnoses(t *testing.T) {
	t.Helper()
	for _, w := range g.ways {
		must(t, g.Create(t.Context(), automatic(w.name, w.pods[0].Name)))
	}
	for _, w := range g.ways {
		want := []unmounted{g.unmountOf(w, w.pods[0])}
		d := g.awaitHealing(t, w)
		others := len(d.Status.Faults)
		d.Status.Faults = slices.DeleteFunc(d.Status.Faults, isSlow)
		others -= len(d.Status.Faults)
		outcome := v1.OutcomeHealed
		if others > 0 {
			outcome = v1.OutcomeFaultFound
		}
		if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != outcome {
			t.Errorf("phase %q, outcome %q: %s", d.Status.Phase, d.Status.Outcome, d.Status.Summary)
		}
		if diff := cmp.Diff(want, unmounts(t, d)); diff != "" {
			t.Errorf("repairs of Diagnosis %s (-want +got):\n%s", d.Name, diff)
		}
		t.Logf("%s", d.Status.Summary)
	}
	for _, w := range g.ways {
		g.checkStuck(t, w, w.pods[1])
	}
}

// awaitHealing awaits the end of the Diagnosis of the first pod of a way. Only if a file system has not answered it, another one follows, at most
// three in all.
func (g *goingPods) awaitHealing(t *testing.T, w keptPods) *v1.Diagnosis {
	t.Helper()
	d := g.AwaitDiagnosis(t, w.name, (*v1.Diagnosis).Ended)
	for n := 2; n <= 3 && d.Status.Phase != v1.DiagnosisSucceeded && strings.Contains(d.Status.Summary, "did not answer"); n++ {
		name := fmt.Sprintf("%s-%d", w.name, n)
		t.Logf("a file system does not answer: %s", d.Status.Summary)
		d = g.runDiagnosis(t, automatic(name, w.pods[0].Name))
	}
	return d
}

// slowCode is the code of mounts that do not answer.
const slowCode = "HungMount"

// isSlow reports whether a fault is that the daemon of the driver, which lives, has not answered twice: the machine may be busy.
func isSlow(f v1.Fault) bool { return f.Code == slowCode && f.Volume == volumeName }

// unmounted is a fault that was found, and the one action against it.
type unmounted struct {
	Code   string
	State  v1.FaultState
	Pod    string
	Action string
	Mount  int64
	Point  string
	Phase  v1.ActionPhase
}

// unmountOf is the repair that frees a pod.
func (g *goingPods) unmountOf(w keptPods, p corev1.Pod) unmounted {
	u := unmounted{Code: w.code, State: v1.FaultHealed, Pod: string(p.UID), Action: "Unmount", Point: g.point(w, p), Phase: v1.ActionDone}
	for _, m := range g.before {
		if m.Point == u.Point {
			u.Mount = int64(m.ID)
		}
	}
	return u
}

// unmounts are the repairs of a Diagnosis.
func unmounts(t *testing.T, d *v1.Diagnosis) (all []unmounted) {
	t.Helper()
	actions := lastActions(d)
	for _, f := range d.Status.Faults {
		i := slices.IndexFunc(actions, func(a v1.Action) bool {
			return a.Mount != nil && f.Mount != nil && a.Mount.MountInfoID == f.Mount.MountInfoID
		})
		if f.Pod == nil || i < 0 {
			t.Errorf("fault %+v has none of the actions %+v", f, actions)
			continue
		}
		a := actions[i]
		all = append(all, unmounted{f.Code, f.State, string(f.Pod.UID), a.Kind, a.Mount.MountInfoID, a.Target, a.Phase})
	}
	if len(actions) != len(d.Status.Faults) {
		t.Errorf("%d faults, actions %+v", len(d.Status.Faults), actions)
	}
	return all
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

// goingPolicy allows the repairs of all ways.
const goingPolicy = `
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryPolicy
metadata: {name: going}
spec:
  mode: Automatic
  faultCodes: [StaleSubPath, DisconnectedFUSE, StuckTermination]
`

// healAlone applies a policy, and starts another agent, which looks at all binds when it starts, and later every five minutes. Its sentinel
// unmounts the mounts of the second pods, and makes records of that.
func (g *goingPods) healAlone(t *testing.T) {
	t.Helper()
	var want []unmounted
	for _, w := range g.ways {
		want = append(want, g.unmountOf(w, w.pods[1]))
	}
	g.Kubectl(t, goingPolicy, "apply", "-f", "-")
	g.SetSentinel(t, "Observe")
	byPoint := func(a, b unmounted) int { return strings.Compare(a.Point, b.Point) }
	slices.SortFunc(want, byPoint)
	var got []unmounted
	g.Wait(t, "the records of the repairs", func(ctx context.Context) bool {
		var all v1.DiagnosisList
		must(t, g.List(ctx, &all))
		got = nil
		for i := range all.Items {
			if d := &all.Items[i]; d.Spec.Mode == v1.ModeRecord && d.Ended() {
				got = append(got, unmounts(t, d)...)
			}
		}
		return len(got) >= len(want)
	})
	if slices.SortFunc(got, byPoint); !slices.Equal(want, got) {
		t.Errorf("records (-want +got):\n%s", cmp.Diff(want, got))
	}
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
		return slices.ContainsFunc(g.ways, func(w keptPods) bool {
			return slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return strings.Contains(point, "/pods/"+string(p.UID)+"/") })
		})
	})
}
