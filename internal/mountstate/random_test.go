// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// rounds is a flag: go test ./internal/mountstate -rounds=10000.
var rounds = flag.Uint64("rounds", 1000, "how many random nodes are classified")

// randomNode is a node that is made of random pods. Each mount is made for a reason, which is its class.
type randomNode struct {
	*rand.Rand
	mounts  []mountinfo.Mount
	want    []Class
	sources []PodSource
	sum     Survey
}

// mount adds a mount that nothing hides, of a file system of its own.
func (n *randomNode) mount(point string, class Class) mountinfo.Mount {
	id := len(n.mounts) + 1
	m := mountinfo.Mount{ID: id, Parent: 1, Major: 0, Minor: uint32(id), Root: "/", Point: point, FSType: "tmpfs"}
	n.mounts, n.want = append(n.mounts, m), append(n.want, class)
	return m
}

// place adds the kubelet's place of a volume of the last pod.
func (n *randomNode) place(plugin, name string) {
	of := &n.sources[len(n.sources)-1]
	of.Places = append(of.Places, kubelet.Volume{PodUID: of.UID, Plugin: plugin, Name: name})
}

// volumeKinds make the volume of a pod with the mounts that the kubelet makes for it.
var volumeKinds = []func(n *randomNode, uid, name string) corev1.Volume{
	func(n *randomNode, uid, name string) corev1.Volume {
		n.place("kubernetes.io/secret", name)
		n.mount("/k/pods/"+uid+"/volumes/kubernetes.io~secret/"+name, Wanted)
		return source(name, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}})
	},
	func(n *randomNode, uid, name string) corev1.Volume {
		n.place("kubernetes.io/projected", name)
		n.mount("/k/pods/"+uid+"/volumes/kubernetes.io~projected/"+name, Wanted)
		return source(name, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}})
	},
	func(n *randomNode, _, name string) corev1.Volume {
		n.place("kubernetes.io/configmap", name)
		return source(name, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}})
	},
	func(n *randomNode, uid, name string) corev1.Volume {
		n.place("kubernetes.io/empty-dir", name)
		for i := range n.IntN(3) {
			n.mount(fmt.Sprintf("/k/pods/%s/volumes/kubernetes.io~empty-dir/%s/in%d", uid, name, i), Inside)
		}
		return source(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	},
	func(n *randomNode, uid, name string) corev1.Volume {
		n.place("kubernetes.io/nfs", name)
		n.mount("/k/pods/"+uid+"/volumes/kubernetes.io~nfs/"+name, Wanted)
		return source(name, corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})
	},
	func(_ *randomNode, _, name string) corev1.Volume {
		return source(name, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}})
	},
	func(n *randomNode, uid, name string) corev1.Volume { // staged, and bound from there
		at := n.mount("/k/plugins/kubernetes.io/csi/d/"+uid+name+"/globalmount", Wanted)
		n.place(kubelet.CSIPlugin, "pvc-"+name)
		n.mount("/k/pods/"+uid+"/volumes/kubernetes.io~csi/pvc-"+name+"/mount", Wanted)
		n.mounts[len(n.mounts)-1].Minor = at.Minor
		return source(name, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	},
	func(n *randomNode, uid, name string) corev1.Volume { // staged, and mounted by itself: the record says whose it is
		r := &kubelet.VolumeRecord{Driver: "d", Handle: uid + name, PersistentVolume: "pv-" + name}
		n.mount(layout().StagingPoints(r.Driver, r.Handle, r.PersistentVolume)[0], Wanted)
		n.place(kubelet.CSIPlugin, "pv-"+name)
		n.mount("/k/pods/"+uid+"/volumes/kubernetes.io~csi/pv-"+name+"/mount", Wanted)
		of := &n.sources[len(n.sources)-1]
		of.Records = append(of.Records, r)
		return source(name, corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	},
}

// addPod adds a pod with random volumes and subPaths. known is whether a source has its spec.
func (n *randomNode) addPod(uid string, known bool) {
	pod := podOf(uid)
	n.sources = append(n.sources, PodSource{UID: uid})
	for c := range 1 + n.IntN(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", c)})
	}
	for i := range n.IntN(6) {
		v := volumeKinds[n.IntN(len(volumeKinds))](n, uid, fmt.Sprint("v", i))
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		c := &pod.Spec.Containers[n.IntN(len(pod.Spec.Containers))]
		m := corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name}
		if n.IntN(3) == 0 {
			m.SubPath = "a"
			name := v.Name
			if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
				name = "pv-" + v.Name
			}
			n.mount(fmt.Sprintf("/k/pods/%s/volume-subpaths/%s/%s/%d", uid, name, c.Name, len(c.VolumeMounts)), Wanted)
		}
		c.VolumeMounts = append(c.VolumeMounts, m)
	}
	if !known {
		return
	}
	n.sources[len(n.sources)-1].Spec = pod
	if n.IntN(4) > 0 {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
}

// hide lays another mount over some: the lower ones are hidden, and the new one is in the class of the place.
func (n *randomNode) hide() {
	for i := range len(n.mounts) {
		if n.want[i] == Wanted && n.IntN(20) == 0 {
			upper := n.mount(n.mounts[i].Point, n.want[i])
			n.mounts[upper.ID-1].Parent, n.mounts[upper.ID-1].Minor = n.mounts[i].ID, n.mounts[i].Minor
			n.want[i] = Hidden
		}
	}
}

func newRandomNode(seed uint64) *randomNode {
	n := &randomNode{Rand: rand.New(rand.NewPCG(seed, 1))}
	n.mounts, n.want = []mountinfo.Mount{{ID: 1, Major: 8, Point: "/", Root: "/"}}, []Class{""}
	n.mount("/k", Kubelets)
	n.mounts[1].Parent = 1
	for i := range n.IntN(4) {
		n.mount(fmt.Sprint("/k/plugins/driver/", i), Drivers)
	}
	for i := range 1 + n.IntN(5) {
		n.addPod(uidOf(i), n.IntN(3) > 0)
	}
	for i := range n.mounts[2:] { // all lie on the kubelet's root
		n.mounts[i+2].Parent = n.mounts[1].ID
	}
	n.hide()
	return n
}

// addStrays adds mounts that no spec has, and pods that are over. It returns how many mounts are unknown.
func (n *randomNode) addStrays() (strays int) {
	for i, s := range n.sources {
		if s.Spec == nil || n.IntN(2) == 0 {
			continue
		}
		dir := "/k/pods/" + s.UID
		for _, point := range []string{dir + "/data", dir + "/volumes/kubernetes.io~secret/none", dir + "/volume-subpaths/none/c0/77"}[:1+n.IntN(3)] {
			n.mount(point, Unproven)
			n.mounts[len(n.mounts)-1].Parent = n.mounts[1].ID
			strays++
		}
		if n.IntN(4) == 0 {
			n.sum.Over = append(n.sum.Over, n.sources[i].UID)
		}
	}
	return strays
}

// TestRandomNodes makes nodes of pods with volumes of every kind, layers and strays. Each mount is in the class that it was made for,
// also by facts that were written down. All are counted once. A node without strays has nothing unknown.
func TestRandomNodes(t *testing.T) {
	t.Parallel()
	for seed := range *rounds {
		n := newRandomNode(seed)
		strays := 0
		if seed%2 == 1 {
			strays = n.addStrays()
		}
		f := Facts{Mounts: Observe(layout(), mountinfo.NewTable(n.mounts))}
		f.Pods, f.Links = Desired(layout(), n.sources, now)
		n.sum.Mounts = f.Classify(layout())
		left := 0
		for i, m := range n.sum.Mounts {
			if want := n.want[i+1]; m.Class != want { // the first is that of the machine's root
				t.Fatalf("seed %d: %s is %s (%s), want %s", seed, m.Point, m.Class, m.Reason, want)
			}
			for _, uid := range n.sum.Over {
				if m.Pod.UID == uid {
					left++
				}
			}
		}
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var again Facts
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if judged := again.Classify(layout()); !slices.Equal(n.sum.Mounts, judged) {
			t.Fatalf("seed %d: %s", seed, cmp.Diff(n.sum.Mounts, judged))
		}
		c := n.sum.Account()
		if c.Mounts != len(n.mounts)-1 || sumOf(c) != c.Mounts || c.LeftOver != left {
			t.Fatalf("seed %d: %+v of %d mounts, %d left over", seed, c, len(n.mounts)-1, left)
		}
		if strays == 0 && (c.Unknown != 0 || len(n.sum.Unknown.Places) != 0) || strays > 0 && c.Unknown+c.LeftOver < strays {
			t.Fatalf("seed %d: %d strays, %+v", seed, strays, c)
		}
	}
}

// lose takes away all mounts at the places of some volumes. It returns those places that a pod wants which has started, or which no source knows.
func (n *randomNode) lose(f *Facts) (lost []string) {
	started := map[string]bool{}
	for _, s := range n.sources {
		started[s.UID] = s.Spec == nil || len(s.Spec.Status.ContainerStatuses) > 0
	}
	for _, m := range slices.Clone(f.Mounts) {
		v, ok := layout().ParseVolume(m.Point)
		if !ok || m.Hidden || n.IntN(4) > 0 {
			continue
		}
		f.Mounts = slices.DeleteFunc(f.Mounts, func(of Mount) bool { return of.Point == m.Point })
		if started[v.PodUID] {
			lost = append(lost, m.Point)
		}
	}
	slices.Sort(lost)
	return lost
}

// TestRandomLinks makes the same nodes: without a stray no link is to be looked for again. Those whose mounts are taken away are, each of them
// once and no other; if they are not found again, each is unknown, also by facts that were written down.
func TestRandomLinks(t *testing.T) {
	t.Parallel()
	for seed := range *rounds {
		n := newRandomNode(seed)
		f := Facts{Mounts: Observe(layout(), mountinfo.NewTable(n.mounts))}
		f.Pods, f.Links = Desired(layout(), n.sources, now)
		if sum := f.Survey(layout()); len(sum.Unknown.Places) > 0 || slices.ContainsFunc(f.Evaluate(layout()), func(v Verdict) bool { return v.Asks }) {
			t.Fatalf("seed %d: healthy, %+v", seed, sum.Unknown)
		}
		lost := n.lose(&f)
		var asked, unknown []string
		for i, v := range f.Evaluate(layout()) {
			if v.Asks {
				asked, f.Links[i].Runs = append(asked, v.Point), "process 7"
			}
		}
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var again Facts
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		for _, p := range again.Survey(layout()).Unknown.Places {
			unknown = append(unknown, p.Point)
		}
		slices.Sort(asked)
		slices.Sort(unknown)
		if !slices.Equal(asked, lost) || !slices.Equal(unknown, lost) {
			t.Fatalf("seed %d: lost %q, asked %q, unknown %q", seed, lost, asked, unknown)
		}
	}
}
