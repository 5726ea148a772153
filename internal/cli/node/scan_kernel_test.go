// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) {
	subprocess.Main(registry.Jobs()...)
	volumetest.Main(m, kerneltest.Roles{"kubelet": playKubelet, "copy": copyRole, "hung": hungKubeletRole})
}

// playKubelet is a process with the name of a kubelet, in a mount namespace that is a copy of the test's.
func playKubelet(_ []string, ready func(string)) error {
	if err := os.WriteFile("/proc/self/comm", []byte("kubelet"), 0); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// newStage makes pods that have one ConfigMap each, bound by as many subPaths as said.
func newStage(t testing.TB, pods, binds int) (*kubelettest.Scene, []*corev1.Pod) {
	t.Helper()
	s := kubelettest.New(t)
	var all []*corev1.Pod
	for i := range pods {
		pod := kubelettest.NewPod()
		pod.UID, pod.Name = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)), fmt.Sprintf("web-%d", i)
		s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "one"})
		for index := range binds {
			pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
				corev1.VolumeMount{Name: "configmap", MountPath: fmt.Sprintf("/x/%d", index), SubPath: "app.ini"})
			s.Stack(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "app.ini"), s.Point(pod, "configmap", "app", index))
		}
		all = append(all, pod)
	}
	return s, all
}

func updateConfigMap(s *kubelettest.Scene, pod *corev1.Pod) {
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
}

// scanJSON runs the verb.
func scanJSON(t *testing.T, stdin []byte, args ...string) (scanReport, error) {
	t.Helper()
	return scanIn(t, "", stdin, args...)
}

// scanIn is scanJSON with the processes of another process file system.
func scanIn(t *testing.T, proc string, stdin []byte, args ...string) (scanReport, error) {
	t.Helper()
	cmd := NewScanCommand(proc)
	cmd.SetIn(bytes.NewReader(stdin))
	out, err := verbtest.Run(t, cmd, append([]string{"-o", "json"}, args...)...)
	var r scanReport
	if out != "" {
		must(t, json.Unmarshal([]byte(out), &r))
	}
	return r, err
}

func podList(t testing.TB, pods ...*corev1.Pod) []byte {
	t.Helper()
	l := corev1.PodList{}
	l.APIVersion, l.Kind = "v1", "PodList"
	for _, pod := range pods {
		l.Items = append(l.Items, *pod)
	}
	text, err := json.Marshal(l)
	must(t, err)
	return text
}

func TestScanOfAHealthyNode(t *testing.T) {
	s, _ := newStage(t, 3, 2)
	before := s.Mounts()
	r, err := scanJSON(t, nil, "--kubelet-root", s.Root)
	must(t, err)
	self, err := mountns.Self()
	must(t, err)
	if r.Looked.Counts.Mounts < 6 || r.Looked.Milliseconds <= 0 {
		t.Errorf("looked %+v, want the mounts counted and the time taken", r.Looked)
	}
	r.Looked.Counts.Mounts, r.Looked.Milliseconds = 0, 0
	r.Looked.Counts.DevicesElsewhere, r.Looked.Notes = 0, nil // devices, and other kubelets, are the machine's
	want := scanCoverage{
		Kubelet: scannedKubelet{Root: s.Root, MountNamespace: self.Inode}, Counts: scanCounts{Pods: 3, Binds: 6},
		Classes: &mountstate.Classes{Mounts: 6, Wanted: 6}, KubeletRenews: "unknown", Unproven: []unprovenPlace{}, PodNames: podNameSources{From: []string{}},
	}
	if diff := cmp.Diff(want, r.Looked, cmp.AllowUnexported(scanCoverage{})); diff != "" || r.SchemaVersion != 1 || r.Faults == nil || len(r.Faults) > 0 {
		t.Errorf("report %+v (-want +got):\n%s", r, diff)
	}
	if text := (scanView{report: &r}).reportText(); !strings.Contains(text, ": nothing broken that shows without the specs of pods. Looked at 3 pods (no specs), 6 subPath binds") {
		t.Errorf("for people:\n%s", text)
	}
	if diff := cmp.Diff(before, s.Mounts()); diff != "" {
		t.Errorf("the scan changed mounts:\n%s", diff)
	}
}

func TestScanFindsWhatIsStale(t *testing.T) {
	s, pods := newStage(t, 3, 2)
	updateConfigMap(s, pods[1])
	before := s.Mounts()
	state, err := mount.Inspect(s.Point(pods[1], "configmap", "app", 0))
	must(t, err)
	r, err := scanJSON(t, nil, "--kubelet-root", s.Root)
	if !errors.Is(err, verb.ErrFaults) || len(r.Faults) != 2 {
		t.Fatalf("ends with %v and %+v, want two faults", err, r)
	}
	f := r.Faults[0]
	if len(f.Evidence) < 3 || !strings.Contains(strings.Join(f.Evidence, "\n"), "//deleted") {
		t.Errorf("evidence %q", f.Evidence)
	}
	f.Evidence = nil
	want := scanFault{
		Place: 1, Impact: fault.ImpactNextStart, Heal: fault.HealSafe, Summary: f.Summary, Plan: f.Plan, Prevention: f.Prevention,
		Details:  fault.Details{Place: fault.PlaceSubPath, Repair: fault.Replace},
		Commands: []fault.Command{{Purpose: f.Commands[0].Purpose, Line: "umount -- " + fault.Quote(state.Point), Effect: fault.EffectRepair}},
		Code:     fault.StaleSubPath, Pod: scanPod{UID: string(pods[1].UID)}, Container: "app", Volume: "configmap",
		Mount: scanMount{
			ID: state.UniqueID, MountInfoID: state.MountInfoID, Point: state.Point, Root: state.Root,
			Device: fmt.Sprintf("%d:%d", state.Major, state.Minor), FSType: "tmpfs",
		},
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("fault (-want +got):\n%s", diff)
	}
	if !strings.HasSuffix(r.Faults[1].Mount.Point, "/app/1") || r.Looked.Counts.Binds != 6 || r.Looked.Counts.Pods != 3 {
		t.Errorf("report %+v", r)
	}
	if diff := cmp.Diff(before, s.Mounts()); diff != "" {
		t.Errorf("the scan changed mounts:\n%s", diff)
	}
}

func TestScanKnowsMoreFromPods(t *testing.T) {
	s, pods := newStage(t, 2, 1)
	updateConfigMap(s, pods[0])
	// The second one's source is moved away and made again: only the spec shows that.
	data := filepath.Join(s.Volume(pods[1], kubelettest.ConfigMap, "configmap"), "..data", "app.ini")
	must(t, os.Rename(data, data+".bak"))
	must(t, os.WriteFile(data, nil, 0o600))
	without, err := scanJSON(t, nil, "--kubelet-root", s.Root)
	if !errors.Is(err, verb.ErrFaults) || len(without.Faults) != 1 || without.Looked.PodSpecs.Given {
		t.Errorf("without pods: %v, %+v, want one fault", err, without)
	}
	elsewhere := kubelettest.NewPod()
	r, err := scanJSON(t, podList(t, append(pods, elsewhere)...), "--kubelet-root", s.Root, "--pods", "-")
	if !errors.Is(err, verb.ErrFaults) || len(r.Faults) != 2 {
		t.Fatalf("with pods: %v, %+v, want two faults", err, r)
	}
	if want := (podSpecs{Given: true, Pods: 2}); r.Looked.PodSpecs != want || !slices.Equal(r.Looked.PodNames.From, []string{namesFromPods}) {
		t.Errorf("looked %+v, want %+v", r.Looked, want)
	}
	for i, f := range r.Faults {
		if want := (scanPod{string(pods[i].UID), "default", pods[i].Name}); f.Pod != want || f.Code != fault.StaleSubPath {
			t.Errorf("fault %+v, want one of %+v", f, want)
		}
	}
}

func TestScanNamesPodsByTheirLogs(t *testing.T) {
	s, pods := newStage(t, 2, 1)
	updateConfigMap(s, pods[0])
	must(t, mount.Tmpfs("/var/log", 1<<20))
	t.Cleanup(func() { _ = systest.UnmountPath("/var/log", true) })
	must(t, os.MkdirAll(filepath.Join("/var/log/pods", "kube-system_etcd_"+string(pods[0].UID)), 0o755))
	r, err := scanJSON(t, nil, "--kubelet-root", s.Root)
	if !errors.Is(err, verb.ErrFaults) || len(r.Faults) != 1 {
		t.Fatalf("%v, %+v, want one fault", err, r)
	}
	if want := (scanPod{string(pods[0].UID), "kube-system", "etcd"}); r.Faults[0].Pod != want {
		t.Errorf("pod %+v, want %+v", r.Faults[0].Pod, want)
	}
	if !slices.Equal(r.Looked.PodNames.From, []string{namesFromLogs}) || len(r.Looked.PodNames.Errors) > 0 {
		t.Errorf("names from %q, errors %q", r.Looked.PodNames.From, r.Looked.PodNames.Errors)
	}
}

// TestScanAndTheKubeletsVersion has the program of a kubelet say whether it renews binds.
func TestScanAndTheKubeletsVersion(t *testing.T) {
	const old, renewing = "Skipping bind-mounting subpath", "Skipping bind-mounting subpath; error checking subpath mount info"
	for name, c := range map[string]struct {
		program         string
		faults, renewed int
		renews          any
	}{
		"before 1.19":    {old, 1, 0, false},
		"since 1.19":     {renewing, 0, 1, true},
		"something else": {"no kubelet", 1, 0, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			scene, pods := newStage(t, 1, 1)
			updateConfigMap(scene, pods[0])
			s := &scan{node: scene.Node}
			s.node.Program = filepath.Join(t.TempDir(), "kubelet")
			must(t, os.WriteFile(s.node.Program, []byte(c.program), 0o600))
			must(t, s.search(t.Context(), searches.All()))
			faults := s.sum.Findings
			s.looked.addSurvey(s.sum)
			if len(faults) != c.faults || s.looked.RenewedByKubelet != c.renewed || s.looked.KubeletRenews != c.renews {
				t.Errorf("%d faults, looked %+v, want %+v", len(faults), s.looked, c)
			}
		})
	}
}

func TestScanInTheKubeletsNamespace(t *testing.T) {
	s, pods := newStage(t, 1, 1)
	updateConfigMap(s, pods[0])
	actor := kerneltest.Start(t, "kubelet", "--root-dir="+s.Root, "--container-runtime-endpoint=unix:///nowhere/s")
	// The copy keeps the mount that we unmount here.
	must(t, systest.UnmountPath(s.Point(pods[0], "configmap", "app", 0), true))
	ns, err := mountns.Of(actor.PID)
	must(t, err)
	r, err := scanJSON(t, nil, "--kubelet-pid", fmt.Sprint(actor.PID))
	if !errors.Is(err, verb.ErrFaults) && !errors.Is(err, errUnseen) { // the runtime is nowhere
		t.Fatal(err)
	}
	if r.Looked.Kubelet.PID != actor.PID || r.Looked.Kubelet.MountNamespace != ns.Inode || r.Looked.Kubelet.Root != s.Root {
		t.Errorf("looked at %+v, want process %d, namespace %d", r.Looked, actor.PID, ns.Inode)
	}
	if r.Looked.Counts.Binds != 1 || len(r.Faults)+r.Looked.RenewedByKubelet != 1 {
		t.Errorf("report %+v, want the bind of the copy", r)
	}
	own, err := scanJSON(t, nil, "--kubelet-pid", fmt.Sprint(actor.PID), "--kubelet-root", filepath.Dir(s.Root))
	if err == nil || len(own.Faults) > 0 {
		t.Errorf("a root without pods: %v, %+v", err, own)
	}
}

// TestScanInAPod has two kubelets on a machine. A scan in a pod that knows its UID, as in the agent's, looks at the node of the one that
// has bound its file etc-hosts there. If none has, one alone is taken.
func TestScanInAPod(t *testing.T) {
	const uid, hosts = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10", "/etc/hosts"
	t.Setenv(podUIDEnv, uid)
	bound := map[int]string{}
	for range 2 {
		s, _ := newStage(t, 1, 1)
		own := filepath.Join(s.Node.PodDir(uid), "etc-hosts")
		must(t, os.MkdirAll(filepath.Dir(own), 0o755))
		must(t, os.WriteFile(own, nil, 0o644))
		bound[kerneltest.Start(t, "kubelet", "--root-dir="+s.Root, "--container-runtime-endpoint=unix:///nowhere/s").PID] = own
	}
	for pid, own := range bound {
		must(t, sys.BindMount(own, hosts))
		r, err := scanJSON(t, nil)
		must(t, systest.UnmountPath(hosts, true))
		if r.Looked.Kubelet.PID != pid {
			t.Errorf("looked at the node of kubelet %d, %v; want %d", r.Looked.Kubelet.PID, err, pid)
		}
		alone := t.TempDir()
		for _, process := range []string{strconv.Itoa(pid), "self"} {
			must(t, os.Symlink(filepath.Join("/proc", process), filepath.Join(alone, process)))
		}
		if r, err := scanIn(t, alone, nil); r.Looked.Kubelet.PID != pid {
			t.Errorf("one alone: looked at the node of kubelet %d, %v; want %d", r.Looked.Kubelet.PID, err, pid)
		}
	}
}

// TestScanWhereNoKubeletRuns looks at the default root, and says that nothing serves it.
func TestScanWhereNoKubeletRuns(t *testing.T) {
	newStage(t, 0, 0) // in a mount namespace of its own
	must(t, os.MkdirAll("/var/lib", 0o755))
	must(t, mount.Tmpfs("/var/lib", 1<<20))
	t.Cleanup(func() { _ = systest.UnmountPath("/var/lib", true) })
	must(t, os.MkdirAll("/var/lib/kubelet/pods", 0o755))
	out, err := verbtest.Run(t, NewScanCommand(t.TempDir()), "-o", "json")
	var r scanReport
	must(t, json.Unmarshal([]byte(out), &r))
	if !errors.Is(err, verb.ErrFaults) || !r.Looked.Kubelet.Down || r.Looked.Kubelet.Root != "/var/lib/kubelet" || len(r.Faults) > 0 {
		t.Errorf("ends with %v, looked %+v", err, r.Looked)
	}
	if out, err := verbtest.Run(t, NewScanCommand(t.TempDir()), "--brief"); !errors.Is(err, verb.ErrFaults) || out != "no kubelet runs\n" {
		t.Errorf("in brief %q, %v", out, err)
	}
	pod := filepath.Join("/var/lib/kubelet/pods", string(kubelettest.NewPod().UID))
	must(t, os.Mkdir(pod, 0o755))
	for name, want := range map[string]string{filepath.Base(pod): "", "shop/web": "no pod with this name is known on this node", "x": "the kubelet has no pod with this UID"} {
		_, err := verbtest.Run(t, NewScanCommand(t.TempDir()), "-o", "json", "--pod", name)
		if errors.Is(err, verb.ErrFaults) != (want == "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("of pod %s: %v, want %q", name, err, want)
		}
	}
}
