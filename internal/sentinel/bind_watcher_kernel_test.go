// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) { volumetest.Main(m, roles) }

var roles = kerneltest.Roles{
	"unlinks": unlinkLoop,
	"hold":    kerneltest.HoldPrivately,
}

var must = kerneltest.Must

// waitLimit is the longest time a test waits for anything.
const waitLimit = cpuWindow + 30*time.Second

// bindFixture is a node with one pod and a sentinel. The pod's container app mounts the item key of a ConfigMap.
type bindFixture struct {
	*kubelettest.Scene
	pod           *corev1.Pod
	point         string
	sentinel      *Sentinel
	notifications chan string
	repaired      []Repair // read after the last notification of a repair

	mu   sync.Mutex
	pods map[string]*corev1.Pod
}

func newBindFixture(t testing.TB, mode Mode) *bindFixture {
	t.Helper()
	f := &bindFixture{Scene: kubelettest.New(t), pod: kubelettest.NewPod(), notifications: make(chan string, 10000), pods: map[string]*corev1.Pod{}}
	f.Renews(false)
	f.addSubPath(f.pod, "configmap")
	f.point = f.Point(f.pod, "configmap", "app", 0)
	f.put(f.pod)
	f.sentinel = &Sentinel{Mode: mode, Guard: always{mode}, Kubelet: f.Node, Pods: f, Observer: f}
	return f
}

// addSubPath makes container app of a pod mount the item key of a volume.
func (f *bindFixture) addSubPath(pod *corev1.Pod, volume string) {
	app := &pod.Spec.Containers[0]
	app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/x", SubPath: "key"})
	version := f.Update(pod, kubelettest.ConfigMap, volume, map[string]string{"key": "one"})
	f.Bind(filepath.Join(version, "key"), f.Point(pod, volume, app.Name, len(app.VolumeMounts)-1))
}

func (f *bindFixture) put(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[string(pod.UID)] = pod.DeepCopy()
}

func (f *bindFixture) PodByUID(uid string) *corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[uid]
}

func (f *bindFixture) Found(finding fault.Finding, _ time.Duration) {
	f.notifications <- fmt.Sprintf("found %s in %s of %s at %s", finding.Code, finding.Container, finding.Pod.Name, filepath.Base(finding.Mount.Point))
}

func (f *bindFixture) Repaired(r Repair) {
	f.repaired = append(f.repaired, r)
	f.notifications <- fmt.Sprintf("repaired %s in %s of %s: %v", r.Fault.Code, r.Fault.Container, r.Fault.Pod.Name, r.Err)
}

func (f *bindFixture) Begin(Repair) error { return nil }
func (f *bindFixture) Left(Repair)        {}

func (f *bindFixture) Trouble(err error) { f.notifications <- "trouble: " + err.Error() }

// start runs the sentinel until the test ends, or until stop is called.
func (f *bindFixture) start(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	unwatched := map[bool]int{true: 1}[f.sentinel.watches > 0]
	f.waitFor(t, "to see the binds", func(s Status) bool { return s.Watching && s.Binds > unwatched && s.Unwatched == unwatched })
	return stop
}

func (f *bindFixture) waitFor(t testing.TB, goal string, reached func(Status) bool) {
	t.Helper()
	deadline := time.Now().Add(waitLimit)
	for !reached(f.sentinel.Status()) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long %s: %+v", goal, f.sentinel.Status())
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *bindFixture) expect(t testing.TB, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-f.notifications:
			if got != w {
				t.Fatalf("got notification %q, want %q", got, w)
			}
		case <-time.After(waitLimit):
			t.Fatalf("no notification, want %q", w)
		}
	}
}

// expectInAnyOrder is for changes that come together.
func (f *bindFixture) expectInAnyOrder(t testing.TB, want []string) {
	t.Helper()
	var got []string
	for range want {
		select {
		case n := <-f.notifications:
			got = append(got, n)
		case <-time.After(waitLimit):
			t.Fatalf("%d of %d notifications, the last of them %q", len(got), len(want), got[max(0, len(got)-3):])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

func (f *bindFixture) expectNoMore(t testing.TB) {
	t.Helper()
	select {
	case got := <-f.notifications:
		t.Errorf("got notification %q, want none", got)
	default:
	}
}

func (f *bindFixture) updateConfigMap() {
	f.Update(f.pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
}

// checkSource fails the test if another file than source is at the point.
func (f *bindFixture) checkSource(t testing.TB, point, source string) {
	t.Helper()
	want, err := os.Stat(source)
	must(t, err)
	if got, err := os.Stat(point); err != nil || !os.SameFile(got, want) {
		t.Errorf("%q is not %q: %+v, %v", point, source, got, err)
	}
}

func (f *bindFixture) mounted(t testing.TB) bool {
	t.Helper()
	_, err := mount.Inspect(f.point)
	return err == nil
}

func TestObserveOnlyReports(t *testing.T) {
	f := newBindFixture(t, Observe)
	f.start(t)
	before := f.Mounts()
	f.updateConfigMap()
	f.expect(t, "found StaleSubPath in app of web at 0")
	f.waitFor(t, "for the fault to be present", func(s Status) bool { return s.Present[fault.StaleSubPath] == 1 })
	if diff := cmp.Diff(before, f.Mounts()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
	found := f.onlyFault(t)
	if d := found.Details; d.Container != fault.ContainerRuns || d.Repair != fault.Replace || found.Mount.Point != f.point ||
		time.Since(found.Since) > waitLimit {
		t.Errorf("fault %+v", found)
	}
	// The next start of the container, after another process unmounted the bind.
	must(t, systest.UnmountPath(f.point, false))
	f.waitFor(t, "for the fault to be gone", func(s Status) bool { return s.Present[fault.StaleSubPath] == 0 })
	f.expectNoMore(t)
}

// onlyFault waits until exactly one fault is present and no code is unknown.
func (f *bindFixture) onlyFault(t testing.TB) *Fault {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
		present, unknown := f.sentinel.Faults()
		if len(present) == 1 && len(unknown) == 0 {
			return present[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d faults are present, unknown: %v", len(present), unknown)
		}
	}
}

func TestAutomaticRepairsBeforeNextStart(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.start(t)
	for round := range 5 {
		f.updateConfigMap()
		f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
		must(t, f.Start(f.point))
		f.checkSource(t, f.point, filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "key"))
		st, err := mount.Inspect(f.point)
		must(t, err)
		if st.Deleted {
			t.Fatalf("round %d: %+v is there", round, st)
		}
	}
	f.expectNoMore(t)
	f.checkRecord(t, f.repaired[0])
}

// checkRecord expects of a repair the calls that were made, and the proof.
func (f *bindFixture) checkRecord(t *testing.T, r Repair) {
	t.Helper()
	done := func(name, flag string) bool {
		return slices.ContainsFunc(r.Calls, func(c calls.Call) bool {
			return c.Name == name && c.Arguments == f.point+" "+flag && c.Result == calls.OK
		})
	}
	if !done("umount2", "MNT_DETACH") || len(r.Calls) < 2 {
		t.Errorf("calls %+v", r.Calls)
	}
	if r.Action.Kind != fault.Unmount || r.Action.Mount.Point != f.point || r.Action.Safety == "" || r.Proof == "" || r.Ended.IsZero() {
		t.Errorf("repair %+v", r)
	}
}

func TestRestartFindsEarlierFault(t *testing.T) {
	f := newBindFixture(t, Observe)
	f.updateConfigMap()
	stop := f.start(t)
	f.expect(t, "found StaleSubPath in app of web at 0")
	stop()
	f.sentinel = &Sentinel{Mode: Automatic, Guard: always{Automatic}, Kubelet: f.Node, Pods: f, Observer: f}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

func TestLatePodIsRepaired(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.pods = map[string]*corev1.Pod{}
	f.updateConfigMap()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	f.waitFor(t, "to see the bind", func(s Status) bool { return s.Binds == 1 })
	if !f.mounted(t) {
		t.Error("a bind of an unknown pod was unmounted")
	}
	f.put(f.pod)
	f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

// TestReplacedDirectoryIsRepaired removes or moves a directory of an emptyDir, and creates it again.
func TestReplacedDirectoryIsRepaired(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, dir string){
		"removed": func(t *testing.T, dir string) { must(t, os.Remove(dir)) },
		"removed and created again": func(t *testing.T, dir string) {
			must(t, os.Remove(dir))
			must(t, os.Mkdir(dir, 0o755))
		},
		"moved away and created again": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".bak"))
			must(t, os.Mkdir(dir, 0o755))
		},
		"moved away and created again later": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".bak"))
			time.Sleep(100 * time.Millisecond) // its absence is noticed
			must(t, os.Mkdir(dir, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newBindFixture(t, Automatic)
			f.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "a/sub dir"}}
			dir := filepath.Join(f.Volume(f.pod, kubelettest.EmptyDir, "empty"), "a", "sub dir")
			must(t, os.MkdirAll(dir, 0o755))
			point := f.Point(f.pod, "empty", "sidecar", 0)
			f.Bind(dir, point)
			f.put(f.pod)
			f.start(t)
			must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
			must(t, os.Remove(filepath.Join(dir, "file")))
			f.expectNoMore(t)
			replace(t, dir)
			f.expect(t, "found StaleSubPath in sidecar of web at 0", "repaired StaleSubPath in sidecar of web: <nil>")
			if _, err := mount.Inspect(point); !errors.Is(err, mount.ErrNotMounted) {
				f.checkSource(t, point, dir)
			}
			f.expectNoMore(t)
		})
	}
}

// TestRepairWaitsForContainerStart removes the source of a bind while the container starts. An unmount would give the
// container the empty directory below the bind.
func TestRepairWaitsForContainerStart(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "sub"}}
	dir := filepath.Join(f.Volume(f.pod, kubelettest.EmptyDir, "empty"), "sub")
	must(t, os.Mkdir(dir, 0o755))
	point := f.Point(f.pod, "empty", "sidecar", 0)
	f.Bind(dir, point)
	starting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	f.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sidecar", State: starting}}
	f.put(f.pod)
	f.start(t)
	must(t, os.Remove(dir))
	f.expect(t, "found StaleSubPath in sidecar of web at 0")
	if st, err := mount.Inspect(point); err != nil || !st.Deleted {
		t.Errorf("at the point: %+v, %v, want the stale bind", st, err)
	}
	f.expectNoMore(t)
	f.pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("sidecar")}
	f.put(f.pod)
	f.expect(t, "repaired StaleSubPath in sidecar of web: <nil>")
}

// TestRepairLimitOfChangingSource replaces a source all the time. The repairs stay within the limit.
func TestRepairLimitOfChangingSource(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.start(t)
	began := time.Now()
	for range repairBurst + 1 {
		f.updateConfigMap()
		f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	}
	if took := time.Since(began); took < repairRefill {
		t.Errorf("%d repairs took %s, want at least %s", repairBurst+1, took, repairRefill)
	}
}

// TestBindsBeyondTheWatchesArePolled: the watches are for one bind alone. The other one has none, and is repaired all the same.
func TestBindsBeyondTheWatchesArePolled(t *testing.T) {
	f := newBindFixture(t, Automatic)
	other := kubelettest.NewPod()
	other.UID, other.Name = "other", "other"
	f.addSubPath(other, "configmap")
	f.put(other)
	f.sentinel.watches = partOfWatches * watchesPerBind
	f.start(t)
	f.updateConfigMap()
	f.Update(other, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	f.expectInAnyOrder(t, []string{
		"found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>",
		"found StaleSubPath in app of other at 0", "repaired StaleSubPath in app of other: <nil>",
	})
	f.waitFor(t, "for no fault to be present", func(s Status) bool { return s.Present[fault.StaleSubPath] == 0 && s.Unwatched == 1 })
}

// TestAttributeChangesHideNoFault replaces a source while its attributes change in a loop.
func TestAttributeChangesHideNoFault(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.start(t)
	source := filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "..data", "key")
	for i := range 5000 {
		must(t, os.Chmod(source, 0o600+os.FileMode(i%2)))
	}
	f.updateConfigMap()
	f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
}

// TestKubeletInOtherNamespace runs the sentinel in another mount namespace than the kubelet's.
func TestKubeletInOtherNamespace(t *testing.T) {
	f := newBindFixture(t, Automatic)
	holder := kerneltest.Start(t, "hold")
	node, err := (&kubelet.Finder{PID: holder.PID, Root: f.Root}).Node(t.Context())
	must(t, err)
	f.sentinel.Kubelet = node
	f.start(t)
	before := f.Mounts()
	f.updateConfigMap()
	f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	var st mount.State
	if err := node.Do(t.Context(), func() (err error) { st, err = mount.Inspect(f.point); return err }); err != nil || st.Deleted {
		t.Errorf("in the kubelet's namespace: %+v, %v, want the new file", st, err)
	}
	if diff := cmp.Diff(before, f.Mounts()); diff != "" {
		t.Errorf("mounts of another namespace (-before +after):\n%s", diff)
	}
}

// TestKubeletThatReplacesStaleBinds leaves its binds alone, until a kubelet follows that does not replace them.
func TestKubeletThatReplacesStaleBinds(t *testing.T) {
	f := newBindFixture(t, Automatic)
	old := f.Node
	text, err := os.ReadFile(old.Program)
	must(t, err)
	old.Program = filepath.Join(f.Root, "kubelet-1.18")
	must(t, os.WriteFile(old.Program, text, 0o755))
	f.Renews(true)
	finder := &replaceableKubelet{node: f.Node}
	f.sentinel.Kubelet = finder
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	f.updateConfigMap()
	f.waitFor(t, "to watch", func(s Status) bool { return s.Watching })
	if s := f.sentinel.Status(); s.Binds != 0 || !f.mounted(t) {
		t.Errorf("%+v, mounted: %v", s, f.mounted(t))
	}
	f.expectNoMore(t)
	finder.replace(old)
	f.expect(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

// TestReplacedKubeletRepeatsNoNotification replaces the kubelet by one in another mount namespace. Known faults are not
// reported again.
func TestReplacedKubeletRepeatsNoNotification(t *testing.T) {
	f := newBindFixture(t, Observe)
	finder := &replaceableKubelet{node: f.Node}
	f.sentinel.Kubelet = finder
	f.start(t)
	f.updateConfigMap()
	f.expect(t, "found StaleSubPath in app of web at 0")
	again, err := kubelet.Local(f.Root)
	must(t, err)
	finder.replace(again)
	f.addSubPath(f.pod, "downward")
	f.put(f.pod)
	f.waitFor(t, "to see the other bind", func(s Status) bool { return s.Binds == 2 && s.Present[fault.StaleSubPath] == 1 })
	f.expectNoMore(t)
}

// TestHealthyBindsAreLeftAlone covers changes that look like the fault but are not.
func TestHealthyBindsAreLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, f *bindFixture)
		want []string
	}{
		"attributes changed in a loop": {do: func(t *testing.T, f *bindFixture) {
			for i := range 5000 {
				must(t, os.Chmod(f.point, 0o600+os.FileMode(i%2)))
			}
		}},
		"another name for the file": {do: func(t *testing.T, f *bindFixture) {
			must(t, os.Link(filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "..data", "key"), filepath.Join(f.Root, "link")))
		}},
		"pod is being deleted": {do: func(_ *testing.T, f *bindFixture) {
			f.pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			f.put(f.pod)
			f.updateConfigMap()
		}},
		"spec does not ask for it": {do: func(_ *testing.T, f *bindFixture) {
			f.pod.Spec.Containers[0].VolumeMounts = nil
			f.put(f.pod)
			f.updateConfigMap()
		}},
		"key is gone from the ConfigMap": {
			do: func(_ *testing.T, f *bindFixture) {
				f.Update(f.pod, kubelettest.ConfigMap, "configmap", map[string]string{"other": "two"})
			},
			want: []string{"found MissingBindSource in app of web at 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newBindFixture(t, Automatic)
			f.start(t)
			before := f.Mounts()
			c.do(t, f)
			f.expect(t, c.want...)
			// A second bind becomes stale afterwards. Its repair proves that the first was inspected.
			other := kubelettest.NewPod()
			other.UID, other.Name = "other", "other"
			f.addSubPath(other, "configmap")
			f.put(other)
			f.waitFor(t, "to see the other bind", func(s Status) bool { return s.Binds == 2 })
			f.Update(other, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
			f.expect(t, "found StaleSubPath in app of other at 0", "repaired StaleSubPath in app of other: <nil>")
			after := f.Mounts()
			maps.DeleteFunc(after, func(m string, _ bool) bool { return strings.Contains(m, "/pods/other/") })
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("mounts (-before +after):\n%s", diff)
			}
			f.expectNoMore(t)
		})
	}
}

// TestBurstOfChanges changes one ConfigMap of 500 pods at once.
func TestBurstOfChanges(t *testing.T) {
	many := kerneltest.Fewer(500)
	f := newBindFixture(t, Automatic)
	var pods []*corev1.Pod
	for i := range many {
		pod := kubelettest.NewPod()
		pod.UID, pod.Name = types.UID(fmt.Sprintf("uid-%d", i)), fmt.Sprintf("pod-%03d", i)
		f.addSubPath(pod, "configmap")
		f.put(pod)
		pods = append(pods, pod)
	}
	f.start(t)
	f.waitFor(t, "to see all binds", func(s Status) bool { return s.Binds == many+1 && s.Unwatched == 0 })
	for _, pod := range pods {
		f.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	}
	var want []string
	for _, pod := range pods {
		want = append(want, "found StaleSubPath in app of "+pod.Name+" at 0", "repaired StaleSubPath in app of "+pod.Name+": <nil>")
	}
	f.expectInAnyOrder(t, want)
	for _, pod := range pods {
		f.checkSource(t, f.Point(pod, "configmap", "app", 0), filepath.Join(f.Volume(pod, kubelettest.ConfigMap, "configmap"), "key"))
	}
	f.checkSource(t, f.point, filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "key"))
	f.expectNoMore(t)
}

func TestMissingKubeletIsReported(t *testing.T) {
	f := newBindFixture(t, Observe)
	f.sentinel.Kubelet = noKubelet{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	if got := <-f.notifications; !strings.Contains(got, "kubelet not found") {
		t.Errorf("got notification %q", got)
	}
	cancel()
	must(t, <-done)
}

// noKubelet finds no kubelet.
type noKubelet struct{}

func (noKubelet) Node(context.Context) (*kubelet.Node, error) { return nil, kubelet.ErrNotFound }

// replaceableKubelet finds one kubelet first and another later.
type replaceableKubelet struct {
	mu   sync.Mutex
	node *kubelet.Node
}

func (s *replaceableKubelet) replace(n *kubelet.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = n
}

func (s *replaceableKubelet) Node(context.Context) (*kubelet.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node, nil
}
