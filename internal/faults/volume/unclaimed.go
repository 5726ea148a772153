// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

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

const (
	// maxUnclaimed bounds how many such file systems are asked in one inspection.
	maxUnclaimed = 256
	// maxTried bounds how many mounts of one of them are asked.
	maxTried = 4
)

// unclaimed are the mounts of such file systems in containers of this kubelet's pods.
type unclaimed struct {
	claimed  map[device]bool // of a volume, or of another mount below the kubelet's directories
	onHost   map[device]bool // of a mount of the kubelet's namespace elsewhere
	podUIDs  []string        // the pods of this kubelet
	byDevice map[device][]*unclaimedMount
}

// unclaimedMount is one of them.
type unclaimedMount struct {
	found  *Copy
	podUID string
	other  *otherNamespace
	from   string // the path of the host from which the runtime has mounted it; empty: it has not
}

// isRemote reports whether a file system waits for another machine or a process. An automounter is none: a container
// has it with the mounts of the host, and its daemon is never gone for a container alone.
func isRemote(fsType string) bool { return mountns.MayHang(fsType) && fsType != "autofs" }

// newUnclaimed notes which file systems are of volumes, and which others the kubelet's namespace has.
func newUnclaimed(ctx context.Context, h *hostMounts, volumes []*Health) (unclaimed, error) {
	u := unclaimed{claimed: map[device]bool{}, onHost: map[device]bool{}, byDevice: map[device][]*unclaimedMount{}}
	for _, m := range h.visibleMounts {
		u.claimed[deviceOf(m)] = true
	}
	for _, v := range volumes {
		u.claimed[deviceOf(v.Evidence.Mount.Mount)] = true
	}
	for _, m := range h.table.Mounts() {
		if d := deviceOf(m); isRemote(m.FSType) && !u.claimed[d] {
			u.onHost[d] = true
		}
	}
	var err error
	u.podUIDs, err = h.node.PodUIDs(ctx)
	return u, err
}

// addUnclaimed notes a mount of a container that is of no volume. Two kinds are not the pod's. A mount that came with a
// directory of the kubelet's, as in the container of a driver, is a copy of the volume of another pod. A mount that came with
// the root directory of the node, as in the container of an exporter, is the node's, or of another kubelet there.
func (s *copySearch) addUnclaimed(c *Copy, other *otherNamespace) {
	d, scope := deviceOf(c.Mount.Mount), s.enumerator.scope
	if scope.Volume != "" || other.workloadMade || !isRemote(c.Mount.FSType) || s.unclaimed.claimed[d] {
		return
	}
	var from string
	if record, below, ok := recordAbove(c.Mount.Point, other); ok {
		if path.Clean(record.HostPath) == "/" {
			return
		}
		from = path.Join(record.HostPath, below)
	}
	for _, name := range []string{c.Mount.Point, from} {
		if strings.Contains(name+"/", s.host.node.PodsDir()+"/") || strings.Contains(name+"/", s.host.node.PluginsDir()+"/") {
			return
		}
	}
	if other.podUID == nil {
		other.podUID = sync.OnceValue(func() string {
			for _, uid := range s.unclaimed.podUIDs {
				if other.owner != nil && other.owner.PodUID != uid {
					continue
				}
				if slices.ContainsFunc(other.cgroups, func(text string) bool { return cri.NamesPod(text, uid) }) {
					return uid
				}
			}
			return ""
		})
	}
	uid := other.podUID()
	if uid == "" || !scope.Includes(uid, scope.Volume) || !s.hasRoom(c) {
		return
	}
	s.unclaimed.byDevice[d] = append(s.unclaimed.byDevice[d], &unclaimedMount{c, uid, other, from})
}

// recordAbove is the runtime's record of the mount that is next above a point, or at it, and the way from there.
func recordAbove(point string, other *otherNamespace) (record cri.Mount, below string, ok bool) {
	if other.owner == nil {
		return cri.Mount{}, "", false
	}
	for at := point; !ok && path.IsAbs(at); at = path.Dir(at) {
		if record, ok = other.records[at]; ok {
			below, _ = mountinfo.Below(at, point)
		} else if at == "/" {
			break
		}
	}
	return record, below, ok
}

// judgeUnclaimed asks each of the file systems, and takes in those that are dead.
func (s *copySearch) judgeUnclaimed(ctx context.Context, prober *batchProber) error {
	var all [][]*unclaimedMount
	for _, list := range s.unclaimed.byDevice {
		slices.SortFunc(list, func(a, b *unclaimedMount) int {
			return cmp.Or(cmp.Compare(a.podUID, b.podUID), cmp.Compare(a.found.Mount.Namespace.Inode, b.found.Mount.Namespace.Inode), cmp.Compare(a.found.Mount.Point, b.found.Mount.Point))
		})
		all = append(all, list)
	}
	slices.SortFunc(all, func(a, b []*unclaimedMount) int {
		return cmp.Or(cmp.Compare(a[0].found.Mount.Minor, b[0].found.Mount.Minor), cmp.Compare(a[0].found.Mount.Major, b[0].found.Mount.Major))
	})
	if len(all) > maxUnclaimed {
		s.enumerator.seen.Unknown.AddGap("file systems in containers that are of no known volume", fmt.Sprintf("there are more than %d, and the others were not asked",
			maxUnclaimed))
		all = all[:maxUnclaimed]
	}
	// The first mount of each file system is asked. If that has gone meanwhile, the next one is.
	for n := range maxTried {
		var requests []probeRequest
		for _, list := range all {
			if n < len(list) && (n == 0 || list[0].found.Answer.State == probe.Gone) {
				requests = append(requests, probeRequest{probeTarget(list[n].podUID, list[n].found.Mount, "", false), func(a probe.Answer) {
					list[0], list[n] = list[n], list[0] // the one that was asked is the first
					list[0].found.Answer = a
				}})
			}
		}
		if err := prober.askAll(ctx, requests); err != nil {
			return err
		}
		if len(requests) == 0 {
			break
		}
	}
	return s.host.node.Do(ctx, func() error {
		for _, list := range all {
			s.takeUnclaimed(list)
		}
		return ctx.Err()
	})
}

// takeUnclaimed takes in the mounts of one file system whose first mount has answered, one for each container. It is
// called inside the kubelet's namespace.
func (s *copySearch) takeUnclaimed(list []*unclaimedMount) {
	first := list[0]
	verdict, whole := judgeAnswer(first.found.Answer, false), false
	switch {
	case verdict.Code == fault.DisconnectedFUSE, verdict.Code == fault.HungMount:
		whole = true // each mount of the file system is so
	case verdict.Code == fault.VolumeIOError, verdict.Code == fault.StaleFileHandle:
	case verdict.UnknownReason == "", verdict.Code != "", first.found.Answer.State == probe.Denied, first.found.Answer.State == probe.Gone:
		return // it answers, or its owner refuses root, or it is not there any more
	}
	taken := map[mountns.Key]bool{}
	for _, m := range list {
		key := m.found.Mount.Namespace.Key()
		if taken[key] || !whole && unmarkedRoot(m.found.Mount.Mount) != unmarkedRoot(first.found.Mount.Mount) {
			continue
		}
		if table := s.namespaces.tableOf(m.other); table != nil {
			if top, ok := table.Top(m.found.Mount.Point); !ok || top.ID != m.found.Mount.ID {
				continue // another mount hides it from its processes
			}
		}
		taken[key] = true
		s.takeUnclaimedMount(m, first.found.Answer, verdict)
	}
}

// takeUnclaimedMount adds a mount to the volumes if its container is known and it is broken. Else it is not judged.
func (s *copySearch) takeUnclaimedMount(m *unclaimedMount, answer probe.Answer, verdict Verdict) {
	at, holder := m.found.Mount, m.found.Holder
	if verdict.Code == "" || holder.Container == "" {
		reason := cmp.Or(verdict.UnknownReason, verdict.Reason())
		if holder.Container == "" {
			reason += fmt.Sprintf("; process %d of the pod is in mount namespace %s, and which container that is, is not known: %s",
				at.Namespace.PID, at.Namespace, m.other.ownerReason)
		}
		s.enumerator.seen.Unknown.AddPlace(mountstate.Place{
			Pod: s.enumerator.faultPod(m.podUID), Container: holder.Container, Point: at.Point, Namespace: at.Namespace.String(), Reason: reason,
		})
		return
	}
	from := "the container runtime has not mounted it"
	if m.from != "" {
		from = fmt.Sprintf("the container runtime has it from %q", m.from)
	}
	answer.ID = mount.IDOf(at)
	e := Evidence{Answer: answer, Volume: Volume{
		Pod: holder.Pod, Origin: Origin{Container: holder.Container}, Point: at.Point, Mount: at, spec: podSpec{pod: s.enumerator.podByUID(m.podUID)},
		NoStagingReason: fmt.Sprintf("it is in mount namespace %s of %s, and of no volume that the kubelet keeps; %s", at.Namespace, holder.describe(), from),
	}}
	s.volumes = append(s.volumes, &Health{Evidence: e, Verdict: Judge(e), Replacement: Replacement{NoSourceReason: e.NoStagingReason}})
}

// ofKubelet is a place where a kubelet with another root directory has a volume. Such a mount is judged where that kubelet is looked at.
var ofKubelet = regexp.MustCompile(`/pods/[0-9a-f-]{36}/volume|/plugins/kubernetes\.io/`)

// judgeOfNode asks the file systems of the node that are of no known volume and that no container has. As long as no specs are known, each may be the
// hostPath of a pod: its container need not run, as none can be started with a broken one. Such a file system is listed as not judged, with its fault.
func (s *copySearch) judgeOfNode(ctx context.Context, prober *batchProber) error {
	e := s.enumerator
	if e.pods != nil || len(e.scope.PodUIDs) > 0 || e.scope.Volume != "" || len(s.unclaimed.podUIDs) == 0 {
		return nil
	}
	asked := map[device]bool{}
	var mounts []mountinfo.Mount
	for _, m := range s.host.table.Mounts() {
		d := deviceOf(m)
		if !s.unclaimed.onHost[d] || s.unclaimed.byDevice[d] != nil || asked[d] || ofKubelet.MatchString(m.Point) {
			continue
		}
		if top, ok := s.host.table.Top(m.Point); ok && top.ID == m.ID {
			asked[d], mounts = true, append(mounts, m)
		}
	}
	if len(mounts) > maxUnclaimed {
		e.seen.Unknown.AddGap("file systems of the node that are of no known volume", fmt.Sprintf("there are more than %d, and the others were not asked", maxUnclaimed))
		mounts = mounts[:maxUnclaimed]
	}
	answers, requests := make([]probe.Answer, len(mounts)), make([]probeRequest, len(mounts))
	for i, m := range mounts {
		requests[i] = probeRequest{probeTarget("", s.host.withNamespace(m), "", false), func(a probe.Answer) { answers[i] = a }}
	}
	if err := prober.askAll(ctx, requests); err != nil {
		return err
	}
	for i, m := range mounts {
		if v := judgeMount(answers[i], false, m, deviceHealth(m)); slices.Contains(mountFaults, v.Code) {
			e.seen.Unknown.AddPlace(mountstate.Place{Point: m.Point, Reason: fmt.Sprintf(
				"a mount of the node is broken (%s): %s; it is a fault if a pod has it as a hostPath, and the specs of pods are not known", v.Code, v.Reason())})
		}
	}
	return nil
}
