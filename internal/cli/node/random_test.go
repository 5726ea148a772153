// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

var (
	randomRounds = flag.Uint64("rounds", 1000, "how many random nodes are judged")
	randomSeed   = flag.Uint64("seed", 0, "the seed of the first random node")
)

// One of crowdedEach nodes has a pod with manySecrets volumes. On one of hangsEach nodes volumes may hang: each that does costs every door to a real
// node its deadline.
const crowdedEach, manySecrets, hangsEach = 100, 500, 8

// randomNode is a node of random pods, with faults that are made on purpose. Its evidence stands for the answers of a node. A test of the kernel
// tier makes the same node of real mounts, by its lists.
type randomNode struct {
	*rand.Rand
	layout  kubelet.Layout
	run     int // is in the UIDs of its pods
	has     nodeRecording
	table   []mountinfo.Mount
	sources []mountstate.PodSource
	// faults and unknown are those that were made, and classes the reasons for which mounts were made.
	faults, unknown []string
	classes         mountstate.Classes
	healthy, hangs  bool
	crowded         bool       // its first pod has very many volumes
	disks           *rand.Rand // says which pods have a volume on a disk

	csi     []randomCSI
	secrets []randomSecret
	// plain are the points of the other mounts in the order in which they are made, and running the pods that run.
	plain, running []string
	// records are those of the kubelet by the place of the volume, nil if one is empty.
	records map[string]*kubelet.VolumeRecord
}

// randomCSI is a volume of a driver.
type randomCSI struct {
	uid, name, point string
	staging          string // where the driver has mounted it for the node; empty: it has not
	missing, disk    bool
	answer           probe.Answer
	copies           []randomCopy
}

// randomCopy is the mount of a volume in a container of its own. It may be of before the driver has mounted the volume again.
type randomCopy struct {
	container, point string
	dead             bool
}

// randomSecret is a Secret on a tmpfs, with a subPath bind or without, and with a mount in container c0 or without.
type randomSecret struct {
	uid, name, point, bind string
	missing, stale         bool
	inside                 *mountstate.ContainerMount
}

// one reports whether something rare is made, which a healthy node never has.
func (n *randomNode) one(of int) bool { return !n.healthy && n.IntN(of) == 0 }

// mount adds a mount of a file system of its own, and counts it.
func (n *randomNode) mount(point, fsType string, class *int) mountinfo.Mount {
	id := len(n.table) + 1
	m := mountinfo.Mount{ID: id, Parent: 1, Minor: uint32(id), Root: "/", Point: point, FSType: fsType}
	n.table = append(n.table, m)
	n.classes.Mounts++
	*class++
	return m
}

// tmpfs is mount of a file system that asks for nothing else.
func (n *randomNode) tmpfs(point string, class *int) mountinfo.Mount {
	n.plain = append(n.plain, point)
	return n.mount(point, "tmpfs", class)
}

// expect notes a fault that is made.
func (n *randomNode) expect(code fault.Code, uid, container, volume, point string) {
	n.faults = append(n.faults, fmt.Sprint(code, " ", uid, " ", container, " ", volume, " ", point))
}

// notJudged notes a place that is made so that it cannot be judged.
func (n *randomNode) notJudged(uid, container, volume, point string) {
	n.unknown = append(n.unknown, fmt.Sprint(uid, " ", container, " ", volume, " ", point))
}

// brokenAnswers are those of volumes that have a fault.
var brokenAnswers = map[fault.Code]probe.Answer{
	fault.DisconnectedFUSE:    {State: probe.Disconnected, Errno: sys.ENOTCONN},
	fault.HungMount:           {State: probe.Hung, Took: time.Second},
	fault.StaleFileHandle:     {State: probe.Stale, Errno: sys.ESTALE},
	fault.VolumeIOError:       {State: probe.Broken, Errno: sys.EIO},
	fault.DeletedVolumeSource: {State: probe.Missing, Errno: sys.ENOENT},
}

// addCSI adds a volume of a driver: healthy, broken, not judged, or not there; and copies of it in containers.
func (n *randomNode) addCSI(of *mountstate.PodSource, name string) {
	place := kubelet.Volume{PodUID: of.UID, Plugin: kubelet.CSIPlugin, Name: name}
	of.Places = append(of.Places, place)
	recorded := volume.RecordedVolume{Evidence: volume.Evidence{Volume: volume.Volume{
		Pod: fault.Pod{UID: of.UID}, Plugin: kubelet.CSIPlugin, Name: name, Point: n.layout.VolumePoint(place),
	}, Answer: probe.Answer{State: probe.Alive}}}
	e := &recorded.Evidence
	n.records[e.Point] = &kubelet.VolumeRecord{Driver: "d.example.com", Handle: of.UID + name, PersistentVolume: name}
	made := randomCSI{uid: of.UID, name: name, point: e.Point}
	defer func() { n.csi = append(n.csi, made) }()
	if made.missing = n.one(6); made.missing { // a container has its directory, or none has
		if n.IntN(2) == 0 {
			n.notJudged(of.UID, "", name, e.Point)
			return
		}
		made.copies = []randomCopy{{container: name + "-c0", point: "/data"}}
		e.Mismatch.PlainAt = fmt.Sprintf("container %q at %q", made.copies[0].container, made.copies[0].point)
		n.expect(fault.DeletedVolumeSource, of.UID, "", name, e.Point)
		volumesOf(n.has).Volumes = append(volumesOf(n.has).Volumes, recorded)
		return
	}
	class, code := &n.classes.Wanted, fault.Code("")
	codes := []fault.Code{fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle, fault.VolumeIOError, fault.DeletedVolumeSource}
	switch {
	case n.one(3):
		if code = codes[n.IntN(len(codes))]; code == fault.HungMount && !n.hangs {
			code = fault.DisconnectedFUSE
		}
		e.Answer = brokenAnswers[code]
		n.expect(code, of.UID, "", name, e.Point)
	case n.one(8):
		class, e.Answer = &n.classes.Unknown, probe.Answer{State: probe.Denied, Errno: sys.EACCES}
		n.notJudged(of.UID, "", name, e.Point)
	}
	made.answer = e.Answer
	e.Mount = mountns.Mount{Mount: n.mount(e.Point, "fuse.d", class), Namespace: mountns.Namespace{Inode: 5}}
	if n.IntN(2) == 0 || code == fault.DeletedVolumeSource { // only a directory of a file system can be deleted
		made.staging = n.layout.StagingPoints("d.example.com", of.UID+name, name)[0]
		n.records[made.staging] = n.records[e.Point]
		n.mount(made.staging, "fuse.d", &n.classes.Wanted)
		n.table[len(n.table)-1].Minor = e.Mount.Minor
	}
	for i := range n.IntN(3) {
		c := randomCopy{container: fmt.Sprint(name, "-c", i), point: "/data"}
		r := volume.RecordedCopy{Mount: e.Mount, Holder: volume.Holder{Pod: e.Pod, Container: c.container}, Answer: e.Answer}
		r.Mount.Namespace.Inode, r.Mount.Point = uint64(100+len(n.table)*3+i), c.point
		if code == "" && e.Answer.State == probe.Alive && n.one(3) { // the driver has mounted it again, for the kubelet alone
			c.dead, r.Answer = true, brokenAnswers[fault.DisconnectedFUSE]
			n.expect(fault.DisconnectedFUSE, of.UID, c.container, name, c.point)
		} else if code != "" {
			n.expect(code, of.UID, c.container, name, c.point)
		}
		recorded.Copies = append(recorded.Copies, r)
		made.copies = append(made.copies, c)
	}
	volumesOf(n.has).Volumes = append(volumesOf(n.has).Volumes, recorded)
}

// addDisk adds a volume with an ext4 that its driver has staged: healthy, or with its directory deleted; and perhaps a container that has it.
func (n *randomNode) addDisk(of *mountstate.PodSource, name string) {
	place := kubelet.Volume{PodUID: of.UID, Plugin: kubelet.CSIPlugin, Name: name}
	of.Places = append(of.Places, place)
	record := &kubelet.VolumeRecord{Driver: "d.example.com", Handle: of.UID + name, PersistentVolume: name}
	made := randomCSI{
		uid: of.UID, name: name, point: n.layout.VolumePoint(place), staging: n.layout.StagingPoints(record.Driver, record.Handle, name)[0], disk: true,
		answer: probe.Answer{State: probe.Alive, Bindable: probe.Yes},
	}
	n.records[made.point], n.records[made.staging] = record, record
	root := "/vol"
	deleted := !n.healthy && n.disks.IntN(3) == 0
	if deleted {
		root, made.answer = root+"//deleted", probe.Answer{State: probe.Alive, Deleted: true, Bindable: probe.No}
		n.expect(fault.DeletedVolumeSource, of.UID, "", name, made.point)
	}
	n.mount(made.point, "ext4", &n.classes.Wanted)
	n.mount(made.staging, "ext4", &n.classes.Wanted)
	volumeMount, staged := &n.table[len(n.table)-2], &n.table[len(n.table)-1]
	volumeMount.Root, volumeMount.Major, staged.Major, staged.Minor = root, 7, 7, volumeMount.Minor
	recorded := volume.RecordedVolume{Evidence: volume.Evidence{
		Volume: volume.Volume{
			Pod: fault.Pod{UID: of.UID}, Plugin: kubelet.CSIPlugin, Name: name, Point: made.point,
			Mount: mountns.Mount{Mount: *volumeMount, Namespace: mountns.Namespace{Inode: 5}},
		},
		Answer: made.answer,
	}}
	if n.disks.IntN(2) == 0 {
		c := randomCopy{container: name + "-c0", point: "/data"}
		r := volume.RecordedCopy{Mount: recorded.Evidence.Mount, Holder: volume.Holder{Pod: recorded.Evidence.Pod, Container: c.container}, Answer: made.answer}
		r.Mount.Namespace.Inode, r.Mount.Point = uint64(100+len(n.table)*3), c.point
		if recorded.Copies = append(recorded.Copies, r); deleted {
			n.expect(fault.DeletedVolumeSource, of.UID, c.container, name, c.point)
		}
		made.copies = append(made.copies, c)
	}
	volumesOf(n.has).Volumes, n.csi = append(volumesOf(n.has).Volumes, recorded), append(n.csi, made)
}

// addSecret adds a Secret with a tmpfs, perhaps with a subPath bind that may be stale, and the mount of a container that may not be right.
func (n *randomNode) addSecret(of *mountstate.PodSource, name string) {
	place := kubelet.Volume{PodUID: of.UID, Plugin: "kubernetes.io/secret", Name: name}
	of.Places = append(of.Places, place)
	made := randomSecret{uid: of.UID, name: name, point: n.layout.VolumePoint(place)}
	defer func() { n.secrets = append(n.secrets, made) }()
	if made.missing = n.one(8); made.missing {
		n.notJudged(of.UID, "", name, made.point)
		return
	}
	m := n.mount(made.point, "tmpfs", &n.classes.Wanted)
	if n.IntN(3) == 0 {
		bind := kubelet.SubPath{PodUID: of.UID, Volume: name, Container: "c0", Index: 2*len(of.Places) - 1} // as specOfPlaces has it
		made.bind = n.layout.SubPathPoint(bind)
		at := n.mount(made.bind, "tmpfs", &n.classes.Wanted)
		if made.stale = n.one(2); made.stale {
			subPathsOf(n.has).Found = append(subPathsOf(n.has).Found, subpath.BindEvidence{
				SubPath: bind, Expected: podinfo.SubPathMount{Container: "c0", Volume: corev1.Volume{Name: name}},
				State: mount.State{ID: mount.ID{Point: at.Point, Root: "/a//deleted"}, FSType: "tmpfs", Deleted: true, Gone: true},
			})
			n.expect(fault.StaleSubPath, of.UID, "c0", name, at.Point)
		}
	}
	if n.IntN(2) == 0 {
		wants := mountstate.Directory{Device: fmt.Sprint("0:", m.Minor), Path: "/"}
		c := mountstate.ContainerMount{Container: "c0", ID: "id" + of.UID, From: made.point, Point: "/in/" + name + "/v", Wants: wants, Has: wants}
		switch {
		case n.IntN(4) == 0:
			c.Has, c.Elsewhere = mountstate.Directory{}, true
		case n.one(2):
			c.Covered = n.IntN(2) == 0
			c.Has = []mountstate.Directory{{}, {Device: "0:9999", Path: "/"}}[n.IntN(2)]
			n.notJudged(of.UID, "c0", name, c.Point)
		}
		of.Mounts = append(of.Mounts, c)
		made.inside = &c
	}
}

// addPod adds a pod with random volumes. Some have no spec, some are being deleted and stay, and some are gone: but not the first.
func (n *randomNode) addPod(i int) {
	of := mountstate.PodSource{UID: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, n.run)}
	dir := n.layout.PodDir(of.UID)
	n.has.node.Entries, n.has.node.PodUIDs = append(n.has.node.Entries, of.UID), append(n.has.node.PodUIDs, of.UID)
	defer func() { n.sources = append(n.sources, of) }()
	switch {
	case i > 0 && n.one(6):
		point := dir + "/volumes/kubernetes.io~csi/v/mount"
		n.has.evidence[leavingEntry] = append(n.has.evidence[leavingEntry].([]leaving.Remains), leaving.Remains{
			Pod: fault.Pod{UID: of.UID}, Path: dir, Over: true, Text: "it is being deleted",
			Places: []leaving.Place{{Kind: leaving.OfVolume, Volume: "v", NoRecord: "the record is empty", Mount: fault.Mount{Point: point}}},
		})
		of.Places = append(of.Places, kubelet.Volume{PodUID: of.UID, Plugin: kubelet.CSIPlugin, Name: "v"})
		of.Spec = n.specOfPlaces(of)
		of.Spec.DeletionTimestamp = &metav1.Time{Time: n.has.node.Seen.Time.Add(-time.Hour)}
		of.Spec.Status = corev1.PodStatus{Phase: corev1.PodRunning} // its containers are as the kubelet has left them
		n.records[point] = nil
		n.tmpfs(point, &n.classes.LeftOver)
		n.expect(fault.StuckTermination, of.UID, "", "v", point)
		return
	case i > 0 && n.one(6):
		old := orphan.EntryEvidence{Entry: orphan.Entry{Path: "."}, EntryFacts: orphan.EntryFacts{Changed: n.has.node.Seen.Time.Add(-time.Hour)}}
		orphansOf(n.has).Pods = append(orphansOf(n.has).Pods, orphan.PodEvidence{Place: orphan.Place{UID: of.UID, Path: dir}, Entries: []orphan.EntryEvidence{old}})
		n.tmpfs(dir+"/etc-hosts", &n.classes.LeftOver)
		n.expect(fault.OrphanedPodVolumes, of.UID, "", "", "")
		return
	}
	n.running = append(n.running, of.UID)
	secrets, claims := n.IntN(4), n.IntN(3)
	if i == 0 && n.crowded {
		secrets = manySecrets
	}
	for v := range secrets {
		n.addSecret(&of, fmt.Sprint("s", v))
	}
	for v := range claims {
		n.addCSI(&of, fmt.Sprint("pv", v))
	}
	for v := range n.IntN(3) {
		name := fmt.Sprint("e", v)
		of.Places = append(of.Places, kubelet.Volume{PodUID: of.UID, Plugin: "kubernetes.io/empty-dir", Name: name})
		n.tmpfs(dir+"/volumes/kubernetes.io~empty-dir/"+name+"/in", &n.classes.Inside)
	}
	if n.disks.IntN(4) == 0 {
		n.addDisk(&of, "disk")
	}
	if n.one(5) {
		n.tmpfs(dir+"/stray", &n.classes.Unknown)
		n.notJudged(of.UID, "", "", dir+"/stray")
	}
	if i == 0 || n.IntN(2) == 0 {
		of.Spec = n.specOfPlaces(of)
	}
}

// specOfPlaces is the spec of a running pod that has these volumes.
func (n *randomNode) specOfPlaces(of mountstate.PodSource) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(of.UID), Namespace: "default", Name: "pod-" + of.UID}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	app := corev1.Container{Name: "c0"}
	for _, v := range of.Places {
		var from corev1.VolumeSource
		switch v.Plugin {
		case kubelet.CSIPlugin:
			from.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Name}
		case "kubernetes.io/secret":
			from.Secret = &corev1.SecretVolumeSource{}
		default:
			from.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: from})
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/in/" + v.Name + "/v"}, corev1.VolumeMount{Name: v.Name, MountPath: "/p" + v.Name, SubPath: "a"})
	}
	pod.Spec.Containers = []corev1.Container{app}
	for _, v := range n.csi {
		for _, c := range v.copies {
			if v.uid == of.UID {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.container, VolumeMounts: []corev1.VolumeMount{{Name: v.name, MountPath: c.point}}})
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	return pod
}

// addDriver adds the mounts that a driver has for the node: one of its own, perhaps a stack of them, or a staging path. It is of no pod
// if the spec of each pod is known.
func (n *randomNode) addDriver(i int) {
	stacks := n.has.evidence[stacksEntry].(*nodemount.Evidence)
	point := fmt.Sprint(n.layout.PluginsDir(), "/d", i, "/work")
	n.tmpfs(point, &n.classes.Drivers)
	if n.one(3) {
		for range 2 + n.IntN(3) {
			m := n.tmpfs(point, &n.classes.Hidden)
			n.table[m.ID-1].Parent = m.ID - 1
		}
		stacks.Stacks = append(stacks.Stacks, nodemount.Stack{Point: point, Top: fault.Mount{Point: point}, Layers: 3, Alike: 3, Kept: "it differs"})
		n.expect(fault.StackedMounts, "", "", "", point)
	}
	if !n.one(3) {
		return
	}
	record := &kubelet.VolumeRecord{Driver: "d.example.com", Handle: fmt.Sprint("left-", i), PersistentVolume: fmt.Sprint("left-", i)}
	staged := n.layout.StagingPoints(record.Driver, record.Handle, record.PersistentVolume)[0]
	n.records[staged] = record
	stacks.Staged = append(stacks.Staged, nodemount.Staged{Top: fault.Mount{Point: staged}, Record: record})
	if slices.ContainsFunc(n.sources, func(s mountstate.PodSource) bool { return s.Spec == nil || s.Spec.DeletionTimestamp != nil }) {
		stacks.Doubt = "the spec or a record of a pod is not known"
		n.tmpfs(staged, &n.classes.Unknown)
		n.notJudged("", "", "", staged)
		return
	}
	n.tmpfs(staged, &n.classes.LeftOver)
	n.expect(fault.LeftoverStaging, "", "", record.PersistentVolume, staged)
}

// newRandomNode makes a node with its answers: each link that is looked for again is still not there, and its pod runs.
func newRandomNode(seed uint64, root string, run int, now time.Time) *randomNode {
	n := &randomNode{
		Rand: rand.New(rand.NewPCG(seed, 2)), layout: kubelet.Elsewhere(root, root+"/pods").Layout, run: run, has: aRecording(), healthy: seed%4 == 0,
		hangs: seed%hangsEach == 1, crowded: seed%crowdedEach == crowdedEach/2, disks: rand.New(rand.NewPCG(seed, 3)),
		records: map[string]*kubelet.VolumeRecord{},
	}
	n.table = []mountinfo.Mount{{ID: 1, Major: 8, Root: "/", Point: "/"}}
	n.has.node.KubeletRoot, n.has.node.PodsDir, n.has.node.Seen.Time = root, root+"/pods", now
	n.has.node.Entries, n.has.node.PodUIDs = nil, nil
	subPathsOf(n.has).Found = nil
	orphans := orphansOf(n.has)
	orphans.At, orphans.MinimumAge, orphans.ServerAsked = now, time.Minute, true
	n.has.evidence[devicesEntry] = &device.Evidence{Host: mountns.Namespace{Inode: 5}}
	pods := n.IntN(7)
	if n.crowded {
		pods = 2
	}
	for i := range pods {
		n.addPod(i)
	}
	n.addDriver(0)
	l := &n.layout
	facts := &mountstate.Facts{Mounts: mountstate.Observe(l, mountinfo.NewTable(n.table))}
	facts.Pods, facts.Links = mountstate.Desired(l, n.sources, now)
	for i, v := range facts.Evaluate(l) {
		if v.Asks {
			facts.Links[i].Runs = "process 7"
		}
	}
	n.has.evidence[mountsEntry] = facts
	return n
}

// listed are the faults and the unknown places of own pods and points.
func (r *scanReport) listed(own func(uid, point string) bool) (faults, unknown []string) {
	for _, f := range r.Faults {
		if own(f.Pod.UID, f.Mount.Point) {
			faults = append(faults, fmt.Sprint(f.Code, " ", f.Pod.UID, " ", f.Container, " ", f.Volume, " ", f.Mount.Point))
		}
	}
	for _, u := range r.Looked.Unproven {
		if own(u.Pod.UID, u.Point) {
			unknown = append(unknown, fmt.Sprint(u.Pod.UID, " ", u.Container, " ", u.Volume, " ", u.Point))
		}
	}
	return faults, unknown
}

// TestRandomNodes makes nodes of random pods with random faults, and has a scan judge their answers. Each mount is counted in the class
// that it was made for. Each fault is found under its code, once, and no other. Each place that cannot be judged is said once. A
// healthy node is clean, and no other.
func TestRandomNodes(t *testing.T) {
	t.Parallel()
	for seed := *randomSeed; seed < *randomSeed+*randomRounds; seed++ {
		n := newRandomNode(seed, "/k", int(seed), time.Unix(1700000000, 0).UTC())
		s, err := scanOfBundle(writeBundle(t, n.has))
		must(t, err)
		r, err := s.newScanReport(t.Context(), scanOptions{})
		must(t, err)
		faults, unknown := r.listed(func(string, string) bool { return true })
		for _, list := range [][]string{faults, unknown, n.faults, n.unknown} {
			slices.Sort(list)
		}
		if diff := cmp.Diff(n.faults, faults) + cmp.Diff(n.unknown, unknown) + cmp.Diff(&n.classes, r.Looked.Classes); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
		if clean := len(faults)+len(unknown) == 0; r.Verdict.Clean != clean || n.healthy && !clean {
			t.Fatalf("seed %d: clean is %t, with %d faults and %d unknown places", seed, r.Verdict.Clean, len(faults), len(unknown))
		}
	}
}
