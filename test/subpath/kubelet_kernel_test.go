// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/loopback"
	"kubediag.org/kubediag/test/program"
)

func TestMain(m *testing.M) { volumetest.Main(m) }

var must = kerneltest.Must

// scene is a pod with one volume, and a kubelet that binds its subPath "sub".
type scene struct {
	t                    *testing.T
	program, pod, volume string
}

func (s *scene) point() string { return filepath.Join(s.pod, "volume-subpaths/claim/app/0") }

// run has the kubelet prepare or clean. A kubelet does so again and again; a second try shows whether that helps.
func (s *scene) run(verb string) error {
	var err error
	for range 2 {
		var out []byte
		if out, err = exec.Command(s.program, verb, s.pod, s.volume, "sub").CombinedOutput(); err == nil {
			return nil
		}
		err = errors.New(string(out))
	}
	return err
}

// lstat is what a kubelet gets for the bind.
func (s *scene) lstat() (errno sys.Errno) {
	_, err := os.Lstat(s.point())
	if err != nil && !errors.As(err, &errno) {
		s.t.Fatal(err)
	}
	return errno
}

// isRenewed reports whether what the subPath names now is bound.
func (s *scene) isRenewed() bool {
	now, err := os.Stat(filepath.Join(s.volume, "sub"))
	must(s.t, err)
	bound, err := os.Stat(s.point())
	return err == nil && os.SameFile(now, bound)
}

func (s *scene) isMounted() bool {
	table, err := mountns.Table(0)
	must(s.t, err)
	return len(table.All(s.point())) > 0
}

// volumes make a volume of each kind at a directory, and return what happens to its directory "sub".
var volumes = map[string]func(t *testing.T, dir string) map[string]func(){
	"tmpfs": func(t *testing.T, dir string) map[string]func() {
		must(t, sys.NewMount("none", dir, "tmpfs", ""))
		return localChanges(t, dir)
	},
	"ext4": func(t *testing.T, dir string) map[string]func() {
		image := filepath.Join(t.TempDir(), "image")
		must(t, os.WriteFile(image, nil, 0o600))
		must(t, os.Truncate(image, 8<<20))
		if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		device := loopback.Attach(t, image)
		t.Cleanup(func() { // after the unmount
			if !loopback.Detach(t, device, image) {
				t.Errorf("%s is still in use", device)
			}
		})
		must(t, sys.NewMount(device, dir, "ext4", ""))
		return localChanges(t, dir)
	},
}

func localChanges(t *testing.T, dir string) map[string]func() {
	sub := filepath.Join(dir, "sub")
	must(t, os.Mkdir(sub, 0o755))
	t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
	return map[string]func(){
		"deleted":    func() { must(t, os.Remove(sub)) },
		"made again": func() { must(t, errors.Join(os.Remove(sub), os.Mkdir(sub, 0o755))) },
		"moved away": func() { must(t, errors.Join(os.Rename(sub, sub+".old"), os.Mkdir(sub, 0o755))) },
	}
}

// changes of a directory on FUSE by another client, and how the daemon answers for the old one from then on.
var fuseAnswers = map[string]sys.Errno{"forgotten": sys.ENOENT, "stale": sys.ESTALE, "without links": 0}

// sees is what a kubelet does: whether it renews the bind at a start, and unmounts it when the pod goes.
type sees struct{ renews, unmounts bool }

// want is what each release was seen to do. All do the same on tmpfs and ext4.
var want = map[string]map[string]sees{
	"1.18": {"local": {false, true}, "forgotten": {false, false}, "stale": {false, true}, "without links": {false, true}, "killed": {false, true}},
	"1.36": {"local": {true, true}, "forgotten": {false, false}, "stale": {false, true}, "without links": {true, true}, "killed": {false, true}},
	"1.37": {"local": {true, true}, "forgotten": {false, false}, "stale": {true, true}, "without links": {true, true}, "killed": {true, true}},
}

// buildFor gives the program of a version.
func buildFor(t *testing.T, version string) string {
	t.Helper()
	dir := os.Getenv(program.Env)
	if dir == "" {
		dir = t.TempDir()
		must(t, Build(t.Context(), version, dir))
	}
	return filepath.Join(dir, Program(version))
}

// fuseScene is a pod with a volume on FUSE.
func fuseScene(t *testing.T, program string) (*volumetest.Scene, *scene) {
	t.Helper()
	v := volumetest.New(t)
	must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
	return v, &scene{t, program, v.Node.PodDir(string(v.Pod.UID)), v.Point}
}

// TestKubeletsDoWhatTheTableSays has each kubelet meet each stale bind: at a start, and when the pod goes.
func TestKubeletsDoWhatTheTableSays(t *testing.T) {
	for _, version := range Versions {
		file := buildFor(t, version)
		for kind, begin := range volumes {
			for _, change := range []string{"deleted", "made again", "moved away"} {
				t.Run(version+"/"+kind+"/"+change, func(t *testing.T) {
					s := &scene{t, file, t.TempDir(), t.TempDir()}
					s.compare(kind, begin(t, s.volume)[change], want[version]["local"])
				})
			}
		}
		for change, answer := range fuseAnswers {
			t.Run(version+"/fuse/"+change, func(t *testing.T) {
				v, s := fuseScene(t, file)
				s.compare("fuse.memory", func() { v.Delete("sub", answer, true) }, want[version][change])
			})
		}
		t.Run(version+"/fuse/killed", func(t *testing.T) {
			v, s := fuseScene(t, file)
			s.compare("fuse.memory", func() {
				v.Kill()
				v.Remount("new")
				must(t, systest.UnmountPath(v.Point, true))
				must(t, sys.BindMount(filepath.Join(v.Staging, v.Dir), v.Point))
				must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
			}, want[version]["killed"])
		})
	}
}

// bind has the kubelet bind the subPath.
func (s *scene) bind() {
	s.t.Helper()
	s.t.Cleanup(func() {
		for systest.UnmountPath(s.point(), true) == nil {
		}
	})
	must(s.t, s.run("prepare"))
	if !s.isRenewed() {
		s.t.Fatal("the kubelet has not bound the subPath")
	}
}

// compare has the kubelet bind, lets something happen to the source, and compares what the kubelet does then with what was
// seen before, and with the table of package kubelet.
func (s *scene) compare(fsType string, happen func(), want sees) {
	t := s.t
	s.bind()
	happen()
	seen := kubelet.StaleBind{FSType: fsType, Errno: s.lstat()}
	habits := (&kubelet.Node{Program: s.program}).Habits()
	atStart, why := habits.AtStart(seen)
	failed := s.run("prepare")
	renews := failed == nil && s.isRenewed()
	if renews != want.renews || atStart != kubelet.HabitUnknown && renews != (atStart == kubelet.Renews) {
		t.Errorf("at a start, %v: renewed: %v (%v), want %v, and the table has %q: %s", seen.Errno, renews, failed, want.renews, atStart, why)
	}
	atEnd, why := habits.AtEnd(seen)
	failed = s.run("clean")
	unmounts := failed == nil && !s.isMounted()
	if unmounts != want.unmounts || !renews && atEnd != kubelet.HabitUnknown && unmounts != (atEnd == kubelet.Renews) {
		t.Errorf("when the pod goes, %v: unmounted: %v (%v), want %v, and the table has %q: %s", seen.Errno, unmounts, failed, want.unmounts, atEnd, why)
	}
}

// TestKubeletsLetThePodGo whose dead bind kubediag has unmounted, and bind again if a container is started.
func TestKubeletsLetThePodGo(t *testing.T) {
	for _, version := range Versions {
		file := buildFor(t, version)
		for verb, healed := range map[string]func(s *scene) bool{
			"prepare": (*scene).isRenewed, "clean": func(s *scene) bool { return !s.isMounted() },
		} {
			t.Run(version+"/"+verb, func(t *testing.T) {
				v, s := fuseScene(t, file)
				s.bind()
				v.Delete("sub", sys.ENOENT, true)
				if err := s.run(verb); err == nil {
					t.Fatal("the kubelet helps itself")
				}
				v.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/sub", SubPath: "sub"}}
				podOf := func(string) *corev1.Pod { return v.Pod }
				asked, err := subpath.Ask(t.Context(), v.Inspector.Prober, v.Node, podOf, []string{s.point()})
				must(t, err)
				bind, there, err := subpath.InspectBind(v.Node, v.Pod, s.point(), asked)
				if err != nil || !there || bind.Verdict != subpath.Stale {
					t.Fatalf("%+v, %v, want a stale bind", bind, err)
				}
				ns, err := mountns.Self()
				must(t, err)
				found := bind.Finding(v.Pod, ns.Inode)
				done, err := subpath.Apply(t.Context(), v.Node, v.Pod, fault.Action{Kind: fault.Unmount, Mount: &found.Mount}, asked)
				if err != nil || done.Already {
					t.Fatalf("unmount: %+v, %v", done, err)
				}
				if err := s.run(verb); err != nil || !healed(s) {
					t.Errorf("after the unmount: %v, healed: %v", err, healed(s))
				}
			})
		}
	}
}
