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
		must(t, sys.NewMount(loopback.Attach(t, image), dir, "ext4", ""))
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

// TestKubeletsDoWhatTheTableSays has each kubelet meet each stale bind: at a start, and when the pod goes.
func TestKubeletsDoWhatTheTableSays(t *testing.T) {
	for _, version := range Versions {
		dir := os.Getenv(program.Env)
		if dir == "" {
			dir = t.TempDir()
			must(t, Build(t.Context(), version, dir))
		}
		file := filepath.Join(dir, Program(version))
		for kind, begin := range volumes {
			for _, change := range []string{"deleted", "made again", "moved away"} {
				t.Run(version+"/"+kind+"/"+change, func(t *testing.T) {
					s := &scene{t, file, t.TempDir(), t.TempDir()}
					s.compare(kind, begin(t, s.volume)[change])
				})
			}
		}
		for change, answer := range map[string]sys.Errno{"forgotten": sys.ENOENT, "stale": sys.ESTALE, "without links": 0} {
			t.Run(version+"/fuse/"+change, func(t *testing.T) {
				v := volumetest.New(t)
				s := &scene{t, file, v.Node.PodDir(string(v.Pod.UID)), v.Point}
				must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
				s.compare("fuse.memory", func() { v.Delete("sub", answer, true) })
			})
		}
		t.Run(version+"/fuse/killed", func(t *testing.T) {
			v := volumetest.New(t)
			s := &scene{t, file, v.Node.PodDir(string(v.Pod.UID)), v.Point}
			must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
			s.compare("fuse.memory", func() {
				v.Kill()
				v.Remount("new")
				must(t, systest.UnmountPath(v.Point, true))
				must(t, sys.BindMount(filepath.Join(v.Staging, v.Dir), v.Point))
				must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
			})
		})
	}
}

// compare has the kubelet bind, lets something happen to the source, and compares what the kubelet does then with what is
// said about it.
func (s *scene) compare(fsType string, happen func()) {
	t := s.t
	t.Cleanup(func() {
		for systest.UnmountPath(s.point(), true) == nil {
		}
	})
	must(t, s.run("prepare"))
	if !s.isRenewed() {
		t.Fatal("the kubelet has not bound the subPath")
	}
	happen()
	seen := kubelet.StaleBind{FSType: fsType, Errno: s.lstat()}
	habits := (&kubelet.Node{Program: s.program}).Habits()
	atStart, why := habits.AtStart(seen)
	failed := s.run("prepare")
	if renewed := failed == nil && s.isRenewed(); atStart != kubelet.HabitUnknown && renewed != (atStart == kubelet.Renews) {
		t.Errorf("at a start, %v: renewed: %v (%v), want %q: %s", seen.Errno, renewed, failed, atStart, why)
	}
	if atStart == kubelet.Renews {
		return // the bind is not stale any more
	}
	atEnd, why := habits.AtEnd(seen)
	failed = s.run("clean")
	if gone := failed == nil && !s.isMounted(); atEnd != kubelet.HabitUnknown && gone != (atEnd == kubelet.Renews) {
		t.Errorf("when the pod goes, %v: gone: %v (%v), want %q: %s", seen.Errno, gone, failed, atEnd, why)
	}
	t.Logf("%s that answers %v: at a start %q, at the end %q", fsType, seen.Errno, atStart, atEnd)
}
