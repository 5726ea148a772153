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

// randomNode is a node of random pods, with faults that are made on purpose. Its evidence stands for the answers of a node.
type randomNode struct {
	*rand.Rand
	has     nodeRecording
	table   []mountinfo.Mount
	sources []mountstate.PodSource
	// faults and unknown are those that were made, and classes the reasons for which mounts were made.
	faults, unknown []string
	classes         mountstate.Classes
	healthy         bool
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
		Pod: fault.Pod{UID: of.UID}, Plugin: kubelet.CSIPlugin, Name: name, Point: kubelet.Elsewhere("/k", "/k/pods").VolumePoint(place),
	}, Answer: probe.Answer{State: probe.Alive}}}
	e := &recorded.Evidence
	if n.one(6) { // it is not mounted, and perhaps a container has its directory
		if n.IntN(2) == 0 {
			n.notJudged(of.UID, "", name, e.Point)
			return
		}
		e.PlainAt = `container "c0" at "/data"`
		n.expect(fault.DeletedVolumeSource, of.UID, "", name, e.Point)
		volumesOf(n.has).Volumes = append(volumesOf(n.has).Volumes, recorded)
		return
	}
	class, code := &n.classes.Wanted, fault.Code("")
	codes := []fault.Code{fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle, fault.VolumeIOError, fault.DeletedVolumeSource}
	switch {
	case n.one(3):
		code = codes[n.IntN(len(codes))]
		e.Answer = brokenAnswers[code]
		n.expect(code, of.UID, "", name, e.Point)
	case n.one(8):
		class, e.Answer = &n.classes.Unknown, probe.Answer{State: probe.Denied, Errno: sys.EACCES}
		n.notJudged(of.UID, "", name, e.Point)
	}
	e.Mount = mountns.Mount{Mount: n.mount(e.Point, "fuse.d", class), Namespace: mountns.Namespace{Inode: 5}}
	for i := range n.IntN(3) {
		c := volume.RecordedCopy{Mount: e.Mount, Holder: volume.Holder{Pod: e.Pod, Container: fmt.Sprint("c", i)}, Answer: e.Answer}
		c.Mount.Namespace.Inode, c.Mount.Point = uint64(100+len(n.table)*3+i), "/data"
		if code == "" && e.Answer.State == probe.Alive && n.one(3) { // the driver has mounted it again, for the kubelet alone
			c.Answer = brokenAnswers[fault.DisconnectedFUSE]
			n.expect(fault.DisconnectedFUSE, of.UID, c.Holder.Container, name, "/data")
		} else if code != "" {
			n.expect(code, of.UID, c.Holder.Container, name, "/data")
		}
		recorded.Copies = append(recorded.Copies, c)
	}
	volumesOf(n.has).Volumes = append(volumesOf(n.has).Volumes, recorded)
}

// addSecret adds a Secret with a tmpfs, perhaps with a subPath bind that may be stale, and the mount of a container that may not be right.
func (n *randomNode) addSecret(of *mountstate.PodSource, name string) {
	place := kubelet.Volume{PodUID: of.UID, Plugin: "kubernetes.io/secret", Name: name}
	of.Places = append(of.Places, place)
	point := kubelet.Elsewhere("/k", "/k/pods").VolumePoint(place)
	if n.one(8) {
		n.notJudged(of.UID, "", name, point)
		return
	}
	m := n.mount(point, "tmpfs", &n.classes.Wanted)
	if n.IntN(3) == 0 {
		bind := kubelet.SubPath{PodUID: of.UID, Volume: name, Container: "c0", Index: 2*len(of.Places) - 1} // as specOfPlaces has it
		at := n.mount(kubelet.Elsewhere("/k", "/k/pods").SubPathPoint(bind), "tmpfs", &n.classes.Wanted)
		if n.one(2) {
			subPathsOf(n.has).Found = append(subPathsOf(n.has).Found, subpath.BindEvidence{
				SubPath: bind, Expected: podinfo.SubPathMount{Container: "c0", Volume: corev1.Volume{Name: name}},
				State: mount.State{ID: mount.ID{Point: at.Point, Root: "/a//deleted"}, FSType: "tmpfs", Deleted: true, Gone: true},
			})
			n.expect(fault.StaleSubPath, of.UID, "c0", name, at.Point)
		}
	}
	if n.IntN(2) == 0 {
		wants := mountstate.Directory{Device: fmt.Sprint("0:", m.Minor), Path: "/"}
		c := mountstate.ContainerMount{Container: "c0", ID: "id" + of.UID, From: point, Point: "/" + name, Wants: wants, Has: wants}
		switch {
		case n.IntN(4) == 0:
			c.Has, c.Elsewhere = mountstate.Directory{}, true
		case n.one(2):
			c.Covered = n.IntN(2) == 0
			c.Has = []mountstate.Directory{{}, {Device: "0:9999", Path: "/"}}[n.IntN(2)]
			n.notJudged(of.UID, "c0", name, c.Point)
		}
		of.Mounts = append(of.Mounts, c)
	}
}

// addPod adds a pod with random volumes. Some have no spec, some are being deleted and stay, and some are gone.
func (n *randomNode) addPod(i int) {
	of := mountstate.PodSource{UID: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i)}
	dir := "/k/pods/" + of.UID
	n.has.node.Entries, n.has.node.PodUIDs = append(n.has.node.Entries, of.UID), append(n.has.node.PodUIDs, of.UID)
	defer func() { n.sources = append(n.sources, of) }()
	switch {
	case n.one(6):
		n.has.evidence[leavingEntry] = append(n.has.evidence[leavingEntry].([]leaving.Remains), leaving.Remains{
			Pod: fault.Pod{UID: of.UID}, Path: dir, Over: true, Text: "it is being deleted",
			Places: []leaving.Place{{Kind: leaving.OfVolume, Volume: "v", NoRecord: "the record is empty", Mount: fault.Mount{Point: dir + "/volumes/kubernetes.io~csi/v/mount"}}},
		})
		of.Places = append(of.Places, kubelet.Volume{PodUID: of.UID, Plugin: kubelet.CSIPlugin, Name: "v"})
		n.mount(dir+"/volumes/kubernetes.io~csi/v/mount", "tmpfs", &n.classes.LeftOver)
		n.expect(fault.StuckTermination, of.UID, "", "v", dir+"/volumes/kubernetes.io~csi/v/mount")
		return
	case n.one(6):
		old := orphan.EntryEvidence{Entry: orphan.Entry{Path: "."}, EntryFacts: orphan.EntryFacts{Changed: n.has.node.Seen.Time.Add(-time.Hour)}}
		orphansOf(n.has).Pods = append(orphansOf(n.has).Pods, orphan.PodEvidence{Place: orphan.Place{UID: of.UID, Path: dir}, Entries: []orphan.EntryEvidence{old}})
		n.mount(dir+"/etc-hosts", "tmpfs", &n.classes.LeftOver)
		n.expect(fault.OrphanedPodVolumes, of.UID, "", "", "")
		return
	}
	secrets, claims := n.IntN(4), n.IntN(3)
	for v := range secrets {
		n.addSecret(&of, fmt.Sprint("s", v))
	}
	for v := range claims {
		n.addCSI(&of, fmt.Sprint("pv", v))
	}
	for v := range n.IntN(3) {
		name := fmt.Sprint("e", v)
		of.Places = append(of.Places, kubelet.Volume{PodUID: of.UID, Plugin: "kubernetes.io/empty-dir", Name: name})
		n.mount(dir+"/volumes/kubernetes.io~empty-dir/"+name+"/in", "tmpfs", &n.classes.Inside)
	}
	if n.one(5) {
		n.mount(dir+"/stray", "tmpfs", &n.classes.Unknown)
		n.notJudged(of.UID, "", "", dir+"/stray")
	}
	if n.IntN(2) == 0 {
		of.Spec = specOfPlaces(of)
	}
}

// specOfPlaces is the spec of a running pod that has these volumes.
func specOfPlaces(of mountstate.PodSource) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(of.UID)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
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
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name}, corev1.VolumeMount{Name: v.Name, MountPath: "/p" + v.Name, SubPath: "a"})
	}
	pod.Spec.Containers = []corev1.Container{app}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return pod
}

// addDriver adds the mounts that a driver has for the node: one of its own, perhaps a stack of them, or a staging path of no pod.
func (n *randomNode) addDriver(i int) {
	stacks := n.has.evidence[stacksEntry].(*nodemount.Evidence)
	point := fmt.Sprint("/k/plugins/d", i, "/work")
	n.mount(point, "tmpfs", &n.classes.Drivers)
	if n.one(3) {
		for range 1 + n.IntN(4) {
			m := n.mount(point, "tmpfs", &n.classes.Hidden)
			n.table[m.ID-1].Parent = m.ID - 1
		}
		stacks.Stacks = append(stacks.Stacks, nodemount.Stack{Point: point, Top: fault.Mount{Point: point}, Layers: 3, Alike: 3, Kept: "it differs"})
		n.expect(fault.StackedMounts, "", "", "", point)
	}
	if staged := fmt.Sprint("/k/plugins/kubernetes.io/csi/d/", i, "/globalmount"); n.one(3) {
		n.mount(staged, "tmpfs", &n.classes.LeftOver)
		stacks.Staged = append(stacks.Staged, nodemount.Staged{Top: fault.Mount{Point: staged}})
		n.expect(fault.LeftoverStaging, "", "", "", staged)
	}
}

// newRandomNode makes a node with its answers: each link that is looked for again is still not there, and its pod runs.
func newRandomNode(seed uint64) *randomNode {
	n := &randomNode{Rand: rand.New(rand.NewPCG(seed, 2)), has: aRecording(), healthy: seed%4 == 0}
	n.table = []mountinfo.Mount{{ID: 1, Major: 8, Root: "/", Point: "/"}}
	n.has.node.Entries, n.has.node.PodUIDs = nil, nil
	subPathsOf(n.has).Found = nil
	orphans := orphansOf(n.has)
	orphans.At, orphans.MinimumAge, orphans.ServerAsked = n.has.node.Seen.Time, time.Minute, true
	n.has.evidence[devicesEntry] = &device.Evidence{Host: mountns.Namespace{Inode: 5}}
	for i := range n.IntN(7) {
		n.addPod(i)
	}
	n.addDriver(0)
	l := &kubelet.Elsewhere("/k", "/k/pods").Layout
	facts := &mountstate.Facts{Mounts: mountstate.Observe(l, mountinfo.NewTable(n.table))}
	facts.Pods, facts.Links = mountstate.Desired(l, n.sources, n.has.node.Seen.Time)
	for i, v := range facts.Evaluate(l) {
		if v.Asks {
			facts.Links[i].Runs = "process 7"
		}
	}
	n.has.evidence[mountsEntry] = facts
	return n
}

// TestRandomNodes makes nodes of random pods with random faults, and has a scan judge their answers. Each mount is counted in the class
// that it was made for. Each fault is found under its code, once, and no other. Each place that cannot be judged is said once. A
// healthy node is clean, and no other.
func TestRandomNodes(t *testing.T) {
	t.Parallel()
	for seed := *randomSeed; seed < *randomSeed+*randomRounds; seed++ {
		n := newRandomNode(seed)
		s, err := scanOfBundle(writeBundle(t, n.has))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.newScanReport(t.Context(), scanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var faults, unknown []string
		for _, f := range r.Faults {
			point := f.Mount.Point
			faults = append(faults, fmt.Sprint(f.Code, " ", f.Pod.UID, " ", f.Container, " ", f.Volume, " ", point))
		}
		for _, u := range r.Looked.Unproven {
			unknown = append(unknown, fmt.Sprint(u.Pod.UID, " ", u.Container, " ", u.Volume, " ", u.Point))
		}
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
