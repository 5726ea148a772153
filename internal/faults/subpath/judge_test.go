// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"os"
	"testing"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	deleted := mount.State{ID: mount.ID{Root: "/a//deleted"}, FSType: "ext4", Deleted: true}
	gone := deleted
	gone.Gone = true
	linked := deleted
	linked.Nlink = 1
	forgotten := linked
	forgotten.FSType = "fuse.sshfs"
	alive := mount.State{FSType: "ext4", Nlink: 1}
	for name, c := range map[string]struct {
		st   mount.State
		now  relation
		want Verdict
	}{
		"deleted":                                {gone, unknownRelation, Stale},
		"deleted and created again":              {gone, differentInode, Stale},
		"deleted in the containers' own volume":  {gone, entryAbsent, Stale},
		"deleted, and the key with it":           {gone, removedByWriter, SourceGone},
		"deleted, a link left":                   {linked, unknownRelation, Stale},
		"deleted, a link put back":               {linked, sameFile, Stale},
		"deleted, a link left, the key gone":     {linked, removedByWriter, SourceGone},
		"forgotten by a remote file system":      {forgotten, unknownRelation, Unproven},
		"gone from a remote file system":         {mount.State{FSType: "fuse.x", Deleted: true, Gone: true}, unknownRelation, Stale},
		"alive":                                  {alive, sameFile, Alive},
		"alive, nothing to compare with":         {alive, unknownRelation, Alive},
		"moved away and created again":           {alive, differentInode, Stale},
		"what it names is elsewhere":             {alive, otherFilesystem, Unproven},
		"deleted, and elsewhere":                 {gone, otherFilesystem, Stale},
		"moved away, nothing in its place":       {alive, entryAbsent, Alive},
		"moved away, and the volume written new": {alive, removedByWriter, Alive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, why := judgeBind(c.st, c.now); got != c.want || why == "" {
				t.Errorf("verdict %s (%s), want %s", got, why, c.want)
			}
		})
	}
}

// TestJudgeBindWithoutVolume: a bind of a pod that goes is judged with the volumes if its file system does not answer and the volume's own
// mount has gone. Each other bind stays with those who judge binds.
func TestJudgeBindWithoutVolume(t *testing.T) {
	t.Parallel()
	state := mount.State{FSType: "fuse.x"}
	for name, c := range map[string]struct {
		a    answers
		want Verdict
	}{
		"disconnected":          {answers{VolumeGone: true, Bind: probe.Answer{State: probe.Disconnected, Errno: sys.ENOTCONN}}, OfVolume},
		"hung":                  {answers{VolumeGone: true, Bind: probe.Answer{State: probe.Hung}}, OfVolume},
		"its staging path died": {answers{VolumeGone: true, Bind: probe.Answer{State: probe.Disconnected}, Volume: &probe.Answer{State: probe.Disconnected}}, OfVolume},
		"deleted":               {answers{VolumeGone: true, Bind: probe.Answer{State: probe.Missing, Errno: sys.ENOENT}}, Stale},
		"of a pod that stays":   {answers{Bind: probe.Answer{State: probe.Disconnected, Errno: sys.ENOTCONN}}, Unproven},
	} {
		if got, why := judgeAnswers(state, &c.a); got != c.want || why == "" {
			t.Errorf("%s: verdict %s (%s), want %s", name, got, why, c.want)
		}
	}
}

// recordedTable reads a recorded mountinfo.
func recordedTable(t *testing.T, name string) *mountinfo.Table {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := mountinfo.ParseBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	return mountinfo.NewTable(mounts)
}

// TestFindingNamesThePersistentVolume: a bind of a claim's volume has the kubelet's name of it beside that in the spec.
func TestFindingNamesThePersistentVolume(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"claim": "pvc-sw", "configmap": ""} {
		pod := kubelettest.NewPod()
		b := Bind{Verdict: Stale, SubPathMount: podinfo.SubPathMount{Container: "app"}}
		b.State.Point = "/k/pods/u/volume-subpaths/pvc-sw/app/0"
		for _, v := range pod.Spec.Volumes {
			if v.Name == name {
				b.Volume = v
			}
		}
		if f := b.Finding(pod, 1); f.Volume != name || f.Details.PersistentVolume != want || f.Details.SpecVolume != "" {
			t.Errorf("%s: volume %q, details %+v", name, f.Volume, f.Details)
		}
	}
}

func TestSourcePathIsOneOfTheHost(t *testing.T) {
	t.Parallel()
	const uid = "29da79e5-386c-4e0d-82c1-215f93ff955d"
	for name, c := range map[string]struct {
		file, podDir string
		id           int
		want         string
	}{
		"kubelet root on the root file system": {
			"walkthrough.mountinfo", "/var/lib/kubelet/pods/" + uid, 216,
			"/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~configmap/logrotateconf/..2021_06_02_06_01_21.244319292/nginx.log//deleted",
		},
		"kubelet root on a disk of its own": {
			"disk.mountinfo", "/data/kubelet/pods/" + uid, 523,
			"/data/kubelet/pods/" + uid + "/volumes/kubernetes.io~configmap/extra-cfg/..2021/extra.ini//deleted",
		},
		"tmpfs of a secret": {
			"disk.mountinfo", "/data/kubelet/pods/" + uid, 620,
			"/data/kubelet/pods/" + uid + "/volumes/kubernetes.io~secret/tls/..2021/tls.crt//deleted",
		},
		"escapes": {
			"disk.mountinfo", "/data/kubelet/pods/" + uid, 621,
			"/data/kubelet/pods/" + uid + "/volumes/kubernetes.io~empty-dir/e/sub dir\\\n/x//deleted",
		},
		"nowhere to be seen": {"disk.mountinfo", "/data/kubelet/pods/" + uid, 622, "/hidden//deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mounts := recordedTable(t, c.file)
			m, ok := mounts.ByID(c.id)
			if !ok {
				t.Fatalf("no mount %d", c.id)
			}
			st := mount.State{ID: mount.ID{MountInfoID: m.ID, Major: m.Major, Minor: m.Minor, Root: m.Root, Point: m.Point}}
			if got := sourcePath(mounts, c.podDir, st); got != c.want {
				t.Errorf("source is %q, want %q", got, c.want)
			}
		})
	}
}
