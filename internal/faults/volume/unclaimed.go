// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// A container may have a file system that is no volume's which is known: a hostPath whose spec was not given, or a mount
// that it has made itself. If that file system is dead, the kernel proves it without any spec.

// maxUnclaimed bounds how many such file systems are asked in one inspection.
const maxUnclaimed = 256

// unclaimed are the mounts of such file systems in containers of this kubelet's pods.
type unclaimed struct {
	claimed  map[device]bool // of a volume, or of another mount below the kubelet's directories
	onHost   map[device]bool // of a mount of the kubelet's namespace elsewhere
	podUIDs  []string        // the pods of this kubelet
	byDevice map[device][]*unclaimedMount
}

// unclaimedMount is one of them.
type unclaimedMount struct {
	*Copy
	podUID string
	other  *otherNamespace
}

// isRemote reports whether a file system waits for another machine or a process. An automounter is none: a container
// has it with the mounts of the host, and its daemon is never gone for a container alone.
func isRemote(fsType string) bool { return mountns.MayHang(fsType) && fsType != "autofs" }

// newUnclaimed notes which file systems are of volumes, and which others the kubelet's namespace has.
func (s *copySearch) newUnclaimed(ctx context.Context) (unclaimed, error) {
	u := unclaimed{claimed: map[device]bool{}, onHost: map[device]bool{}, byDevice: map[device][]*unclaimedMount{}}
	for _, m := range s.visibleMounts {
		u.claimed[deviceOf(m)] = true
	}
	for _, v := range s.volumes {
		u.claimed[deviceOf(v.Mount.Mount)] = true
	}
	for _, m := range s.table.Mounts() {
		if d := deviceOf(m); isRemote(m.FSType) && !u.claimed[d] {
			u.onHost[d] = true
		}
	}
	var err error
	u.podUIDs, err = s.node.PodUIDs(ctx)
	return u, err
}

// podOf is the UID of the pod of this kubelet whose container has the namespace: the kernel says so by the control group of
// a process there, and the runtime names no other pod. Empty: it is of no such pod.
func (u *unclaimed) podOf(other *otherNamespace) string {
	for _, uid := range u.podUIDs {
		if other.owner != nil && other.owner.PodUID != uid {
			continue
		}
		if slices.ContainsFunc(other.cgroups, func(text string) bool { return cri.NamesPod(text, uid) }) {
			return uid
		}
	}
	return ""
}

// addUnclaimed notes a mount of a container that is of no volume.
func (s *copySearch) addUnclaimed(c *Copy, other *otherNamespace) {
	d := deviceOf(c.Mount.Mount)
	if s.scope.Volume != "" || other.workloadMade || !isRemote(c.FSType) || s.unclaimed.claimed[d] || s.isOfKubelet(c, other) ||
		cameWithHost(c, other) {
		return
	}
	uid := s.unclaimed.podOf(other)
	if uid == "" || s.scope.PodUID != "" && uid != s.scope.PodUID || !s.hasRoom(c) {
		return
	}
	s.unclaimed.byDevice[d] = append(s.unclaimed.byDevice[d], &unclaimedMount{c, uid, other})
}

// isOfKubelet reports whether the mount came with a directory of the kubelet's, as in the container of a driver: it is a
// copy of the volume of another pod.
func (s *copySearch) isOfKubelet(c *Copy, other *otherNamespace) bool {
	return slices.ContainsFunc([]string{c.Point, hostPlaceOf(c, other)}, func(name string) bool {
		return strings.Contains(name+"/", s.node.PodsDir()+"/") || strings.Contains(name+"/", s.node.PluginsDir()+"/")
	})
}

// cameWithHost reports whether the mount came with the root directory of the node, as in the container of an exporter: it is
// a mount of the node, or of another kubelet there, and no volume of the pod.
func cameWithHost(c *Copy, other *otherNamespace) bool {
	record, _, ok := recordAbove(c, other)
	return ok && path.Clean(record.HostPath) == "/"
}

// hostPlaceOf is the path of the host from which the runtime has mounted what is at the point of the copy; empty if it has
// not.
func hostPlaceOf(c *Copy, other *otherNamespace) string {
	record, below, ok := recordAbove(c, other)
	if !ok {
		return ""
	}
	return path.Join(record.HostPath, below)
}

// recordAbove is the runtime's record of the mount that is next above the point of the copy, or at it, and the way from there.
func recordAbove(c *Copy, other *otherNamespace) (record cri.Mount, below string, ok bool) {
	if other.owner == nil {
		return cri.Mount{}, "", false
	}
	longest := -1
	for _, m := range other.owner.Mounts {
		at := path.Clean("/" + m.ContainerPath)
		if way, above := mountinfo.Below(at, c.Point); above && len(at) > longest {
			longest, record, below, ok = len(at), m, way, true
		}
	}
	return record, below, ok
}

// judgeUnclaimed asks each of the file systems, and takes in those that are dead.
func (s *copySearch) judgeUnclaimed(ctx context.Context) error {
	var all [][]*unclaimedMount
	for _, list := range s.unclaimed.byDevice {
		slices.SortFunc(list, func(a, b *unclaimedMount) int {
			return cmp.Or(cmp.Compare(a.podUID, b.podUID), cmp.Compare(a.Namespace.Inode, b.Namespace.Inode), cmp.Compare(a.Point, b.Point))
		})
		all = append(all, list)
	}
	slices.SortFunc(all, func(a, b []*unclaimedMount) int {
		return cmp.Or(cmp.Compare(a[0].Minor, b[0].Minor), cmp.Compare(a[0].Major, b[0].Major))
	})
	if len(all) > maxUnclaimed {
		s.seen.Unknown.AddGap("file systems in containers that are of no known volume", fmt.Sprintf("there are more than %d, and the others were not asked",
			maxUnclaimed))
		all = all[:maxUnclaimed]
	}
	if err := s.askUnclaimed(ctx, all); err != nil {
		return err
	}
	return s.node.Do(ctx, func() error {
		for _, list := range all {
			s.takeUnclaimed(list)
		}
		return ctx.Err()
	})
}

// askUnclaimed asks the first mount of each file system. If that has gone meanwhile, it asks the next one.
func (s *copySearch) askUnclaimed(ctx context.Context, all [][]*unclaimedMount) error {
	for n := range maxPasses {
		var requests []probeRequest
		for _, list := range all {
			if n < len(list) && (n == 0 || list[0].Answer.State == probe.Gone) {
				requests = append(requests, probeRequest{probeTarget(list[n].podUID, list[n].Copy.Mount, "", false), func(a probe.Answer) {
					list[0], list[n] = list[n], list[0] // the one that was asked is the first
					list[0].Answer = a
				}})
			}
		}
		if err := s.prober.askAll(ctx, requests); err != nil || len(requests) == 0 {
			return err
		}
	}
	return nil
}

// takeUnclaimed takes in the mounts of one file system whose first mount has answered, one for each container. It is
// called inside the kubelet's namespace.
func (s *copySearch) takeUnclaimed(list []*unclaimedMount) {
	first := list[0]
	verdict, whole := judgeAnswer(first.Answer, false), false
	switch {
	case verdict.Code == fault.DisconnectedFUSE, verdict.Code == fault.HungMount:
		whole = true // each mount of the file system is so
	case verdict.Code == fault.VolumeIOError, verdict.Code == fault.StaleFileHandle:
	case verdict.UnknownReason == "", verdict.Code != "", first.Answer.State == probe.Denied, first.Answer.State == probe.Gone:
		return // it answers, or its owner refuses root, or it is not there any more
	}
	taken := map[mountns.Key]bool{}
	for _, m := range list {
		if key := m.Namespace.Key(); !taken[key] && (whole || unmarkedRoot(m.Copy.Mount.Mount) == unmarkedRoot(first.Copy.Mount.Mount)) && s.isVisible(m) {
			taken[key] = true
			s.takeUnclaimedMount(m, first.Answer, verdict)
		}
	}
}

// isVisible reports whether no other mount hides the mount from its processes.
func (s *copySearch) isVisible(m *unclaimedMount) bool {
	table := s.namespaces.tableOf(m.other)
	if table == nil {
		return true
	}
	top, ok := table.Top(m.Point)
	return ok && top.ID == m.ID
}

// takeUnclaimedMount adds a mount to the volumes if its container is known and it is broken. Else it is not judged.
func (s *copySearch) takeUnclaimedMount(m *unclaimedMount, answer probe.Answer, verdict Verdict) {
	if verdict.Code == "" || m.Container == "" {
		reason := cmp.Or(verdict.UnknownReason, verdict.Reason())
		if m.Container == "" {
			reason += fmt.Sprintf("; process %d of the pod is in mount namespace %s, and which container that is, is not known: %s",
				m.Namespace.PID, m.Namespace, m.other.ownerReason)
		}
		s.seen.Unknown.AddPlace(mountstate.Place{Pod: s.faultPod(m.podUID), Container: m.Container, Point: m.Point, Namespace: m.Namespace.String(), Reason: reason})
		return
	}
	from := "the container runtime has not mounted it"
	if at := hostPlaceOf(m.Copy, m.other); at != "" {
		from = fmt.Sprintf("the container runtime has it from %q", at)
	}
	answer.ID = mount.IDOf(m.Copy.Mount)
	e := Evidence{Answer: answer, Volume: Volume{
		Pod: m.Pod, Container: m.Container, Point: m.Point, Mount: m.Copy.Mount, spec: podSpec{pod: s.podByUID(m.podUID)},
		NoStagingReason: fmt.Sprintf("it is in mount namespace %s of %s, and of no volume that the kubelet keeps; %s", m.Namespace, m.describe(), from),
	}}
	s.volumes = append(s.volumes, &Health{Evidence: e, Verdict: Judge(e), Replacement: Replacement{NoSourceReason: e.NoStagingReason}})
}
