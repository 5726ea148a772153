// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// volumeForm is a kind of volume whose content is not the kubelet's.
type volumeForm struct {
	volume string // in the pod
	name   string // the kubelet's, which is in the path of the bind
	// make returns the directory of the volume, and sets in the pod what is to be set.
	make func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string
}

// setHostPath has the pod's volume "host" come from path.
func setHostPath(pod *corev1.Pod, path string) {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].HostPath != nil {
			pod.Spec.Volumes[i].HostPath.Path = path
		}
	}
}

func mkdir(t *testing.T, elements ...string) string {
	t.Helper()
	dir := filepath.Join(elements...)
	must(t, os.MkdirAll(dir, 0o755))
	return dir
}

// volumeForms are made in all ways in which a volume comes to a node.
var volumeForms = map[string]volumeForm{
	"emptyDir": {"empty", "empty", func(_ *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		return s.Volume(pod, kubelettest.EmptyDir, "empty")
	}},
	"emptyDir in memory": {"empty", "empty", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := s.Volume(pod, kubelettest.EmptyDir, "empty")
		must(t, mount.Tmpfs(dir, 1<<20))
		return dir
	}},
	"hostPath": {"host", "host", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := mkdir(t, s.Root, "..", "host dir")
		setHostPath(pod, dir+"/")
		return dir
	}},
	"hostPath behind links": {"host", "host", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := mkdir(t, s.Root, "..", "disk", "data")
		top := filepath.Join(s.Root, "..", "var")
		must(t, os.Symlink("disk/../disk", top))
		must(t, os.Symlink(top+"/data", filepath.Join(s.Root, "..", "app")))
		setHostPath(pod, filepath.Join(s.Root, "..", "app"))
		return dir
	}},
	"hostPath on a mount": {"host", "host", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := mkdir(t, s.Root, "..", "disk", "data")
		must(t, mount.Tmpfs(dir, 1<<20))
		setHostPath(pod, dir)
		return dir
	}},
	"local PersistentVolume": {"claim", "local-pv-1", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := s.Volume(pod, "kubernetes.io/local-volume", "local-pv-1")
		must(t, mount.Bind(mkdir(t, s.Root, "..", "disk"), dir))
		return dir
	}},
	"CSI PersistentVolume": {"claim", "pvc-0b1c", func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		dir := mkdir(t, s.Volume(pod, "kubernetes.io/csi", "pvc-0b1c"), "mount")
		must(t, mount.Tmpfs(dir, 1<<20))
		return dir
	}},
	"in-tree PersistentVolume": {"claim", "pv-ebs", func(_ *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		s.Volume(pod, "kubernetes.io/csi", "another")
		return s.Volume(pod, "kubernetes.io/aws-ebs", "pv-ebs")
	}},
	"FlexVolume": {"flex", "flex", func(_ *testing.T, s *kubelettest.Scene, pod *corev1.Pod) string {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "flex", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{}}})
		return s.Volume(pod, "example.com/disk", "flex")
	}},
}

// sourceChange is what is done to a source.
type sourceChange struct {
	do   func(t *testing.T, source string)
	want Verdict
	// starts says whether the kernel lets a container have the bind.
	starts bool
}

var sourceChanges = map[string]sourceChange{
	"nothing":  {func(*testing.T, string) {}, Alive, true},
	"removed":  {func(t *testing.T, source string) { must(t, os.Remove(source)) }, Stale, false},
	"replaced": {func(t *testing.T, source string) { must(t, replaceFile(source)) }, Stale, false},
	"moved":    {func(t *testing.T, source string) { must(t, os.Rename(source, source+".bak")) }, Alive, true},
	"moved and created again": {func(t *testing.T, source string) {
		must(t, os.Rename(source, source+".bak"))
		must(t, os.WriteFile(source, nil, 0o644))
	}, Stale, true},
	"moved, and a link to it": {func(t *testing.T, source string) {
		must(t, os.Rename(source, source+".bak"))
		must(t, os.Symlink(filepath.Base(source)+".bak", source))
	}, Alive, true},
	"unlinked, another link left": {func(t *testing.T, source string) {
		must(t, os.Link(source, source+".bak"))
		must(t, os.Remove(source))
	}, Stale, false},
	"unlinked and linked again": {func(t *testing.T, source string) {
		must(t, os.Link(source, source+".bak"))
		must(t, os.Remove(source))
		must(t, os.Link(source+".bak", source))
	}, Stale, false},
	"written to": {func(t *testing.T, source string) { must(t, os.WriteFile(source, []byte("two"), 0o644)) }, Alive, true},
}

// replaceFile writes a new file in place of the old one as editors do.
func replaceFile(source string) error {
	return errors.Join(os.WriteFile(source+".new", []byte("two"), 0o644), os.Rename(source+".new", source))
}

// putFile makes a file below dir.
func putFile(t *testing.T, dir, name string) string {
	t.Helper()
	source := filepath.Join(dir, name)
	mkdir(t, filepath.Dir(source))
	must(t, os.WriteFile(source, []byte("one"), 0o644))
	return source
}

// bindSubPath has a container mount a subPath of the form, and binds it.
func (f volumeForm) bindSubPath(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod, m corev1.VolumeMount) boundPod {
	t.Helper()
	m.Name, m.MountPath = f.volume, "/x"
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{m}
	return boundPod{Scene: s, pod: pod, point: s.Point(pod, f.name, "app", 0)}
}

func TestEveryKindOfVolume(t *testing.T) {
	for kind, f := range volumeForms {
		for what, c := range sourceChanges {
			t.Run(kind+"/"+what, func(t *testing.T) {
				s, pod := kubelettest.New(t), kubelettest.NewPod()
				source := putFile(t, f.make(t, s, pod), "a b\\c\nd/é")
				b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: "a b\\c\nd/é"})
				b.Bind(source, b.point)
				c.do(t, source)
				if v := b.verdictOf(t); v != c.want {
					t.Errorf("verdict %s, want %s: %s", v, c.want, b.inspectPod(t)[0].Reason)
				}
				if err := b.Start(b.point); (err == nil) != c.starts {
					t.Errorf("a container starts with %v: the scene is not what it should be", err)
				}
			})
		}
	}
}

// podWithLabel is on the node my-node and has a label for variables.
func podWithLabel() *corev1.Pod {
	pod := kubelettest.NewPod()
	pod.Labels, pod.Spec.NodeName = map[string]string{"app": "shop"}, "my-node"
	return pod
}

func TestSubPathExpr(t *testing.T) {
	fieldRef := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	for name, c := range map[string]struct {
		expr string
		env  []corev1.EnvVar
		dir  string
		want Verdict
	}{
		"name":       {"logs/$(POD)", []corev1.EnvVar{{Name: "POD", ValueFrom: fieldRef("metadata.name")}}, "logs/web", Stale},
		"nested":     {"$(B)", []corev1.EnvVar{{Name: "A", ValueFrom: fieldRef("spec.nodeName")}, {Name: "B", Value: "x$$y/$(A)"}}, "x$y/my-node", Stale},
		"label":      {"$(L)", []corev1.EnvVar{{Name: "L", ValueFrom: fieldRef("metadata.labels['app']")}}, "shop", Stale},
		"not known":  {"$(S)", []corev1.EnvVar{{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}, "secret", Alive},
		"service":    {"$(KUBERNETES_SERVICE_HOST)", nil, "10.0.0.1", Alive},
		"no such":    {"$(POD)", nil, "$(POD)", Alive},
		"no pattern": {"plain", nil, "plain", Stale},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod, f := kubelettest.New(t), podWithLabel(), volumeForms["emptyDir"]
			pod.Spec.Containers[0].Env = c.env
			source := putFile(t, f.make(t, s, pod), c.dir)
			b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPathExpr: c.expr})
			b.Bind(source, b.point)
			if v := b.verdictOf(t); v != Alive {
				t.Fatalf("at first: %s", v)
			}
			sourceChanges["moved and created again"].do(t, source)
			if v := b.verdictOf(t); v != c.want {
				t.Errorf("moved and created again: %s, want %s", v, c.want)
			}
			must(t, os.Remove(source+".bak"))
			if v := b.verdictOf(t); v != Stale {
				t.Errorf("removed: %s, want %s", v, Stale)
			}
		})
	}
}

// TestLinksInVolume has the way to the source lead over links.
func TestLinksInVolume(t *testing.T) {
	for name, c := range map[string]struct {
		link string // to "releases/1", in the volume; VOLUME is the volume's directory
		now  string // where it leads afterwards
		want Verdict
	}{
		"relative":                     {"releases/1", "releases/2", Stale},
		"relative, the same":           {"releases/1", "./releases/../releases/1", Alive},
		"absolute":                     {"VOLUME/releases/1", "VOLUME/releases/2", Stale},
		"absolute, the same":           {"VOLUME/releases/1", "releases/1", Alive},
		"absolute over an absolute":    {"VOLUME/abs/1", "VOLUME/abs/2", Stale},
		"relative over an absolute":    {"abs/1", "abs/2", Stale},
		"leads out":                    {"releases/1", "/", Alive},
		"leads to a twin outside":      {"releases/1", "VOLUME/../twin", Alive},
		"climbs to a twin outside":     {"releases/1", "../twin", Alive},
		"names a twin outside":         {"releases/1", "TWIN", Alive},
		"leads nowhere":                {"releases/1", "releases/3", Alive},
		"leads to itself":              {"releases/1", "current", Alive},
		"absolute, leads to itself":    {"releases/1", "VOLUME/current", Alive},
		"leads over another mount":     {"releases/1", "other", Alive},
		"absolute, over another mount": {"releases/1", "VOLUME/other", Alive},
		"over /proc":                   {"releases/1", "/proc/self/cwd", Alive},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod, f := kubelettest.New(t), kubelettest.NewPod(), volumeForms["hostPath"]
			dir := f.make(t, s, pod)
			twin := mkdir(t, dir, "..", "twin")
			putFile(t, twin, "conf/key")
			link := func(target string) {
				target = strings.NewReplacer("VOLUME", dir, "TWIN", twin).Replace(target)
				must(t, os.Symlink(target, filepath.Join(dir, "current.new")))
				must(t, os.Rename(filepath.Join(dir, "current.new"), filepath.Join(dir, "current")))
			}
			source := putFile(t, dir, "releases/1/conf/key")
			putFile(t, dir, "releases/2/conf/key")
			must(t, os.Symlink(dir+"/releases", filepath.Join(dir, "abs")))
			must(t, mount.Tmpfs(mkdir(t, dir, "other"), 1<<20))
			putFile(t, dir, "other/conf/key")
			link(c.link)
			b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: "current/conf/key"})
			b.Bind(source, b.point)
			if got := b.inspectPod(t)[0]; got.Verdict != Alive || !got.SourceUnchanged {
				t.Fatalf("at first: %s, same: %v, want that the link is followed", got.Verdict, got.SourceUnchanged)
			}
			link(c.now)
			if v := b.verdictOf(t); v != c.want {
				t.Errorf("verdict %s, want %s", v, c.want)
			}
		})
	}
}

// TestVolumeThatIsNotMounted has the directory of a volume show what lies beneath it.
func TestVolumeThatIsNotMounted(t *testing.T) {
	s, pod, f := kubelettest.New(t), kubelettest.NewPod(), volumeForms["CSI PersistentVolume"]
	beneath := mkdir(t, s.Volume(pod, "kubernetes.io/csi", f.name), "mount")
	putFile(t, beneath, "sub")
	source := putFile(t, f.make(t, s, pod), "sub")
	b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: "sub"})
	b.Bind(source, b.point)
	must(t, systest.UnmountPath(beneath, true))
	if v := b.verdictOf(t); v != Unproven {
		t.Errorf("not mounted: %s, want %s", v, Unproven)
	}
	must(t, mount.Tmpfs(beneath, 1<<20))
	putFile(t, beneath, "sub")
	if v := b.verdictOf(t); v != Stale {
		t.Errorf("another file system is mounted: %s, want %s", v, Stale)
	}
}

// TestOtherFileSystems has the volume on a file system that is not known to number its files for good.
func TestOtherFileSystems(t *testing.T) {
	for what, want := range map[string]Verdict{
		"nothing": Alive, "removed": Stale, "replaced": Stale, "moved and created again": Alive, "unlinked, another link left": Unproven,
	} {
		t.Run(what, func(t *testing.T) {
			s, pod, f := kubelettest.New(t), kubelettest.NewPod(), volumeForms["hostPath"]
			dir := f.make(t, s, pod)
			must(t, sys.NewMount("ramfs", dir, "ramfs", ""))
			t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
			source := putFile(t, dir, "sub")
			b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: "sub"})
			b.Bind(source, b.point)
			sourceChanges[what].do(t, source)
			if v := b.verdictOf(t); v != want {
				t.Errorf("verdict %s, want %s", v, want)
			}
		})
	}
}

// TestTwoPluginsWithOneName leaves open which of them the bind is from.
func TestTwoPluginsWithOneName(t *testing.T) {
	s, pod, f := kubelettest.New(t), kubelettest.NewPod(), volumeForms["in-tree PersistentVolume"]
	source := putFile(t, f.make(t, s, pod), "sub")
	putFile(t, mkdir(t, s.Volume(pod, "kubernetes.io/csi", f.name), "mount"), "sub")
	b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: "sub"})
	b.Bind(source, b.point)
	sourceChanges["moved and created again"].do(t, source)
	if v := b.verdictOf(t); v != Alive {
		t.Errorf("verdict %s, want %s", v, Alive)
	}
}

// TestInspectBindReadsNoTable counts the bytes that are read at a look: a mount table costs 3 microseconds a line.
func TestInspectBindReadsNoTable(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	kerneltest.Needs(t, sys.HasCachedLookup)
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	for name, pod := range map[string]*corev1.Pod{"with the pod": b.pod, "without": nil} {
		for _, state := range []string{"alive", "stale"} {
			look := func() {
				if _, there, err := InspectBind(b.Node, pod, b.point, nil); err != nil || !there {
					t.Fatalf("there: %v, %v", there, err)
				}
			}
			look() // fills the kernel's cache of names
			before := bytesRead(t)
			look()
			if read := bytesRead(t) - before; read > 512 {
				t.Errorf("%s, %s: %d bytes were read", name, state, read)
			}
			b.Update(b.pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
		}
	}
}

// bytesRead is what the process has read, but for what this very call reads.
func bytesRead(t *testing.T) int {
	t.Helper()
	text, err := sys.ReadProc("self/io", nil)
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "rchar: ")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return n
}
