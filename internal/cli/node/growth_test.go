// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// A table of mounts is grown in each of these forms.
var tableForms = map[string]func(n int) []mountinfo.Mount{
	// One file system, with its root at n places.
	"beside": func(n int) []mountinfo.Mount {
		return tableOf(n, func(i int) mountinfo.Mount {
			return mountinfo.Mount{ID: i, Parent: 1, Major: 8, Minor: 1, Root: "/", Point: fmt.Sprintf("/m/%d", i)}
		})
	},
	"stacked": func(n int) []mountinfo.Mount {
		return tableOf(n, func(i int) mountinfo.Mount {
			return mountinfo.Mount{ID: i, Parent: i - 1, Major: 8, Minor: 1, Root: "/", Point: "/m"}
		})
	},
	// Each in the one before, so that one path leads over all of them.
	"deep": func(n int) []mountinfo.Mount {
		return tableOf(n, func(i int) mountinfo.Mount {
			return mountinfo.Mount{ID: i, Parent: i - 1, Major: 8, Minor: 1, Root: "/", Point: strings.Repeat("/m", min(i, 200))}
		})
	},
	// In the kubelet's directories, each hidden by another one.
	"hidden": func(n int) []mountinfo.Mount {
		return tableOf(n, func(i int) mountinfo.Mount {
			m := mountinfo.Mount{ID: i, Parent: 1, Major: 8, Minor: 1, Root: "/", Point: fmt.Sprintf("/k/plugins/p/%d", i/2*2)}
			if i%2 == 1 {
				m.Parent, m.Minor, m.Point = i-1, 9, m.Point+"/a"
			}
			return m
		})
	},
}

// crowded has all others on the one mount that holds every device.
func crowded(n int) []mountinfo.Mount {
	return tableOf(n, func(i int) mountinfo.Mount {
		return mountinfo.Mount{ID: i, Parent: min(i-1, 2), Major: 8, Minor: 1, Root: "/", Point: fmt.Sprintf("/m/%d", i)}
	})
}

func tableOf(n int, of func(i int) mountinfo.Mount) []mountinfo.Mount {
	all := []mountinfo.Mount{{ID: 1, Major: 8, Minor: 1, Root: "/", Point: "/"}}
	for i := range n {
		all = append(all, of(i+2))
	}
	return all
}

// devicesOn are devices with holders, whose namespaces have the table. Each mount of it is used, or the first ones alone.
func devicesOn(table []mountinfo.Mount, used, devices, holders int) nodeRecording {
	has := aRecording()
	of := &device.Evidence{Table: table, Tables: map[uint64][]mountinfo.Mount{9: table}, Host: mountns.Namespace{Inode: 5}}
	for d := range devices {
		name := fmt.Sprintf("rbd%d", d)
		report := devholder.Report{Device: blockdev.Device{Name: name}, Busy: true}
		for h := range holders {
			m := table[1+(d*holders+h)%used]
			report.Holders = append(report.Holders, devholder.Holder{
				Kind: devholder.Mount, Mount: mountns.Mount{Mount: m, Namespace: mountns.Namespace{Inode: 9}}, PIDs: []int{d + 10},
			})
		}
		of.Devices = append(of.Devices, device.DeviceEvidence{Report: report})
	}
	has.evidence[devicesEntry] = of
	return has
}

// grown are recordings that have n of something.
func grown() map[string]func(n int) nodeRecording {
	all := map[string]func(n int) nodeRecording{
		"binds": func(n int) nodeRecording {
			has := aRecording()
			one := subPathsOf(has).Found[0]
			for i := range n {
				one.SubPath.Container = fmt.Sprint("c", i)
				subPathsOf(has).Found = append(subPathsOf(has).Found, one)
			}
			return has
		},
		"pods": func(n int) nodeRecording {
			has := aRecording()
			var left []leaving.Remains
			one := subPathsOf(has).Found[0]
			for i := range n {
				uid := fmt.Sprint("u", i)
				has.node.Entries, has.node.PodUIDs = append(has.node.Entries, uid), append(has.node.PodUIDs, uid)
				has.node.RuntimeNames.Names[uid] = kubelet.PodName{Namespace: "shop", Name: uid}
				has.node.States = append(has.node.States, cri.State{PodUID: uid, Container: "c"})
				left = append(left, leaving.Remains{Pod: fault.Pod{UID: uid}, Path: "/k/pods/" + uid, RunsUnknown: "no answer", Text: "it is mounted"})
				has.node.Gaps = append(has.node.Gaps, mountstate.Gap{What: uid, Why: "it was not looked at"})
				one.SubPath.PodUID = uid
				subPathsOf(has).Found = append(subPathsOf(has).Found, one)
			}
			has.evidence[leavingEntry] = left
			return has
		},
		"volumes": func(n int) nodeRecording {
			has := aRecording()
			for i := range n {
				point := fmt.Sprintf("/k/pods/u/volumes/kubernetes.io~csi/v%d/mount", i)
				dead := mountns.Mount{Mount: mountinfo.Mount{ID: i + 2, Point: point, Root: "/", FSType: "fuse.x", Minor: 7}}
				of := volume.RecordedVolume{Evidence: volume.Evidence{
					Volume: volume.Volume{Plugin: "kubernetes.io/csi", Name: fmt.Sprint("v", i), Point: point, Mount: dead},
					Answer: probe.Answer{State: probe.Disconnected},
				}}
				of.Evidence.Pod.UID = "u"
				of.Copies = append(of.Copies, volume.RecordedCopy{Mount: dead, Answer: probe.Answer{State: probe.Disconnected}})
				volumesOf(has).Volumes = append(volumesOf(has).Volumes, of)
			}
			return has
		},
		"copies": func(n int) nodeRecording {
			has := aRecording()
			dead := mountns.Mount{Mount: mountinfo.Mount{ID: 2, Point: "/k/v", Root: "/", FSType: "fuse.x", Minor: 7}}
			of := volume.RecordedVolume{Evidence: volume.Evidence{
				Volume: volume.Volume{Plugin: "kubernetes.io/csi", Name: "v", Point: "/k/v", Mount: dead}, Answer: probe.Answer{State: probe.Disconnected},
			}}
			for i := range n {
				dead.ID, dead.Point = i+3, fmt.Sprint("/c/", i)
				of.Copies = append(of.Copies, volume.RecordedCopy{Mount: dead, Answer: probe.Answer{State: probe.Disconnected}})
			}
			volumesOf(has).Volumes = append(volumesOf(has).Volumes, of)
			return has
		},
		"left directories": func(n int) nodeRecording {
			has := aRecording()
			for i := range n {
				of := orphan.PodEvidence{}
				of.UID = fmt.Sprint("gone", i)
				of.Entries = append(of.Entries, orphan.EntryEvidence{})
				orphansOf(has).Pods = append(orphansOf(has).Pods, of)
			}
			return has
		},
	}
	all["mounts"] = func(n int) nodeRecording {
		has := aRecording()
		of := &mountstate.Facts{}
		for i := range n {
			uid := fmt.Sprint("u", i)
			of.Pods = append(of.Pods, mountstate.Pod{Pod: fault.Pod{UID: uid}, Life: mountstate.LifeWants})
			of.Links = append(of.Links, mountstate.Link{Kind: mountstate.VolumeLink, PodUID: uid, Plugin: "kubernetes.io/secret", Volume: "v"})
			of.Mounts = append(of.Mounts, mountstate.Mount{Point: "/k/pods/" + uid + "/volumes/kubernetes.io~secret/v"}, mountstate.Mount{Point: "/k/pods/" + uid + "/x"})
		}
		has.evidence[mountsEntry] = of
		return has
	}
	for name, form := range tableForms {
		all["devices "+name] = func(n int) nodeRecording { return devicesOn(form(n), n, 4, n/4) }
	}
	all["devices crowded"] = func(n int) nodeRecording { return devicesOn(crowded(n), 1, 4, n/4) }
	return all
}

// judgeRecording has a scan read a recording from a bundle, and returns how long that took, and how long all took.
func judgeRecording(t *testing.T, b *bundle.Bundle) (reading, all time.Duration) {
	t.Helper()
	if len(b.Manifest.LeftOut) > 0 {
		t.Fatalf("not in the bundle: %v", b.Manifest.LeftOut)
	}
	began := time.Now()
	s, err := scanOfBundle(b)
	must(t, err)
	reading = time.Since(began)
	r, err := s.newScanReport(t.Context(), scanOptions{})
	must(t, err)
	if text := (scanView{report: r}).reportText(); text == "" {
		t.Error("no text")
	}
	return reading, time.Since(began)
}

// TestWorkGrowsWithTheBundle holds that four times as much in a bundle makes four times as much work, and not sixteen times: of each judge, of
// the report and its text. It fails only if the larger one is slow beside the smaller one five times in a row.
func TestWorkGrowsWithTheBundle(t *testing.T) {
	for name, of := range grown() {
		t.Run(name, func(t *testing.T) { compareGrowth(t, func(n int) *bundle.Bundle { return writeBundle(t, of(n)) }) })
	}
	for name, of := range map[string]func(n int) (pods, containers, volumes int){
		"pods with specs":          func(n int) (int, int, int) { return n, 1, 1 },
		"pod with many volumes":    func(n int) (int, int, int) { return 1, 1, n },
		"pod with many containers": func(n int) (int, int, int) { return 1, n, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			compareGrowth(t, func(n int) *bundle.Bundle {
				pods, containers, volumes := of(n)
				return withSpecs(t, pods, containers, volumes)
			})
		})
	}
}

func compareGrowth(t *testing.T, of func(n int) *bundle.Bundle) {
	t.Helper()
	const n, times, limit = 1000, 4, 10
	small, large := of(n), of(times*n)
	var ratio float64
	for range 5 {
		_, four := judgeRecording(t, large)
		_, one := judgeRecording(t, small)
		if ratio = float64(four) / float64(one); ratio < limit {
			return
		}
	}
	t.Errorf("%d times as much takes %.0f times as long", times, ratio)
}

// withSpecs has the specs of pods that cannot start, with volumes that are bound by subPath and from the host.
func withSpecs(t *testing.T, pods, containers, volumes int) *bundle.Bundle {
	t.Helper()
	has := aRecording()
	sources := &subpath.Lookups{HostPaths: map[string]subpath.Lookup{}, Missing: map[string]bool{}}
	has.node.PodSpecs, has.evidence[sourcesEntry] = true, sources
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for p := range pods {
		pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("p", p), UID: types.UID(fmt.Sprint("u", p))}}
		var c corev1.Container
		for v := range volumes {
			name, host := fmt.Sprint("v", v), fmt.Sprintf("/h/%d/%d", p, v)
			sources.HostPaths[host], sources.Missing[host] = subpath.Lookup{Errno: sys.ENOENT}, true
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: host, Type: new(corev1.HostPathDirectory)},
			}})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name, SubPath: "a"})
		}
		pod.Status.Phase = corev1.PodPending
		for i := range containers {
			c.Name = fmt.Sprint("c", i)
			pod.Spec.Containers = append(pod.Spec.Containers, c)
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "failed to prepare subPath for volumeMount"},
			}})
		}
		list.Items = append(list.Items, pod)
		has.node.PodUIDs = append(has.node.PodUIDs, string(pod.UID))
	}
	text, err := json.Marshal(list)
	must(t, err)
	b := writeBundle(t, has)
	must(t, b.Add(podsEntry, "", text))
	return b
}

// TestLargeBundleIsJudged holds that large tables with many held devices are judged in a time like that of their reading: 20,000 mounts,
// 20 devices, 50 holders each.
func TestLargeBundleIsJudged(t *testing.T) {
	for name, form := range tableForms {
		t.Run(name, func(t *testing.T) {
			reading, all := judgeRecording(t, writeBundle(t, devicesOn(form(20_000), 20_000, 20, 50)))
			if all > 50*reading {
				t.Errorf("read in %s, all took %s", reading, all)
			}
		})
	}
}

// TestManyContainersAreAGap holds that a pod which is left out for its size is not called clean.
func TestManyContainersAreAGap(t *testing.T) {
	t.Parallel()
	for containers, want := range map[int]bool{64: false, 65: true} {
		s, err := scanOfBundle(withSpecs(t, 1, containers, 1))
		must(t, err)
		r, err := s.newScanReport(t.Context(), scanOptions{})
		must(t, err)
		got := slices.ContainsFunc(r.Looked.Gaps.NotLookedAt, func(g mountstate.Gap) bool { return strings.Contains(g.What, "pod shop/p0") })
		if got != want {
			t.Errorf("%d containers: not looked at %+v", containers, r.Looked.Gaps.NotLookedAt)
		}
	}
}
