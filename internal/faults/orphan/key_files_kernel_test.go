// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// keys is a volume that has the kubelet's copies of keys, and keyFile one of them.
const (
	keys    = "volumes/kubernetes.io~configmap/cfg"
	keyFile = keys + "/" + orphantest.KeyTime + "/key"
)

// leaveKeys has the pod that is gone leave such a volume behind, and the pod that lives have one of its own.
func leaveKeys(t *testing.T) *orphantest.Scene {
	t.Helper()
	s := orphantest.New(t)
	s.Must(orphantest.WriteKeys(s.Path(goneUID, keys)))
	s.Must(orphantest.WriteKeys(s.Path(orphantest.Live, keys)))
	return s
}

// keyPlan removes the volume at dir, name by name.
func keyPlan(dir string) []string {
	return []string{
		"RemoveFile " + dir + "/" + orphantest.KeyTime + "/dir/key",
		"RemoveDirectory " + dir + "/" + orphantest.KeyTime + "/dir",
		"RemoveFile " + dir + "/" + orphantest.KeyTime + "/key",
		"RemoveDirectory " + dir + "/" + orphantest.KeyTime,
		"RemoveFile " + dir + "/..data",
		"RemoveFile " + dir + "/dir",
		"RemoveFile " + dir + "/key",
		"RemoveDirectory " + dir,
	}
}

// TestRemovesKeyFiles: each kind of volume that has the kubelet's copies is emptied, and the same volumes of the pod that lives
// are left alone.
func TestRemovesKeyFiles(t *testing.T) {
	for _, plugin := range []string{"configmap", "secret", "projected", "downward-api"} {
		t.Run(plugin, func(t *testing.T) {
			s := orphantest.New(t)
			dir := "volumes/kubernetes.io~" + plugin + "/cfg"
			s.Must(orphantest.WriteKeys(s.Path(goneUID, dir)))
			s.Must(orphantest.WriteKeys(s.Path(orphantest.Live, dir)))
			live := s.Tree(orphantest.Live)
			p := onlyPod(t, s)
			if diff := cmp.Diff(keyPlan(dir), plannedPaths(p)); diff != "" {
				t.Fatalf("refusals %q, plan (-want +got):\n%s", p.Refusals, diff)
			}
			for _, step := range p.Actions {
				if !step.Lossless || step.Key().Code != fault.OrphanedPodVolumes || !strings.HasPrefix(step.Loss, "nothing") {
					t.Errorf("step = %+v", step)
				}
			}
			removeAll(t, s, p.Actions)
			if diff := cmp.Diff([]string{".", "volumes", filepath.Dir(dir)}, s.Tree(goneUID)); diff != "" {
				t.Errorf("what remains (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(live, s.Tree(orphantest.Live)); diff != "" {
				t.Errorf("of the pod that lives (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKeyFilesAfterAKill: wherever the first run ends, the next one has the same end, with a plan of its own and with the first
// one's.
func TestKeyFilesAfterAKill(t *testing.T) {
	for done := range keyPlan(keys) {
		for _, again := range []string{"new plan", "same plan"} {
			t.Run(fmt.Sprintf("%d done, %s", done+1, again), func(t *testing.T) {
				s := leaveKeys(t)
				steps := onlyPod(t, s).Actions
				removeAll(t, s, steps[:done+1])
				// The next process remembers nothing.
				s.Inspector = &orphan.Inspector{Kubelet: s.Node, Pods: s.Server, Runtime: s.Runtime, Now: s.Inspector.Now}
				first := 0
				if again == "new plan" && done+1 < len(steps) {
					if diff := cmp.Diff(keyPlan(keys)[done+1:], plannedPaths(onlyPod(t, s))); diff != "" {
						t.Errorf("plan (-want +got):\n%s", diff)
					}
					steps, first = onlyPod(t, s).Actions, done+1
				}
				for i, step := range steps {
					gone, err := s.Inspector.Apply(t.Context(), step)
					if want := first+i <= done; gone != want || err != nil {
						t.Errorf("apply %s: gone %v, %v, want gone %v", step.Target, gone, err, want)
					}
				}
				if diff := cmp.Diff([]string{".", "volumes", filepath.Dir(keys)}, s.Tree(goneUID)); diff != "" {
					t.Errorf("what remains (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// replace has put make something else in the place of a path of the pod that is gone.
func replace(s *orphantest.Scene, rel string, put func(name string) error) {
	s.Must(os.RemoveAll(s.Path(goneUID, rel)))
	s.Must(put(s.Path(goneUID, rel)))
}

// linkTo makes a symbolic link.
func linkTo(target string) func(string) error {
	return func(name string) error { return os.Symlink(target, name) }
}

// keyHazards are what is none of the kubelet's copies, or in use, with a word of the reason.
var keyHazards = map[string]struct {
	set func(t *testing.T, s *orphantest.Scene)
	why string
}{
	"a file beside them":  {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, keys+"/notes", "x") }, "may have data"},
	"an empty file there": {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, keys+"/notes", "") }, "may have data"},
	"a file instead of a key's link": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keys+"/key", func(name string) error { return os.WriteFile(name, []byte("x"), 0o600) })
	}, "may have data"},
	"a directory instead of ..data": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keys+"/..data", func(name string) error { return os.Mkdir(name, 0o755) })
		s.File(goneUID, keys+"/..data/key", "x")
	}, "may have data"},
	"a directory with a file": {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, keys+"/mine/data", "x") }, "may have data"},
	"a directory of another time": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, keys+"/..2026_11_25/key", "x")
	}, "may have data"},
	"a key's file of another plugin": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(orphantest.WriteKeys(s.Path(goneUID, "volumes/kubernetes.io~empty-dir/cache")))
	}, "may have data"},
	"a key that is called as the kubelet's own": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, keys+"/"+orphantest.KeyTime+"/..key", "x")
	}, "may have data"},
	"a link that is called as the kubelet's own": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Symlink("..data/..key", s.Path(goneUID, keys+"/..key")))
	}, "symbolic link"},
	"..data leads out": {func(_ *testing.T, s *orphantest.Scene) { replace(s, keys+"/..data", linkTo("/etc")) }, "symbolic link"},
	"..data leads up": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keys+"/..data", linkTo("../cfg/"+orphantest.KeyTime))
	}, "symbolic link"},
	"a key leads out":   {func(_ *testing.T, s *orphantest.Scene) { replace(s, keys+"/key", linkTo("/etc/passwd")) }, "symbolic link"},
	"a key leads aside": {func(_ *testing.T, s *orphantest.Scene) { replace(s, keys+"/key", linkTo("..data/dir")) }, "symbolic link"},
	"a key climbs": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keys+"/key", linkTo("..data/../../../kubernetes.io~csi/key"))
	}, "symbolic link"},
	"a link instead of a key's file": {func(_ *testing.T, s *orphantest.Scene) { replace(s, keyFile, linkTo("/etc/passwd")) }, "symbolic link"},
	"a link instead of the directory of keys": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keys+"/"+orphantest.KeyTime, linkTo(s.Path(orphantest.Live, keys+"/"+orphantest.KeyTime)))
	}, "symbolic link"},
	"a link instead of the volume": {func(_ *testing.T, s *orphantest.Scene) { replace(s, keys, linkTo(s.Path(orphantest.Live, keys))) }, "symbolic link"},
	"a pipe instead of a key's file": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keyFile, func(name string) error { return exec.Command("mkfifo", name).Run() })
	}, "neither a directory nor a regular file"},
	"a file with another name": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Link(s.Path(goneUID, keyFile), filepath.Join(s.Root, "link")))
	}, "2 names"},
	"a file of the pod that lives": {func(_ *testing.T, s *orphantest.Scene) {
		replace(s, keyFile, func(name string) error { return os.Link(s.Path(orphantest.Live, keyFile), name) })
	}, "2 names"},
	"a link with another name": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Link(s.Path(goneUID, keys+"/key"), filepath.Join(s.Root, "link")))
	}, "symbolic link"},
	"more keys than are looked at": {func(_ *testing.T, s *orphantest.Scene) {
		for i := range 4200 {
			s.File(goneUID, fmt.Sprintf("%s/%s/key-%d", keys, orphantest.KeyTime, i), "")
		}
	}, "it was not looked into"},
	"deeper than is looked": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, keys+"/"+orphantest.KeyTime+"/"+strings.Repeat("d/", 40)+"key", "")
	}, "it was not looked into"},
	"mounted on the keys": {func(t *testing.T, s *orphantest.Scene) { mountTmpfs(t, s.Path(goneUID, keys+"/"+orphantest.KeyTime)) }, "is mounted on it"},
	"mounted on a key": {func(t *testing.T, s *orphantest.Scene) {
		other := filepath.Join(s.Root, "other")
		s.Must(os.WriteFile(other, nil, 0o600))
		s.Must(sys.BindMount(other, s.Path(goneUID, keyFile)))
		t.Cleanup(func() { systest.UnmountPath(s.Path(goneUID, keyFile), true) })
	}, "is mounted on it"},
	"a container has a key": {func(t *testing.T, s *orphantest.Scene) {
		file := filepath.Join(t.TempDir(), "key")
		s.Must(os.WriteFile(file, nil, 0o644))
		kerneltest.Start(t, "bind", s.Path(goneUID, keyFile), file)
	}, "shows what is in the directory"},
	"mounted elsewhere on the keys": {func(t *testing.T, s *orphantest.Scene) {
		kerneltest.Start(t, "mount", s.Path(goneUID, keys+"/"+orphantest.KeyTime))
	}, "mounted in the directory of the pod"},
}

// TestRefusesKeyFiles has each hazard be there at the time of the plan, and come between plan and act.
func TestRefusesKeyFiles(t *testing.T) {
	for name, hazard := range keyHazards {
		t.Run(name, func(t *testing.T) {
			s := leaveKeys(t)
			steps := onlyPod(t, s).Actions
			live := s.Tree(orphantest.Live)
			hazard.set(t, s)
			p := onlyPod(t, s)
			if !p.Orphaned || len(p.Actions) > 0 || !strings.Contains(strings.Join(p.Refusals, "\n"), hazard.why) {
				t.Errorf("refusals %q, steps %d, want none because %q", p.Refusals, len(p.Actions), hazard.why)
			}
			expectRefused(t, s, steps, hazard.why)
			if diff := cmp.Diff(live, s.Tree(orphantest.Live)); diff != "" {
				t.Errorf("of the pod that lives (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKeyFilesOfAKnownPod: between plan and act a source says that it knows the pod.
func TestKeyFilesOfAKnownPod(t *testing.T) {
	s := leaveKeys(t)
	steps := onlyPod(t, s).Actions
	s.Server.Knows(goneUID)
	if found := surveyScene(t, s); len(found.Pods) != 0 {
		t.Errorf("found %+v, want nothing", found.Pods)
	}
	expectRefused(t, s, steps, "knows the pod")
}

// TestForgedKeyFiles: neither the path nor the numbers of an action lead to what the plan does not name.
func TestForgedKeyFiles(t *testing.T) {
	s := leaveKeys(t)
	steps := onlyPod(t, s).Actions
	link, file := *steps[6].File, *steps[2].File
	live := s.Tree(orphantest.Live)
	before := s.Tree(goneUID)
	for _, forged := range []fault.File{
		{Path: s.Path(goneUID, keys+"/..data/key"), Inode: file.Inode, Made: file.Made},
		{Path: s.Path(goneUID, keys+"/key"), Inode: file.Inode, Made: file.Made},
		{Path: s.Path(goneUID, keyFile), Inode: link.Inode, Made: link.Made},
		{Path: s.Path(orphantest.Live, keyFile), Inode: file.Inode, Made: file.Made},
		{Path: s.Node.PodDir(goneUID) + "/../" + orphantest.Live + "/" + keyFile, Inode: file.Inode, Made: file.Made},
		{Path: s.Path(goneUID, keys+"/dir/key"), Inode: steps[0].File.Inode, Made: steps[0].File.Made},
	} {
		for _, kind := range []fault.ActionKind{fault.RemoveDirectory, fault.RemoveFile} {
			gone, err := s.Inspector.Apply(t.Context(), fault.Action{Kind: kind, Target: file.Path, File: &forged})
			if gone || !errors.Is(err, orphan.ErrNotRemovable) {
				t.Errorf("%s %+v: gone %v, %v, want ErrNotRemovable", kind, forged, gone, err)
			}
		}
	}
	// Another file of the same name, and another link to the same place.
	for _, step := range []fault.Action{steps[2], steps[6]} {
		s.Must(os.Rename(step.File.Path, filepath.Join(s.Root, "old")))
		if step.File.Path == file.Path {
			s.File(goneUID, keyFile, "first")
		} else {
			s.Must(os.Symlink("..data/key", step.File.Path))
		}
		if _, err := s.Inspector.Apply(t.Context(), step); !errors.Is(err, orphan.ErrNotRemovable) || !strings.Contains(err.Error(), "another than it was") {
			t.Errorf("apply %s: %v, want that it is another", step.Target, err)
		}
	}
	if diff := cmp.Diff(before, s.Tree(goneUID)); diff != "" {
		t.Errorf("something was removed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(live, s.Tree(orphantest.Live)); diff != "" {
		t.Errorf("of the pod that lives (-want +got):\n%s", diff)
	}
}
