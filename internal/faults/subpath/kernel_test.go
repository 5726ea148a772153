// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
)

func TestMain(m *testing.M) { kerneltest.Main(m, nil) }

var must = kerneltest.Must

// boundPod is a pod of one container that has one subPath bound.
type boundPod struct {
	*kubelettest.Scene
	pod   *corev1.Pod
	point string
}

// newBoundPod makes a volume with one entry and binds it for container app.
func newBoundPod(t *testing.T, plugin, volume, entry string) boundPod {
	t.Helper()
	b := boundPod{Scene: kubelettest.New(t), pod: kubelettest.NewPod()}
	b.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: "/x", SubPath: entry}}
	dir := b.Volume(b.pod, plugin, volume)
	if plugin == kubelettest.EmptyDir {
		must(t, os.MkdirAll(filepath.Join(dir, entry), 0o755))
	} else {
		b.Update(b.pod, plugin, volume, map[string]string{entry: "one"})
	}
	b.point = b.Point(b.pod, volume, "app", 0)
	b.Bind(filepath.Join(dir, entry), b.point)
	return b
}

func (b boundPod) inspectPod(t *testing.T) []Bind {
	t.Helper()
	report, err := Inspect(t.Context(), b.Node, Sources{}, b.pod, "")
	must(t, err)
	return report.Binds
}

func (b boundPod) verdictOf(t *testing.T) Verdict {
	t.Helper()
	binds := b.inspectPod(t)
	if len(binds) != 1 || binds[0].State.Point != b.point {
		t.Fatalf("binds = %+v, want one at %q", binds, b.point)
	}
	return binds[0].Verdict
}

func TestUpdateMakesBindStale(t *testing.T) {
	for _, plugin := range []struct{ name, volume string }{
		{kubelettest.ConfigMap, "configmap"}, {kubelettest.Secret, "secret"}, {kubelettest.Projected, "projected"}, {kubelettest.DownwardAPI, "downward"},
	} {
		t.Run(plugin.volume, func(t *testing.T) {
			b := newBoundPod(t, plugin.name, plugin.volume, "sp ace\\and\nline")
			if v := b.verdictOf(t); v != Alive {
				t.Fatalf("before the update: %s", v)
			}
			must(t, b.Start(b.point))
			b.Update(b.pod, plugin.name, plugin.volume, map[string]string{"sp ace\\and\nline": "two"})
			if v := b.verdictOf(t); v != Stale {
				t.Errorf("after the update: %s, want %s", v, Stale)
			}
			if err := b.Start(b.point); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a container starts with %v, want ENOENT: the scene is not that of the fault", err)
			}
		})
	}
}

func TestSecretOnItsOwnFileSystem(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "secret", MountPath: "/x", SubPath: "tls.crt"}}
	dir := s.Volume(pod, kubelettest.Secret, "secret")
	must(t, mount.Tmpfs(dir, 1<<20))
	version := s.Update(pod, kubelettest.Secret, "secret", map[string]string{"tls.crt": "one"})
	b := boundPod{Scene: s, pod: pod, point: s.Point(pod, "secret", "app", 0)}
	b.Bind(filepath.Join(dir, "tls.crt"), b.point)
	b.Update(pod, kubelettest.Secret, "secret", map[string]string{"tls.crt": "two"})
	got := b.inspectPod(t)[0]
	if got.Verdict != Stale {
		t.Errorf("verdict %s, want %s", got.Verdict, Stale)
	}
	if want := "/" + filepath.Base(version) + "/tls.crt//deleted"; got.State.Root != want {
		t.Errorf("root %q, want %q, relative to the tmpfs", got.State.Root, want)
	}
	if want := version + "/tls.crt//deleted"; got.Source != want {
		t.Errorf("source %q, want %q on the host", got.Source, want)
	}
}

func TestKeyThatIsGoneForGood(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	b.Update(b.pod, kubelettest.ConfigMap, "configmap", map[string]string{"other.ini": "two"})
	must(t, os.Remove(filepath.Join(b.Volume(b.pod, kubelettest.ConfigMap, "configmap"), "app.ini")))
	if v := b.verdictOf(t); v != SourceGone {
		t.Errorf("verdict %s, want %s", v, SourceGone)
	}
}

// TestEmptyDir has something happen to a directory that happens to no file, see TestEveryKindOfVolume.
func TestEmptyDir(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, source string)
		want   Verdict
	}{
		"removed and created again": {func(t *testing.T, source string) { must(t, os.Remove(source)); must(t, os.Mkdir(source, 0o755)) }, Stale},
		"a link that leads out": {func(t *testing.T, source string) {
			must(t, os.Rename(source, source+".bak"))
			must(t, os.Symlink("/", source))
		}, Alive},
		"a link that climbs out": {func(t *testing.T, source string) {
			must(t, os.Rename(source, source+".bak"))
			must(t, os.Symlink("../../../../..", source))
		}, Alive},
		"a directory called deleted": {func(t *testing.T, source string) { must(t, os.Mkdir(filepath.Join(source, "deleted"), 0o755)) }, Alive},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoundPod(t, kubelettest.EmptyDir, "empty", "sub")
			c.change(t, filepath.Join(b.Volume(b.pod, kubelettest.EmptyDir, "empty"), "sub"))
			if v := b.verdictOf(t); v != c.want {
				t.Errorf("verdict %s, want %s", v, c.want)
			}
		})
	}
}

func TestFileCalledDeletedIsAlive(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "deleted")
	if v := b.verdictOf(t); v != Alive {
		t.Errorf("verdict %s, want %s", v, Alive)
	}
}

func TestStackShowsWhatIsVisible(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	beneath, err := mount.Inspect(b.point)
	must(t, err)
	second := filepath.Join(b.Root, "second")
	must(t, os.WriteFile(second, nil, 0o644))
	b.Stack(second, b.point)
	must(t, os.Remove(second))
	got := b.inspectPod(t)
	if len(got) != 1 || got[0].Verdict != Stale || got[0].HiddenMounts != 1 || got[0].State.Same(beneath.ID) {
		t.Fatalf("binds = %+v, want the upper one, stale, with one beneath", got)
	}
	if f := got[0].findingOf(fault.Pod{}, b.pod, 0); f.Mount.ID != got[0].State.UniqueID || !slices.Contains(f.Evidence, "mounts beneath it at the same place: 1") {
		t.Errorf("finding = %+v, want the upper mount and a word about the lower", f)
	}
}

func TestOtherMountsAreNotTakenForBinds(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	source := filepath.Join(b.Root, "source")
	must(t, os.WriteFile(source, nil, 0o644))
	other := kubelettest.NewPod()
	other.UID = "other"
	strange := []string{b.Point(b.pod, "configmap", "app", 10), b.Point(b.pod, "configmap", "sidecar", 0), b.Point(b.pod, "secret", "app", 0)}
	for _, point := range append(strange, b.Point(other, "configmap", "app", 0)) {
		b.Bind(source, point)
	}
	must(t, os.Remove(source))
	report, err := Inspect(t.Context(), b.Node, Sources{}, b.pod, "")
	must(t, err)
	if len(report.Stale()) != 0 || len(report.Binds) != 1 {
		t.Errorf("binds = %+v, want the one that the pod asks for, alive", report.Binds)
	}
	if diff := cmp.Diff(strange, report.Unexpected); diff != "" {
		t.Errorf("strangers (-want +got):\n%s", diff)
	}
}

func TestRootBehindLinks(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	b.Update(b.pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
	link := filepath.Join(filepath.Dir(b.Root), "link")
	must(t, os.Symlink(filepath.Base(b.Root), link))
	real := b.Root
	b.Root = link
	b.Reopen()
	if b.Node.Root != real || b.verdictOf(t) != Stale {
		t.Errorf("root %q, want %q and the bind stale", b.Node.Root, real)
	}
}
