// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

const (
	goneUID = orphantest.Gone
	volume  = "volumes/kubernetes.io~csi/" + orphantest.Volume
)

func TestMain(m *testing.M) { kerneltest.Main(m, orphantest.Roles) }

func surveyScene(t *testing.T, s *orphantest.Scene) *orphan.Survey {
	t.Helper()
	found, err := s.Inspector.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// onlyPod is the one pod that is found.
func onlyPod(t *testing.T, s *orphantest.Scene) *orphan.Pod {
	t.Helper()
	found := surveyScene(t, s)
	if len(found.Pods) != 1 {
		text, _ := json.Marshal(found)
		t.Fatalf("found %s, want one directory", text)
	}
	return found.Pods[0]
}

// plannedPaths are the paths of the actions, in order.
func plannedPaths(p *orphan.Pod) []string {
	var all []string
	for _, step := range p.Actions {
		all = append(all, string(step.Kind)+" "+strings.TrimPrefix(strings.TrimPrefix(step.File.Path, p.Path), "/"))
	}
	return all
}

// removeAll does actions, of which none has been done.
func removeAll(t *testing.T, s *orphantest.Scene, actions []fault.Action) {
	t.Helper()
	for _, step := range actions {
		if gone, err := s.Inspector.Apply(t.Context(), step); gone || err != nil {
			t.Fatalf("apply %s: gone %v, %v", step.Target, gone, err)
		}
	}
}

// wholePlan is for what orphantest leaves.
var wholePlan = []string{
	"RemoveFile volume-subpaths/config/app/0",
	"RemoveDirectory volume-subpaths/config/app",
	"RemoveDirectory volume-subpaths/config",
	"RemoveDirectory volume-subpaths",
	"RemoveDirectory " + volume + "/mount",
	"RemoveFile " + volume + "/vol_data.json",
	"RemoveDirectory " + volume,
	"RemoveDirectory volumes/kubernetes.io~empty-dir/cache",
}

func TestRemovesWhatIsLeft(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	live := s.Tree(orphantest.Live)
	p := onlyPod(t, s)
	if !p.Orphaned || len(p.Refusals) > 0 || p.UID != goneUID || !p.SubPaths {
		t.Fatalf("pod = %+v, want one that is orphaned", p)
	}
	if diff := cmp.Diff(wholePlan, plannedPaths(p)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s", diff)
	}
	for _, step := range p.Actions {
		if !step.Lossless || step.Key().Code != fault.OrphanedPodVolumes || !strings.Contains(step.Safety, "neither the API server nor the container runtime") {
			t.Errorf("step = %+v", step)
		}
	}
	removeAll(t, s, p.Actions)
	if diff := cmp.Diff(orphantest.Remaining(), s.Tree(goneUID)); diff != "" {
		t.Errorf("what remains (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(live, s.Tree(orphantest.Live)); diff != "" {
		t.Errorf("of the pod that lives (-want +got):\n%s", diff)
	}
	if left, err := s.Inspector.LeftVolumes(t.Context(), goneUID); len(left) > 0 || err != nil {
		t.Errorf("left %q, %v", left, err)
	}
	absent, err := s.Inspector.GoneDirectories(t.Context(), []string{goneUID, orphantest.Other})
	if diff := cmp.Diff(map[string]bool{orphantest.Other: true}, absent); diff != "" || err != nil {
		t.Errorf("gone: %v, (-want +got):\n%s", err, diff)
	}
	for _, step := range p.Actions {
		if gone, err := s.Inspector.Apply(t.Context(), step); !gone || err != nil {
			t.Errorf("once more, %s: gone %v, %v, want that it is gone", step.Target, gone, err)
		}
	}
}

// TestDirectoryThatIsRefused: a kubelet removes it where no volume is left. If it does not, the last empty directories
// go.
func TestDirectoryThatIsRefused(t *testing.T) {
	s := orphantest.New(t)
	s.Dir(goneUID, "volumes/kubernetes.io~csi")
	s.Dir(goneUID, "containers/app")
	p := onlyPod(t, s)
	want := []string{
		"RemoveDirectory containers/app", "RemoveDirectory containers", "RemoveDirectory volumes/kubernetes.io~csi", "RemoveDirectory volumes",
		"RemoveDirectory ",
	}
	if diff := cmp.Diff(want, plannedPaths(p)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s", diff)
	}
	removeAll(t, s, p.Actions)
	if tree := s.Tree(goneUID); tree != nil {
		t.Errorf("what remains: %q, want nothing", tree)
	}
	s.File(goneUID, "etc-hosts", "x")
	if p := onlyPod(t, s); !p.Orphaned || len(p.Actions) > 0 || !strings.Contains(strings.Join(p.Refusals, " "), "etc-hosts") {
		t.Errorf("with a file of the kubelet: %+v, want that it is the kubelet's to remove", p)
	}
}

// TestEmptyRecord: that is what a node has of one that was not written out when it was reset. No kubelet can do
// anything with it, whichever kind of volume it has.
func TestEmptyRecord(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	s.Kind(false, time.Now())
	s.File(goneUID, volume+"/vol_data.json", "")
	p := onlyPod(t, s)
	if diff := cmp.Diff(wholePlan, plannedPaths(p)); diff != "" {
		t.Fatalf("refusals %q, plan (-want +got):\n%s", p.Refusals, diff)
	}
	removeAll(t, s, p.Actions)
	if diff := cmp.Diff(orphantest.Remaining(), s.Tree(goneUID)); diff != "" {
		t.Errorf("what remains (-want +got):\n%s", diff)
	}
}

// hazards are what speaks against removing anything, with a word of the reason.
var hazards = map[string]struct {
	set func(t *testing.T, s *orphantest.Scene)
	why string
}{
	"mounted on the host": {func(t *testing.T, s *orphantest.Scene) {
		mountTmpfs(t, s.Path(goneUID, volume+"/mount"))
	}, "is mounted on it"},
	"its directory is a mount": {func(t *testing.T, s *orphantest.Scene) { mountTmpfs(t, s.Node.PodDir(goneUID)) }, "is mounted on it"},
	"bound on the host": {func(t *testing.T, s *orphantest.Scene) {
		dir := t.TempDir()
		s.Must(sys.BindMount(s.Path(goneUID, volume), dir))
		t.Cleanup(func() { s.Must(systest.UnmountPath(dir, true)) })
	}, "shows what is in the directory"},
	"mounted elsewhere": {func(t *testing.T, s *orphantest.Scene) {
		kerneltest.Start(t, "mount", s.Path(goneUID, volume+"/mount"))
	}, "mounted in the directory of the pod"},
	"bound elsewhere": {func(t *testing.T, s *orphantest.Scene) {
		kerneltest.Start(t, "bind", s.Path(goneUID, "volumes/kubernetes.io~empty-dir/cache"), t.TempDir())
	}, "shows what is in the directory"},
	"a container has its hosts file": {func(t *testing.T, s *orphantest.Scene) {
		file := filepath.Join(t.TempDir(), "hosts")
		s.Must(os.WriteFile(file, nil, 0o644))
		kerneltest.Start(t, "bind", s.Path(goneUID, "etc-hosts"), file)
	}, "shows what is in the directory"},
	"mounted elsewhere by another path": {func(t *testing.T, s *orphantest.Scene) {
		dir := t.TempDir()
		s.Must(sys.BindMount(s.Root, dir))
		t.Cleanup(func() { s.Must(systest.UnmountPath(dir, true)) })
		kerneltest.Start(t, "mount", filepath.Join(dir, "pods", goneUID, volume, "mount"))
	}, "mounted in the directory of the pod"},
	"mounted elsewhere and hidden": {func(t *testing.T, s *orphantest.Scene) {
		kerneltest.Start(t, "mount", s.Path(goneUID, volume+"/mount"), s.Node.PodsDir())
	}, "mounted in the directory of the pod"},
	"data in a volume":    {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, volume+"/mount/data", "x") }, "may have data"},
	"an empty file there": {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, volume+"/mount/data", "") }, "may have data"},
	"data in the directory": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, "notes", "x")
	}, "may have data"},
	"a directory of somebody": {func(_ *testing.T, s *orphantest.Scene) { s.Dir(goneUID, "mine") }, "makes no such directory"},
	"data among the plugins":  {func(_ *testing.T, s *orphantest.Scene) { s.File(goneUID, "plugins/x/y/db", "x") }, "may have data"},
	"a symbolic link": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Symlink(s.Node.PodDir(orphantest.Live), s.Path(goneUID, "volumes/link")))
	}, "symbolic link"},
	"a link in place of a volume": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Remove(s.Path(goneUID, volume+"/mount")))
		s.Must(os.Symlink("/etc", s.Path(goneUID, volume+"/mount")))
	}, "symbolic link"},
	"record of another volume": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, volume+"/vol_data.json", strings.ReplaceAll(orphantest.VolumeRecord, orphantest.Volume, "pvc-2"))
	}, `volume "pvc-2"`},
	"record with another name": {func(_ *testing.T, s *orphantest.Scene) {
		s.Must(os.Link(s.Path(goneUID, volume+"/vol_data.json"), filepath.Join(s.Root, "link")))
	}, "2 names"},
	"record cut off": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, volume+"/vol_data.json", orphantest.VolumeRecord[:40])
	}, "cannot be used"},
	"empty record with another name": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, volume+"/vol_data.json", "")
		s.Must(os.Link(s.Path(goneUID, volume+"/vol_data.json"), filepath.Join(s.Root, "link")))
	}, "2 names"},
	"record elsewhere": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, "volumes/kubernetes.io~nfs/x/vol_data.json", orphantest.VolumeRecord)
	}, "may have data"},
	"subPath with content": {func(_ *testing.T, s *orphantest.Scene) {
		s.File(goneUID, "volume-subpaths/config/app/0", "x")
	}, "something in it"},
	"staged still": {stageVolume, "may not have finished"},
	"staged still, and an empty record": {func(t *testing.T, s *orphantest.Scene) {
		stageVolume(t, s)
		s.File(goneUID, volume+"/vol_data.json", "")
	}, "for a person to unmount first"},
	"a kubelet that goes on": {func(_ *testing.T, s *orphantest.Scene) {
		s.Kind(false, time.Now().Add(time.Hour))
	}, `may be waiting for driver "fuse.csi.example.com"`},
	"a kubelet that has mounted the volume": {func(_ *testing.T, s *orphantest.Scene) {
		s.Kind(true, time.Now().Add(-time.Hour))
	}, "restart the kubelet"},
	"a kubelet of no known kind": {func(_ *testing.T, s *orphantest.Scene) {
		s.Node.Program, s.Node.Since = "", time.Time{}
	}, "not known whether this kubelet tries only once"},
}

// stageVolume has the volume be staged where kubelets before 1.24 have that.
func stageVolume(t *testing.T, s *orphantest.Scene) {
	dir := filepath.Join(s.Root, "plugins/kubernetes.io/csi/pv", orphantest.Volume, "globalmount")
	s.Must(os.MkdirAll(dir, 0o755))
	mountTmpfs(t, dir)
}

func mountTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := sys.NewMount("none", dir, "tmpfs", ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
}

// TestRefuses has each hazard be there at the time of the plan, and come between plan and act.
func TestRefuses(t *testing.T) {
	for name, hazard := range hazards {
		t.Run(name, func(t *testing.T) {
			s := orphantest.New(t)
			s.Leave(goneUID)
			steps := onlyPod(t, s).Actions
			hazard.set(t, s)
			p := onlyPod(t, s)
			if !p.Orphaned || len(p.Actions) > 0 || !strings.Contains(strings.Join(p.Refusals, "\n"), hazard.why) {
				t.Errorf("refusals %q, steps %d, want none because %q", p.Refusals, len(p.Actions), hazard.why)
			}
			expectRefused(t, s, steps, hazard.why)
		})
	}
}

// expectRefused applies steps that must not be applied any more.
func expectRefused(t *testing.T, s *orphantest.Scene, steps []fault.Action, why string) {
	t.Helper()
	before := s.Tree(goneUID)
	for _, step := range steps {
		there, err := s.Inspector.EntryExists(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Inspector.Apply(t.Context(), step)
		if there && (!errors.Is(err, orphan.ErrNotRemovable) || !strings.Contains(err.Error(), why)) {
			t.Errorf("apply %s: %v, want ErrNotRemovable with %q", step.Target, err, why)
		}
	}
	if diff := cmp.Diff(before, s.Tree(goneUID)); diff != "" {
		t.Errorf("something was removed (-before +after):\n%s", diff)
	}
}

// TestUnproven: each of the sources may be the one that does not say that the pod is gone.
func TestUnproven(t *testing.T) {
	for name, c := range map[string]struct {
		set func(s *orphantest.Scene)
		why string // empty: the directory is not even listed
	}{
		"the API server knows it":   {func(s *orphantest.Scene) { s.Server.Knows(goneUID) }, ""},
		"the runtime has a sandbox": {func(s *orphantest.Scene) { s.Runtime.All = append(s.Runtime.All, cri.Sandbox{PodUID: goneUID}) }, ""},
		"a mirror pod stands for it": {func(s *orphantest.Scene) {
			s.Server.Pods[0].Annotations = map[string]string{"kubernetes.io/config.mirror": goneUID}
		}, ""},
		"the API server is silent": {func(s *orphantest.Scene) { s.Server.Broken = errors.New("no route") }, "could not be asked: no route"},
		"there is no API server":   {func(s *orphantest.Scene) { s.Inspector.Pods = nil }, "API server could not be asked"},
		"the runtime is silent":    {func(s *orphantest.Scene) { s.Runtime.Broken = cri.ErrUnavailable }, "runtime could not be asked"},
		"there is no runtime":      {func(s *orphantest.Scene) { s.Inspector.Runtime = nil }, "container runtime could not be asked"},
		"the runtime has a container": {func(s *orphantest.Scene) {
			s.Runtime.Containers = map[string][]cri.Container{goneUID: {{Name: "app", Exited: true}}}
		}, `container "app"`},
		"the runtime hides containers": {func(s *orphantest.Scene) { s.Runtime.NoContainers = cri.ErrUnavailable }, "asked for its containers"},
		"the runtime does not end":     {func(s *orphantest.Scene) { s.Runtime.All = make([]cri.Sandbox, 10_000) }, "its list may be incomplete"},
		"they speak of two nodes":      {func(s *orphantest.Scene) { s.Server.Pods[0].UID = types.UID(orphantest.Other) }, "no pod in common"},
		"the API server lists nobody":  {func(s *orphantest.Scene) { s.Server.Pods = nil }, "no pod in common"},
		"it is young":                  {func(s *orphantest.Scene) { s.Inspector.Now = time.Now }, "600 have to pass"},
		"its time is yet to come":      {func(s *orphantest.Scene) { s.Inspector.Now = func() time.Time { return time.Time{} } }, "yet to come"},
	} {
		t.Run(name, func(t *testing.T) {
			s := orphantest.New(t)
			s.Leave(goneUID)
			steps := onlyPod(t, s).Actions
			c.set(s)
			found := surveyScene(t, s)
			for _, p := range found.Pods {
				if p.Orphaned || len(p.Actions) > 0 || c.why != "" && !strings.Contains(strings.Join(p.Unproven, "\n"), c.why) {
					t.Errorf("pod %s: orphaned %v, unproven %q, want that nothing is proven: %s", p.UID, p.Orphaned, p.Unproven, c.why)
				}
				if c.why == "" && p.UID == goneUID {
					t.Error("the pod is listed, and somebody knows it")
				}
			}
			if c.why != "" && len(found.Pods) == 0 || len(found.Findings()) > 0 {
				t.Errorf("pods %v, findings %+v", found.Pods, found.Findings())
			}
			expectRefused(t, s, steps, c.why)
		})
	}
}

func TestStaticPodsAreLeftAlone(t *testing.T) {
	s := orphantest.New(t)
	s.Leave("0d2a2ae45a0c4f0f8f6c7a3c3f7c1d11")
	if p := onlyPod(t, s); p.Orphaned || len(p.Actions) > 0 || !strings.Contains(p.Unproven[0], "static pod") {
		t.Errorf("pod = %+v", p)
	}
}

// TestReplaced puts another in the place of what was planned for.
func TestReplaced(t *testing.T) {
	for name, rel := range map[string]string{"directory": volume + "/mount", "record": volume + "/vol_data.json"} {
		t.Run(name, func(t *testing.T) {
			s := orphantest.New(t)
			s.Leave(goneUID)
			p := onlyPod(t, s)
			step := p.Actions[4]
			s.Must(os.Rename(s.Path(goneUID, rel), filepath.Join(s.Root, "old")))
			if name == "directory" {
				s.Dir(goneUID, rel)
			} else {
				step = p.Actions[5]
				s.File(goneUID, rel, orphantest.VolumeRecord)
			}
			_, err := s.Inspector.Apply(t.Context(), step)
			if !errors.Is(err, orphan.ErrNotRemovable) || !strings.Contains(err.Error(), "another than it was") {
				t.Errorf("apply: %v, want that it is another", err)
			}
			if _, err := os.Lstat(s.Path(goneUID, rel)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestForgedActions(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	victim := filepath.Join(s.Root, "victim")
	s.Must(os.Mkdir(victim, 0o755))
	live := s.Path(orphantest.Live, volume+"/mount")
	step := onlyPod(t, s).Actions[0]
	forged := []*fault.File{nil, {Path: s.Path(goneUID, volume+"/mount"), Inode: 1, Made: 1}, {Path: s.Path(goneUID, volume+"/mount")}}
	for _, name := range []string{
		"", "/", "x", victim, live, s.Node.PodDir(goneUID) + "/volumes/../../../victim", s.Node.PodsDir(), s.Path(goneUID, "etc-hosts"),
		s.Node.PodDir(goneUID), s.Path(goneUID, volume+"/mount") + "/", "relative",
	} {
		forged = append(forged, &fault.File{Path: name, Inode: step.File.Inode, Made: step.File.Made})
	}
	for _, entry := range forged {
		for _, kind := range []fault.ActionKind{fault.RemoveDirectory, fault.RemoveFile} {
			if gone, err := s.Inspector.Apply(t.Context(), fault.Action{Kind: kind, Target: step.Target, File: entry}); gone || !errors.Is(err, orphan.ErrNotRemovable) {
				t.Errorf("%s %+v: gone %v, %v, want ErrNotRemovable", kind, entry, gone, err)
			}
		}
	}
	// The right place, and the wrong way.
	step.Kind = fault.RemoveDirectory
	if _, err := s.Inspector.Apply(t.Context(), step); !errors.Is(err, orphan.ErrNotRemovable) {
		t.Errorf("a file as a directory: %v", err)
	}
	for _, name := range []string{victim, live, s.Path(goneUID, "etc-hosts"), s.Path(goneUID, volume+"/mount")} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
}

// TestOutOfOrder: a directory is not removed before what is in it.
func TestOutOfOrder(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	p := onlyPod(t, s)
	if _, err := s.Inspector.Apply(t.Context(), p.Actions[6]); !errors.Is(err, orphan.ErrNotRemovable) || !errors.Is(err, sys.ENOTEMPTY) {
		t.Errorf("apply: %v, want ErrNotRemovable with ENOTEMPTY", err)
	}
}

func TestReportsEverything(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	s.Leave(orphantest.Other)
	s.File(orphantest.Other, "volumes/kubernetes.io~empty-dir/cache/data", "x")
	found := surveyScene(t, s)
	if len(found.Pods) != 2 || found.Directories != 3 || found.Coverage == nil || found.Coverage.Namespaces == 0 {
		t.Fatalf("survey = %+v", found)
	}
	findings := found.Findings()
	if len(findings) != 2 || findings[0].Code != fault.OrphanedPodVolumes || findings[0].Pod.UID != goneUID {
		t.Fatalf("findings = %+v", findings)
	}
	if evidence := strings.Join(findings[1].Evidence, "\n"); !strings.Contains(evidence, "kubernetes.io~empty-dir/cache") ||
		!strings.Contains(evidence, `nothing of it is removed: "volumes/kubernetes.io~empty-dir/cache/data" stays`) {
		t.Errorf("evidence = %s", evidence)
	}
	for dir := range 40 {
		for file := range 120 {
			s.File(orphantest.Other, filepath.Join("volumes/kubernetes.io~empty-dir/cache", string(rune('A'+dir)), string(rune('0'+file))), "")
		}
	}
	p := surveyScene(t, s).Pods[1]
	if len(p.Entries) != 256 || p.More < 3000 || p.More > 4096 || len(p.Refusals) > 32 || len(p.Actions) > 0 {
		t.Errorf("%d entries and %d more, %d refusals, %d steps", len(p.Entries), p.More, len(p.Refusals), len(p.Actions))
	}
}

// TestSharedVolume: other pods have the volume, so that it is staged says nothing about this one.
func TestSharedVolume(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	stageVolume(t, s)
	mountTmpfs(t, s.Path(orphantest.Live, volume+"/mount"))
	if p := onlyPod(t, s); len(p.Actions) != len(wholePlan) {
		t.Errorf("refusals %q, want none", p.Refusals)
	}
}
