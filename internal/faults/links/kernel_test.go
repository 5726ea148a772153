// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package links

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) {
	kerneltest.Main(m, kerneltest.Roles{"container": kerneltest.HoldPrivately})
}

var must = kerneltest.Must

// linkScene is a pod that runs, with a Secret, an emptyDir and a claim, as its kubelet makes them.
type linkScene struct {
	node *kubelet.Node
	pod  *corev1.Pod
	// secret, empty and claim are the places of the volumes.
	secret, empty, claim string
	end                  func() // ends the process of the pod
}

func newLinkScene(t testing.TB) *linkScene {
	t.Helper()
	node, err := kubelet.Local(t.TempDir())
	must(t, err)
	s := &linkScene{node: node, pod: kubelettest.NewPod()}
	s.pod.UID = types.UID(fmt.Sprintf("5e1b6f0a-8c3d-4a57-9a0e-%012d", os.Getpid()))
	for _, name := range []string{"secret", "empty", "claim"} {
		s.pod.Spec.Containers[0].VolumeMounts = append(s.pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	point := func(plugin, name string) string {
		at := node.VolumePoint(kubelet.Volume{PodUID: string(s.pod.UID), Plugin: plugin, Name: name})
		must(t, os.MkdirAll(at, 0o755))
		return at
	}
	s.secret, s.empty, s.claim = point("kubernetes.io/secret", "secret"), point("kubernetes.io/empty-dir", "empty"), point(kubelet.CSIPlugin, "pvc-1")
	for _, at := range []string{s.secret, s.claim} {
		must(t, sys.NewMount("tmpfs", at, "tmpfs", ""))
		t.Cleanup(func() {
			for systest.UnmountPath(at, true) == nil {
				continue
			}
		})
	}
	writeContent(t, s.secret)
	must(t, os.WriteFile(kubelet.VolumeRecordPath(s.claim), []byte(aRecord), 0o600))
	s.end = kubelettest.PodProcess(t, string(s.pod.UID))
	return s
}

const aRecord = `{"driverName":"d.example.com","volumeHandle":"h","specVolID":"pvc-1"}`

// writeContent makes an empty version of a volume, and the link to it, as the kubelet's atomic writer does.
func writeContent(t testing.TB, volume string) {
	t.Helper()
	const version = "..2026_11_27_13_00_00.1"
	must(t, os.Mkdir(filepath.Join(volume, version), 0o755))
	must(t, os.Symlink(version, filepath.Join(volume, "..data")))
}

// unknown are the places that are not right, by their points. specs is whether the spec of the pod is known.
func (s *linkScene) unknown(t *testing.T, specs bool, scope mountstate.Scope) map[string]string {
	t.Helper()
	i := &Inspector{Kubelet: s.node.ReadOnce()}
	if specs {
		i.Pods = func() []*corev1.Pod { return []*corev1.Pod{s.pod} }
	}
	sum, err := i.Look(t.Context(), scope)
	must(t, err)
	all := map[string]string{}
	for _, p := range sum.Unknown.Places {
		before, _, _ := strings.Cut(p.Reason, " (process ")
		all[p.Point] = p.Volume + ": " + before
	}
	return all
}

// TestVolumesThatAreNotThere takes the volumes of a pod away while it runs, one after the other. Each of them is said, with the spec of the pod
// and by the kubelet's directories alone, for the node and for the pod. None is once the pod has ended.
func TestVolumesThatAreNotThere(t *testing.T) {
	const notMounted, noDirectory = "nothing is mounted there, though a pod that runs wants a volume there", "the directory of the volume is not there, though its pod runs"
	s := newLinkScene(t)
	own, other := mountstate.Scope{PodUIDs: []string{string(s.pod.UID)}}, mountstate.Scope{PodUIDs: []string{"another"}}
	check := func(when string, want, bySpec map[string]string) {
		t.Helper()
		for name, got := range map[string]map[string]string{
			"by directories": s.unknown(t, false, mountstate.Scope{}), "by directories, for the pod": s.unknown(t, false, own),
		} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, name, diff)
			}
		}
		for name, got := range map[string]map[string]string{"by specs": s.unknown(t, true, mountstate.Scope{}), "by specs, for the pod": s.unknown(t, true, own)} {
			if diff := cmp.Diff(bySpec, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, name, diff)
			}
		}
		if got := s.unknown(t, true, other); len(got) > 0 {
			t.Errorf("%s, for another pod: %v", when, got)
		}
	}
	want := map[string]string{}
	check("all is there", want, want)
	must(t, systest.UnmountPath(s.claim, true))
	want[s.claim] = "pvc-1: " + notMounted
	check("the claim is not mounted", want, want)
	must(t, systest.UnmountPath(s.secret, true))
	want[s.secret] = "secret: " + notMounted
	check("nor is the Secret", want, want)
	must(t, os.Remove(s.empty))
	check("the emptyDir is not there", want, map[string]string{s.claim: want[s.claim], s.secret: want[s.secret], s.empty: "empty: " + noDirectory})
	s.pod.Status.ContainerStatuses = nil
	if got := s.unknown(t, true, own); len(got) > 0 {
		t.Errorf("no container has started: %v", got)
	}
	s.end()
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("app")}
	check("the pod has ended", map[string]string{}, map[string]string{})
}

// TestVolumesThatCannotBeWritten has the mounts of a Secret and of a claim, and then the file system of the Secret, turn read-only. A driver may
// mount a claim like that, which is a note. The kubelet makes a Secret that it can write.
func TestVolumesThatCannotBeWritten(t *testing.T) {
	s := newLinkScene(t)
	check := func(when string, notes int, want map[string]string) {
		t.Helper()
		i := &Inspector{Kubelet: s.node.ReadOnce(), Pods: func() []*corev1.Pod { return []*corev1.Pod{s.pod} }}
		sum, err := i.Look(t.Context(), mountstate.Scope{})
		must(t, err)
		if got := sum.Coverage.Notes; len(got) != notes || notes > 0 && !strings.Contains(got[0], `volume "pvc-1"`) {
			t.Errorf("%s: notes %q", when, got)
		}
		for specs, of := range map[bool]string{true: "with the spec", false: "by directories"} {
			if diff := cmp.Diff(want, s.unknown(t, specs, mountstate.Scope{})); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, of, diff)
			}
		}
	}
	wrong := map[string]string{s.secret: "secret: the tmpfs of the volume is read-only, and the kubelet makes one that can be written"}
	check("all can be written", 0, map[string]string{})
	must(t, systest.RemountBindReadOnly(s.claim))
	check("the claim cannot", 1, map[string]string{})
	must(t, systest.RemountBindReadOnly(s.secret))
	check("nor can the Secret", 1, wrong)
	must(t, systest.UnmountPath(s.secret, true))
	must(t, sys.NewMount("tmpfs", s.secret, "tmpfs", "ro"))
	check("its file system is read-only", 1, wrong)
	s.pod.Spec.Containers[0].VolumeMounts[2].ReadOnly = true
	check("no container writes to the claim", 0, wrong)
}

// TestVolumesThatAreNotWritten removes files of the kubelet while a pod runs: the version of a Secret, the link to it, and the record of a claim. Each is
// said with the spec of the pod and without, and not once the pod has ended. A volume that is written again is right.
func TestVolumesThatAreNotWritten(t *testing.T) {
	s := newLinkScene(t)
	link, record := filepath.Join(s.secret, "..data"), kubelet.VolumeRecordPath(s.claim)
	check := func(when string, parts map[string]string) {
		t.Helper()
		for _, specs := range []bool{true, false} {
			got := s.unknown(t, specs, mountstate.Scope{})
			for point, part := range parts {
				if !strings.Contains(got[point], part) {
					t.Errorf("%s, specs %v: of %q %q, want %q", when, specs, point, got[point], part)
				}
			}
			if len(got) != len(parts) {
				t.Errorf("%s, specs %v: %q", when, specs, got)
			}
		}
	}
	check("all is there", nil)
	version, err := os.Readlink(link)
	must(t, err)
	must(t, os.Remove(filepath.Join(s.secret, version)))
	check("the version is gone", map[string]string{s.secret: fmt.Sprintf("the content that the kubelet writes is not there: follow link %q: no such file", link)})
	must(t, os.Remove(link))
	check("the link, too", map[string]string{s.secret: fmt.Sprintf("not there: read link %q: no such file", link)})
	must(t, os.Mkdir(link, 0o755))
	check("a directory is in its place", map[string]string{s.secret: fmt.Sprintf("not there: read link %q: invalid argument", link)})
	must(t, os.Remove(link))
	writeContent(t, s.secret)
	const taken = "without it the kubelet cannot take the volume down: "
	for _, text := range []string{"", aRecord[:20]} {
		must(t, os.WriteFile(record, []byte(text), 0o600))
		check(fmt.Sprintf("the record is %q", text), map[string]string{s.claim: taken + fmt.Sprintf("read record %q: record cannot be used", record)})
	}
	must(t, os.Remove(record))
	check("there is no record", map[string]string{s.claim: taken + fmt.Sprintf("read record %q: no such file", record)})
	s.end()
	check("the pod has ended", nil)
}

// TestContentOnAFileSystemThatHangs: FUSE is mounted on the directory of a ConfigMap by its own pod, and its daemon does not answer. It is not waited for.
func TestContentOnAFileSystemThatHangs(t *testing.T) {
	s := newLinkScene(t)
	dir := s.node.VolumePoint(kubelet.Volume{PodUID: string(s.pod.UID), Plugin: "kubernetes.io/configmap", Name: "cfg"})
	must(t, os.MkdirAll(dir, 0o755))
	writeContent(t, dir)
	if got := s.unknown(t, false, mountstate.Scope{}); len(got) > 0 {
		t.Errorf("with its content: %q", got)
	}
	daemon := kerneltest.FUSE(t, dir)
	must(t, exec.Command("kill", "-STOP", strconv.Itoa(daemon.PID)).Run())
	t.Cleanup(daemon.Kill)
	if got := s.unknown(t, false, mountstate.Scope{}); len(got) != 1 || !strings.Contains(got[dir], "a mount lies on the directory of the volume") {
		t.Errorf("hidden: %q", got)
	}
}

// TestVolumesThatComeBack: a volume that is there at the second look is right. The first look is in a table that is older.
func TestVolumesThatComeBack(t *testing.T) {
	s := newLinkScene(t)
	must(t, systest.UnmountPath(s.secret, true))
	once := s.node.ReadOnce()
	_, err := once.Mounts(t.Context())
	must(t, err)
	must(t, sys.NewMount("tmpfs", s.secret, "tmpfs", ""))
	writeContent(t, s.secret)
	sum, err := (&Inspector{Kubelet: once, Pods: func() []*corev1.Pod { return []*corev1.Pod{s.pod} }}).Look(t.Context(), mountstate.Scope{})
	must(t, err)
	if len(sum.Unknown.Places) > 0 {
		t.Errorf("unknown: %+v", sum.Unknown)
	}
}

// TestVolumesThatAreCovered: a later mount lies over the directory of the pods, and no path leads to the volumes any more.
func TestVolumesThatAreCovered(t *testing.T) {
	s := newLinkScene(t)
	must(t, sys.NewMount("tmpfs", s.node.PodsDir(), "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(s.node.PodsDir(), true) })
	for _, dir := range []string{s.secret, s.claim, s.empty} { // the kubelet has made them again
		must(t, os.MkdirAll(dir, 0o755))
	}
	want := "the volume is mounted, but no path leads to it: another mount lies on the way there"
	got := s.unknown(t, true, mountstate.Scope{})
	if diff := cmp.Diff(map[string]string{s.secret: "secret: " + want, s.claim: "pvc-1: " + want}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// fixedRuntime lists containers that run, or fails.
type fixedRuntime struct {
	all []cri.Owner
	err error
}

func (fixedRuntime) PodRecords(context.Context, string) ([]cri.Container, error) { return nil, nil }

func (c *fixedRuntime) Running(_ context.Context, wanted func(string) bool) ([]cri.Owner, error) {
	return slices.DeleteFunc(slices.Clone(c.all), func(o cri.Owner) bool { return !wanted(o.PodUID) }), c.err
}

// startContainer starts a process of a container in a mount namespace of its own, and returns that namespace. dir is where the volumes are to be.
func (s *linkScene) startContainer(t testing.TB, dir string) (ns mountns.Namespace, c cri.Owner) {
	t.Helper()
	id := fmt.Sprintf("%064x", os.Getpid())
	group := kerneltest.ControlGroup(t, "cri-containerd-"+id+".scope")
	actor := kerneltest.Start(t, "container")
	kerneltest.JoinControlGroup(t, group, actor.PID)
	c = cri.Owner{ContainerID: id, Container: "app", PodUID: string(s.pod.UID), PID: actor.PID}
	ns, err := mountns.Of(actor.PID)
	must(t, err)
	for name, from := range map[string]string{"secret": s.secret, "empty": s.empty, "claim": s.claim} {
		at := filepath.Join(dir, name)
		must(t, os.Mkdir(at, 0o755))
		must(t, ns.Do(func() error { return sys.BindMount(from, at) }))
		c.Mounts = append(c.Mounts, cri.Mount{HostPath: from, ContainerPath: at})
	}
	return ns, c
}

// TestContainerMounts changes the mounts of a container while it runs. Each change is said with the container, and the container counts as looked at.
// No spec is known: the runtime's records alone name the volumes.
func TestContainerMounts(t *testing.T) {
	s := newLinkScene(t)
	dir := t.TempDir()
	ns, c := s.startContainer(t, dir)
	runtime := &fixedRuntime{all: []cri.Owner{c}}
	check := func(when string, looked int, want ...string) {
		t.Helper()
		sum, err := (&Inspector{Kubelet: s.node.ReadOnce(), Runtime: runtime}).Look(t.Context(), mountstate.Scope{})
		must(t, err)
		var got []string
		for _, p := range sum.Unknown.Places {
			reason, _, _ := strings.Cut(p.Reason, " (process ")
			got = append(got, p.Volume+" in "+p.Container+" at "+filepath.Base(p.Point)+": "+reason)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" || sum.Coverage.Containers != looked {
			t.Errorf("%s, %d containers (-want +got):\n%s", when, sum.Coverage.Containers, diff)
		}
	}
	inside := func(do func() error) {
		t.Helper()
		must(t, ns.Do(do))
	}
	secret, claim, link := filepath.Join(dir, "secret"), filepath.Join(dir, "claim"), filepath.Join(dir, "link")
	must(t, os.Mkdir(link, 0o755))
	const missing = "secret in app at secret: the container has nothing mounted there, though the container runtime has made a mount for it"
	check("all is there", 1)
	inside(func() error { return systest.UnmountPath(secret, true) })
	check("the Secret is unmounted", 1, missing)
	inside(func() error { return sys.BindMount(s.secret, link) })
	check("it is where a link leads", 1)
	inside(func() error { return systest.UnmountPath(link, true) })
	inside(func() error { return sys.NewMount("tmpfs", claim, "tmpfs", "") })
	check("and a file system is on the claim", 1,
		"pvc-1 in app at claim: the container has the mount there, but its processes do not reach it: another mount lies on it, or on the way there", missing)
	inside(func() error { return errors.Join(systest.UnmountPath(claim, true), systest.UnmountPath(claim, true)) })
	inside(func() error { return sys.NewMount("tmpfs", claim, "tmpfs", "") })
	check("and instead of the claim", 1,
		fmt.Sprintf("pvc-1 in app at claim: the container has another file system there than the kubelet has at %q", s.claim), missing)
	must(t, os.Remove(s.empty))
	inside(func() error {
		return errors.Join(systest.UnmountPath(claim, true), sys.BindMount(s.claim, claim), sys.BindMount(s.secret, secret))
	})
	check("the emptyDir is removed", 1, "empty in  at empty: nothing is mounted there, though a pod that runs wants a volume there")
	must(t, os.Mkdir(s.empty, 0o755))
	check("and another one is made", 1, fmt.Sprintf(
		"empty in app at empty: the container has a directory there that was deleted, and the kubelet has another one at %q: what is written there is lost", s.empty))
	runtime.all[0].PID = os.Getpid()
	check("another process", 0)
	runtime.all, runtime.err = nil, errors.New("it does not answer")
	check("the runtime does not answer", 0)
	sum, err := (&Inspector{Kubelet: s.node.ReadOnce(), Runtime: runtime}).Look(t.Context(), mountstate.Scope{})
	if must(t, err); len(sum.Coverage.Notes) != 1 || !strings.Contains(sum.Coverage.Notes[0], "it does not answer") {
		t.Errorf("notes %q", sum.Coverage.Notes)
	}
}

// TestManyContainers: of many containers each has its own mounts, in their order, and one whose process is another's has none.
func TestManyContainers(t *testing.T) {
	s := newLinkScene(t)
	_, c := s.startContainer(t, t.TempDir())
	table, err := s.node.Mounts(t.Context())
	must(t, err)
	all := slices.Repeat([]cri.Owner{c}, 100)
	for i := range all {
		if all[i].Container = strconv.Itoa(i); i%3 != 0 {
			all[i].ContainerID = strings.Repeat("f", 64)
		}
	}
	n := &reading{node: s.node, table: table, sources: []mountstate.PodSource{{UID: c.PodUID}}}
	must(t, n.addContainers(t.Context(), &fixedRuntime{all: all}))
	var want, got []string
	for i := 0; i < len(all); i += 3 {
		want = append(want, slices.Repeat([]string{strconv.Itoa(i)}, len(c.Mounts))...)
	}
	for _, m := range n.sources[0].Mounts {
		if got = append(got, m.Container); m.Has != m.Wants {
			t.Errorf("container %s: %+v", m.Container, m)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("containers of the mounts (-want +got):\n%s", diff)
	}
}

// BenchmarkContainers looks at a pod whose container is there 500 times, with 150 mounts more than the container has by itself.
func BenchmarkContainers(b *testing.B) {
	const containers, mounts = 500, 150
	s, dir := newLinkScene(b), b.TempDir()
	ns, c := s.startContainer(b, dir)
	must(b, ns.Do(func() error {
		for i := range mounts {
			at := filepath.Join(dir, strconv.Itoa(i))
			if err := errors.Join(os.Mkdir(at, 0o755), sys.NewMount("tmpfs", at, "tmpfs", "")); err != nil {
				return err
			}
		}
		return nil
	}))
	for name, all := range map[string][]cri.Owner{"none": nil, "all": slices.Repeat([]cri.Owner{c}, containers)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sum, err := (&Inspector{Kubelet: s.node.ReadOnce(), Runtime: &fixedRuntime{all: all}}).Look(b.Context(), mountstate.Scope{})
				must(b, err)
				if want := min(len(all), 1); sum.Coverage.Containers != want {
					b.Fatalf("%d containers, want %d", sum.Coverage.Containers, want)
				}
			}
		})
	}
}

// TestVolumesThatAreHidden: something is mounted on the directory of an emptyDir, and on the tmpfs of a Secret. Lookups of both places reach a mount.
func TestVolumesThatAreHidden(t *testing.T) {
	s := newLinkScene(t)
	for _, at := range []string{s.empty, s.secret} {
		must(t, sys.NewMount("none", at, "tmpfs", ""))
		t.Cleanup(func() { _ = systest.UnmountPath(at, true) })
	}
	layers := "secret: two file systems are mounted there, one on the other, and the kubelet makes one: the volume is hidden"
	directory := "empty: a mount lies on the directory of the volume and hides it, and no container of the pod has the volume with Bidirectional"
	if diff := cmp.Diff(map[string]string{s.secret: layers, s.empty: directory}, s.unknown(t, true, mountstate.Scope{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{s.secret: layers}, s.unknown(t, false, mountstate.Scope{})); diff != "" {
		t.Errorf("without the spec, which says that it is no emptyDir in memory (-want +got):\n%s", diff)
	}
	mounts := s.pod.Spec.Containers[0].VolumeMounts
	for i := range mounts {
		mounts[i].MountPropagation = new(corev1.MountPropagationBidirectional)
	}
	if diff := cmp.Diff(map[string]string{s.secret: layers}, s.unknown(t, true, mountstate.Scope{})); diff != "" {
		t.Errorf("the pod may have mounted on its emptyDir (-want +got):\n%s", diff)
	}
}

// TestMountOfTheNodeAfterTheStart: a file system is mounted at a hostPath of a container that runs. The container has the directory beneath.
func TestMountOfTheNodeAfterTheStart(t *testing.T) {
	s := newLinkScene(t)
	dir, data := t.TempDir(), t.TempDir()
	ns, c := s.startContainer(t, dir)
	at := filepath.Join(dir, "data")
	must(t, os.Mkdir(at, 0o755))
	must(t, ns.Do(func() error { return sys.BindMount(data, at) }))
	c.Mounts = append(c.Mounts, cri.Mount{HostPath: data, ContainerPath: at})
	look := func() []mountstate.Place {
		t.Helper()
		sum, err := (&Inspector{Kubelet: s.node.ReadOnce(), Runtime: &fixedRuntime{all: []cri.Owner{c}}}).Look(t.Context(), mountstate.Scope{})
		must(t, err)
		return sum.Unknown.Places
	}
	if places := look(); len(places) > 0 {
		t.Errorf("before: %+v", places)
	}
	must(t, sys.NewMount("none", data, "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(data, true) })
	places := look()
	if len(places) != 1 || places[0].Container != "app" || places[0].Point != at || !strings.Contains(places[0].Reason, fmt.Sprintf("another file system there than the kubelet has at %q", data)) {
		t.Errorf("after: %+v", places)
	}
	must(t, ns.Do(func() error { return sys.NewMount("none", filepath.Join(dir, "secret"), "tmpfs", "") })) // the container's own table still counts
	if places := look(); len(places) != 2 {
		t.Errorf("with one more: %+v", places)
	}
}
