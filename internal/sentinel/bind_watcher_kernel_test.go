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
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) { volumetest.Main(m, roles) }

var roles = kerneltest.Roles{
	"unlinks": flood,
	// hold does nothing but be in a mount namespace of its own.
	"hold": func(_ []string, ready func(string)) error {
		if err := mount.SetPropagation("/", mount.Private, true); err != nil {
			return err
		}
		ready("")
		kerneltest.WaitForEnd()
		return nil
	},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long anything is waited for.
const patience = 30 * time.Second

// place is a node with one pod, whose container app has the item key of a ConfigMap, and a sentinel that watches it.
type place struct {
	*kubelettest.Scene
	pod   *corev1.Pod
	point string
	guard *Sentinel
	heard chan string

	mu   sync.Mutex
	pods map[string]*corev1.Pod
}

func newPlace(t testing.TB, mode Mode) *place {
	t.Helper()
	p := &place{Scene: kubelettest.New(t), pod: kubelettest.NewPod(), heard: make(chan string, 10000), pods: map[string]*corev1.Pod{}}
	p.Renews(false)
	p.mountFor(p.pod, "configmap")
	p.point = p.Point(p.pod, "configmap", "app", 0)
	p.put(p.pod)
	p.guard = &Sentinel{Mode: mode, Kubelet: p.Node, Pods: p, Observer: p}
	return p
}

// mountFor has container app of a pod mount the item key of a volume.
func (p *place) mountFor(pod *corev1.Pod, volume string) {
	app := &pod.Spec.Containers[0]
	app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/x", SubPath: "key"})
	version := p.Update(pod, kubelettest.ConfigMap, volume, map[string]string{"key": "one"})
	p.Bind(filepath.Join(version, "key"), p.Point(pod, volume, app.Name, len(app.VolumeMounts)-1))
}

func (p *place) put(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[string(pod.UID)] = pod.DeepCopy()
}

func (p *place) PodByUID(uid string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

func (p *place) Found(f fault.Finding, _ time.Duration) {
	p.heard <- fmt.Sprintf("found %s in %s of %s at %s", f.Code, f.Container, f.Pod.Name, filepath.Base(f.Mount.Point))
}

func (p *place) Repaired(f fault.Finding, err error) {
	p.heard <- fmt.Sprintf("repaired %s in %s of %s: %v", f.Code, f.Container, f.Pod.Name, err)
}

func (p *place) Trouble(err error) { p.heard <- "trouble: " + err.Error() }

// start has the sentinel run until the test ends, or stop is called.
func (p *place) start(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.guard.Run(ctx) }()
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
	p.await(t, "to see the binds", func(s Status) bool { return s.Watching && s.Binds > 0 && s.Unwatched == 0 })
	return stop
}

func (p *place) await(t testing.TB, what string, seen func(Status) bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !seen(p.guard.Status()) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long %s: %+v", what, p.guard.Status())
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *place) hears(t testing.TB, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-p.heard:
			if got != w {
				t.Fatalf("heard %q, want %q", got, w)
			}
		case <-time.After(patience):
			t.Fatalf("heard nothing, want %q", w)
		}
	}
}

func (p *place) hearsNothingMore(t testing.TB) {
	t.Helper()
	select {
	case got := <-p.heard:
		t.Errorf("heard %q, want nothing", got)
	default:
	}
}

func (p *place) renew() {
	p.Update(p.pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
}

// mustShow makes sure that source is what is at the point.
func (p *place) mustShow(t testing.TB, point, source string) {
	t.Helper()
	want, err := os.Stat(source)
	must(t, err)
	if got, err := os.Stat(point); err != nil || !os.SameFile(got, want) {
		t.Errorf("%q is not %q: %+v, %v", point, source, got, err)
	}
}

func (p *place) mounted(t testing.TB) bool {
	t.Helper()
	_, err := mount.Inspect(p.point)
	return err == nil
}

func TestObserveTellsAndTouchesNothing(t *testing.T) {
	p := newPlace(t, Observe)
	p.start(t)
	before := p.Mounts()
	p.renew()
	p.hears(t, "found StaleSubPath in app of web at 0")
	p.await(t, "for the fault to be present", func(s Status) bool { return s.Present[fault.StaleSubPath] == 1 })
	if diff := cmp.Diff(before, p.Mounts()); diff != "" {
		t.Errorf("mounts (-before +after):\n%s", diff)
	}
	f := p.onlyFault(t)
	if d := f.Details; d.Container != fault.ContainerRuns || d.Repair != fault.Replace || f.Mount.Point != p.point || time.Since(f.Since) > patience {
		t.Errorf("fault %+v", f)
	}
	// The kubelet's next start of the container, had somebody unmounted it.
	must(t, systest.UnmountPath(p.point, false))
	p.await(t, "for the fault to be gone", func(s Status) bool { return s.Present[fault.StaleSubPath] == 0 })
	p.hearsNothingMore(t)
}

// onlyFault waits until exactly one fault is present, and all is known.
func (p *place) onlyFault(t testing.TB) *Fault {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		present, unknown := p.guard.Faults()
		if len(present) == 1 && len(unknown) == 0 {
			return present[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d faults are present, unknown: %v", len(present), unknown)
		}
	}
}

func TestAutomaticHealsBeforeTheNextStart(t *testing.T) {
	p := newPlace(t, Automatic)
	p.start(t)
	for round := range 5 {
		p.renew()
		p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
		must(t, p.Start(p.point))
		p.mustShow(t, p.point, filepath.Join(p.Volume(p.pod, kubelettest.ConfigMap, "configmap"), "key"))
		st, err := mount.Inspect(p.point)
		must(t, err)
		if st.Deleted {
			t.Fatalf("round %d: %+v is there", round, st)
		}
	}
	p.hearsNothingMore(t)
}

func TestWhatHappenedWhileNobodyWatched(t *testing.T) {
	p := newPlace(t, Observe)
	p.renew()
	stop := p.start(t)
	p.hears(t, "found StaleSubPath in app of web at 0")
	stop()
	p.guard = &Sentinel{Mode: Automatic, Kubelet: p.Node, Pods: p, Observer: p}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.guard.Run(ctx) }()
	p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

func TestPodThatIsKnownLate(t *testing.T) {
	p := newPlace(t, Automatic)
	p.pods = map[string]*corev1.Pod{}
	p.renew()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.guard.Run(ctx) }()
	p.await(t, "to see the bind", func(s Status) bool { return s.Binds == 1 })
	if !p.mounted(t) {
		t.Error("a bind of a pod that nobody knows was unmounted")
	}
	p.put(p.pod)
	p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

// TestDirectoryOfTheContainers has a directory of an emptyDir removed, and moved away and made anew.
func TestDirectoryOfTheContainers(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, dir string){
		"removed": func(t *testing.T, dir string) { must(t, os.Remove(dir)) },
		"removed and made anew": func(t *testing.T, dir string) {
			must(t, os.Remove(dir))
			must(t, os.Mkdir(dir, 0o755))
		},
		"moved away and made anew": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".bak"))
			must(t, os.Mkdir(dir, 0o755))
		},
		"moved away and made anew later": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".bak"))
			time.Sleep(100 * time.Millisecond) // it is seen to be gone
			must(t, os.Mkdir(dir, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, Automatic)
			p.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "a/sub dir"}}
			dir := filepath.Join(p.Volume(p.pod, kubelettest.EmptyDir, "empty"), "a", "sub dir")
			must(t, os.MkdirAll(dir, 0o755))
			point := p.Point(p.pod, "empty", "sidecar", 0)
			p.Bind(dir, point)
			p.put(p.pod)
			p.start(t)
			must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
			must(t, os.Remove(filepath.Join(dir, "file")))
			p.hearsNothingMore(t)
			lose(t, dir)
			p.hears(t, "found StaleSubPath in sidecar of web at 0", "repaired StaleSubPath in sidecar of web: <nil>")
			if _, err := mount.Inspect(point); !errors.Is(err, mount.ErrNotMounted) {
				p.mustShow(t, point, dir)
			}
			p.hearsNothingMore(t)
		})
	}
}

// TestStartUnderWay has the source of a bind go, with nothing in its place, while the container is being started: it would
// get the empty directory below the bind.
func TestStartUnderWay(t *testing.T) {
	p := newPlace(t, Automatic)
	p.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "sub"}}
	dir := filepath.Join(p.Volume(p.pod, kubelettest.EmptyDir, "empty"), "sub")
	must(t, os.Mkdir(dir, 0o755))
	point := p.Point(p.pod, "empty", "sidecar", 0)
	p.Bind(dir, point)
	starting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	p.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sidecar", State: starting}}
	p.put(p.pod)
	p.start(t)
	must(t, os.Remove(dir))
	p.hears(t, "found StaleSubPath in sidecar of web at 0")
	if st, err := mount.Inspect(point); err != nil || !st.Deleted {
		t.Errorf("at the point: %+v, %v, want the stale bind", st, err)
	}
	p.hearsNothingMore(t)
	p.pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("sidecar")}
	p.put(p.pod)
	p.hears(t, "repaired StaleSubPath in sidecar of web: <nil>")
}

// TestSourceThatIsReplacedAllTheTime costs no more repairs than are allowed.
func TestSourceThatIsReplacedAllTheTime(t *testing.T) {
	p := newPlace(t, Automatic)
	p.start(t)
	began := time.Now()
	for range repairBurst + 1 {
		p.renew()
		p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	}
	if took := time.Since(began); took < repairRefill {
		t.Errorf("%d repairs took %s, want that the last has waited for %s", repairBurst+1, took, repairRefill)
	}
}

// TestNoiseHidesNothing has a source go while its attributes are being changed in a loop.
func TestNoiseHidesNothing(t *testing.T) {
	p := newPlace(t, Automatic)
	p.start(t)
	source := filepath.Join(p.Volume(p.pod, kubelettest.ConfigMap, "configmap"), "..data", "key")
	for i := range 5000 {
		must(t, os.Chmod(source, 0o600+os.FileMode(i%2)))
	}
	p.renew()
	p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
}

// TestKubeletInItsOwnNamespace has the sentinel watch and heal where it is not itself.
func TestKubeletInItsOwnNamespace(t *testing.T) {
	p := newPlace(t, Automatic)
	holder := kerneltest.Start(t, "hold")
	node, err := (&kubelet.Finder{PID: holder.PID, Root: p.Root}).Node(t.Context())
	must(t, err)
	p.guard.Kubelet = node
	p.start(t)
	before := p.Mounts()
	p.renew()
	p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	var st mount.State
	if err := node.Do(t.Context(), func() (err error) { st, err = mount.Inspect(p.point); return err }); err != nil || st.Deleted {
		t.Errorf("in the kubelet's namespace: %+v, %v, want the new file", st, err)
	}
	if diff := cmp.Diff(before, p.Mounts()); diff != "" {
		t.Errorf("mounts of another namespace (-before +after):\n%s", diff)
	}
}

// TestKubeletThatMendsItsBinds is left alone, until one that does not comes in its place.
func TestKubeletThatMendsItsBinds(t *testing.T) {
	p := newPlace(t, Automatic)
	old := p.Node
	text, err := os.ReadFile(old.Program)
	must(t, err)
	old.Program = filepath.Join(p.Root, "kubelet-1.18")
	must(t, os.WriteFile(old.Program, text, 0o755))
	p.Renews(true)
	finder := &swap{node: p.Node}
	p.guard.Kubelet = finder
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.guard.Run(ctx) }()
	p.renew()
	p.await(t, "to watch", func(s Status) bool { return s.Watching })
	if s := p.guard.Status(); s.Binds != 0 || !p.mounted(t) {
		t.Errorf("%+v, mounted: %v", s, p.mounted(t))
	}
	p.hearsNothingMore(t)
	finder.set(old)
	p.hears(t, "found StaleSubPath in app of web at 0", "repaired StaleSubPath in app of web: <nil>")
	cancel()
	must(t, <-done)
}

// TestKubeletIsReplaced has another kubelet come, in another mount namespace: what was told before is not told again.
func TestKubeletIsReplaced(t *testing.T) {
	p := newPlace(t, Observe)
	finder := &swap{node: p.Node}
	p.guard.Kubelet = finder
	p.start(t)
	p.renew()
	p.hears(t, "found StaleSubPath in app of web at 0")
	again, err := kubelet.Own(p.Root)
	must(t, err)
	finder.set(again)
	p.mountFor(p.pod, "downward")
	p.put(p.pod)
	p.await(t, "to see the other bind", func(s Status) bool { return s.Binds == 2 && s.Present[fault.StaleSubPath] == 1 })
	p.hearsNothingMore(t)
}

// TestLeftAlone has things happen that look like the fault and are none.
func TestLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, p *place)
		want []string
	}{
		"attributes changed in a loop": {do: func(t *testing.T, p *place) {
			for i := range 5000 {
				must(t, os.Chmod(p.point, 0o600+os.FileMode(i%2)))
			}
		}},
		"another name for the file": {do: func(t *testing.T, p *place) {
			must(t, os.Link(filepath.Join(p.Volume(p.pod, kubelettest.ConfigMap, "configmap"), "..data", "key"), filepath.Join(p.Root, "link")))
		}},
		"pod is being deleted": {do: func(_ *testing.T, p *place) {
			p.pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.put(p.pod)
			p.renew()
		}},
		"spec does not ask for it": {do: func(_ *testing.T, p *place) {
			p.pod.Spec.Containers[0].VolumeMounts = nil
			p.put(p.pod)
			p.renew()
		}},
		"key is gone from the ConfigMap": {
			do: func(_ *testing.T, p *place) {
				p.Update(p.pod, kubelettest.ConfigMap, "configmap", map[string]string{"other": "two"})
			},
			want: []string{"found MissingBindSource in app of web at 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, Automatic)
			p.start(t)
			before := p.Mounts()
			c.do(t, p)
			p.hears(t, c.want...)
			// A second bind that becomes stale afterwards is the proof that the first was looked at.
			other := kubelettest.NewPod()
			other.UID, other.Name = "other", "other"
			p.mountFor(other, "configmap")
			p.put(other)
			p.await(t, "to see the other bind", func(s Status) bool { return s.Binds == 2 })
			p.Update(other, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
			p.hears(t, "found StaleSubPath in app of other at 0", "repaired StaleSubPath in app of other: <nil>")
			after := p.Mounts()
			maps.DeleteFunc(after, func(m string, _ bool) bool { return strings.Contains(m, "/pods/other/") })
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("mounts (-before +after):\n%s", diff)
			}
			p.hearsNothingMore(t)
		})
	}
}

// TestBurst has one ConfigMap of 500 pods change at once.
func TestBurst(t *testing.T) {
	crowd := kerneltest.Fewer(500)
	p := newPlace(t, Automatic)
	var pods []*corev1.Pod
	for i := range crowd {
		pod := kubelettest.NewPod()
		pod.UID, pod.Name = types.UID(fmt.Sprintf("uid-%d", i)), fmt.Sprintf("pod-%03d", i)
		p.mountFor(pod, "configmap")
		p.put(pod)
		pods = append(pods, pod)
	}
	p.start(t)
	p.await(t, "to see all binds", func(s Status) bool { return s.Binds == crowd+1 && s.Unwatched == 0 })
	for _, pod := range pods {
		p.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	}
	for i := range crowd {
		name := fmt.Sprintf("pod-%03d", i)
		p.hears(t, "found StaleSubPath in app of "+name+" at 0", "repaired StaleSubPath in app of "+name+": <nil>")
	}
	for _, pod := range pods {
		p.mustShow(t, p.Point(pod, "configmap", "app", 0), filepath.Join(p.Volume(pod, kubelettest.ConfigMap, "configmap"), "key"))
	}
	p.mustShow(t, p.point, filepath.Join(p.Volume(p.pod, kubelettest.ConfigMap, "configmap"), "key"))
	p.hearsNothingMore(t)
}

func TestTroubleIsTold(t *testing.T) {
	p := newPlace(t, Observe)
	p.guard.Kubelet = nowhere{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.guard.Run(ctx) }()
	if got := <-p.heard; !strings.Contains(got, "kubelet not found") {
		t.Errorf("heard %q", got)
	}
	cancel()
	must(t, <-done)
}

// nowhere finds no kubelet.
type nowhere struct{}

func (nowhere) Node(context.Context) (*kubelet.Node, error) { return nil, kubelet.ErrNotFound }

// swap finds one kubelet now and another later.
type swap struct {
	mu   sync.Mutex
	node *kubelet.Node
}

func (s *swap) set(n *kubelet.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = n
}

func (s *swap) Node(context.Context) (*kubelet.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node, nil
}
