// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// Copy is a mount of a volume's directory, or of one in it, at another place.
type Copy struct {
	Mount  mountns.Mount
	Holder Holder
	// SubPath is the way to it from the volume's directory; empty: that directory.
	SubPath  string
	Answer   probe.Answer
	Verdict  Verdict
	Decision Decision
	// Source is what belongs in its place; nil if there is none.
	Source *Source

	volume *Health
	origin copyOrigin
}

// Holder is the container that has a copy, as far as it is known.
type Holder struct {
	Pod         fault.Pod
	Container   string
	ContainerID string
}

// copyOrigin is what a copy was made from.
type copyOrigin struct {
	onHost        bool       // a subPath bind of the kubelet
	runtimeRecord *cri.Mount // the runtime's record of it; nil: there is none
	// specSubPath is the subPath of the pod's spec if that is not the copy's SubPath: then it must lead there by a
	// symbolic link.
	specSubPath string
}

// accountablePod is the pod that answers for the copy's mount. All mounts of processes that are in no container count
// together.
func (c *Copy) accountablePod() string {
	return cmp.Or(c.Holder.Pod.UID, "no pod that is known")
}

// readOnly reports whether the pod was given the volume there, or at all, to read alone. The mount that is there need
// not be the runtime's own: anyone who may mount in a container, or in a namespace made in it, decides how that is
// made.
func (c *Copy) readOnly() bool {
	record := c.origin.runtimeRecord
	if record != nil && record.ReadOnly || sys.ParseMountAttr(c.volume.Evidence.Mount.Options).Has(sys.AttrReadOnly) {
		return true
	}
	pod := c.volume.Evidence.spec.pod
	return record != nil && pod != nil && slices.ContainsFunc(podinfo.VolumeMounts(pod, c.Holder.Container), func(m corev1.VolumeMount) bool {
		return m.ReadOnly && isMountedAt(m, record.ContainerPath)
	})
}

// findBinds lists the kubelet's subPath binds of volumes that are broken, and those that are of another file system
// than their volume is by now. If certain pods are inspected, it lists all.
func (s *copySearch) findBinds() {
	byName := map[kubelet.Volume][]*Health{} // without the plugin
	for _, v := range s.volumes {
		if v.Evidence.Origin.Inside || v.Evidence.Origin.BindOf != "" { // the volume itself is another one
			continue
		}
		name := kubelet.Volume{PodUID: v.Evidence.Pod.UID, Name: v.Evidence.Name}
		byName[name] = append(byName[name], v)
	}
	for point, m := range s.host.visibleMounts {
		place, ok := s.host.node.ParseSubPath(point)
		if !ok {
			continue
		}
		var found []*Copy
		for _, v := range byName[kubelet.Volume{PodUID: place.PodUID, Name: place.Volume}] {
			sub, ok := v.Evidence.pathInVolume(m)
			if !ok || len(s.enumerator.scope.PodUIDs) == 0 && v.Verdict.Code == "" && deviceOf(m) == deviceOf(v.Evidence.Mount.Mount) {
				continue
			}
			c := &Copy{
				Mount: s.host.withNamespace(m), Holder: Holder{Pod: v.Evidence.Pod, Container: place.Container}, SubPath: sub, volume: v,
				origin: copyOrigin{onHost: true},
			}
			c.Decision, c.origin.specSubPath = s.host.decideBind(c)
			found = append(found, c)
		}
		if len(found) > 1 {
			found[0].Decision = refuseReplacement("the pod has several volumes that the kubelet calls %q", place.Volume)
		}
		if len(found) > 0 {
			v := found[0].volume
			v.Copies = append(v.Copies, found[0])
		}
	}
}

// decideBind decides whether a subPath bind of the kubelet is what the pod's spec asks for.
func (h *hostMounts) decideBind(copied *Copy) (d Decision, specSubPath string) {
	pod := copied.volume.Evidence.spec.pod
	if pod == nil {
		return refuseReplacement("the pod's spec is not known, so neither is which directory of the volume belongs there"), ""
	}
	want, ok := podinfo.FindSubPathMount(h.node, pod, copied.Mount.Point)
	switch {
	case !ok:
		return refuseReplacement("the pod's spec asks for no subPath there"), ""
	case len(h.table.Children(copied.Mount.ID)) > 0:
		return refuseReplacement("another mount lies on it"), ""
	}
	specSubPath, refusal := subPathInSpec(copied, want)
	if refusal != "" {
		return Decision{Reason: refusal}, ""
	}
	return Decision{Replaceable: true, Reason: fmt.Sprintf("it is the kubelet's bind of subPath %q, which container %q asks for",
		cmp.Or(specSubPath, copied.SubPath), copied.Holder.Container)}, specSubPath
}

// subPathInSpec returns the subPath of the pod's spec if it is another than that of the copy.
func subPathInSpec(c *Copy, want podinfo.SubPathMount) (specSubPath, refusal string) {
	name := podinfo.SubPathName(c.volume.Evidence.spec.pod, want)
	if name == "" {
		return "", fmt.Sprintf("the pod's spec requests subPath %q, and the pod alone does not show which directory that is",
			cmp.Or(want.Mount.SubPath, want.Mount.SubPathExpr))
	}
	if name = path.Clean(name); name != c.SubPath {
		return name, ""
	}
	return "", ""
}

// subPathAnswers are the answers of directories of sources, by the volume's point and the subPath. Nil: it was not
// asked.
type subPathAnswers map[[2]string]*probe.Answer

func (a subPathAnswers) answerOf(v *Health, sub string) *probe.Answer {
	return a[[2]string{v.Evidence.Point, sub}]
}

// judgeCopies asks the copies of all volumes and judges them. It returns all, and leaves each volume those that are
// broken.
func (p *batchProber) judgeCopies(ctx context.Context, volumes []*Health) (all []*Copy, err error) {
	sources, err := p.askCopies(ctx, volumes)
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		for _, c := range v.Copies {
			c.judge(sources.answerOf(v, c.SubPath), sources.answerOf(v, c.origin.specSubPath))
			if c.Verdict.UnknownReason != "" && c.Answer.State != probe.Gone {
				p.seen.Unknown.AddPlace(c.unknownPlace(v, c.Verdict.UnknownReason))
			}
		}
	}
	if err := p.recheckCopies(ctx, volumes); err != nil {
		return nil, err
	}
	for _, v := range volumes {
		all = append(all, v.Copies...)
		v.Copies = slices.DeleteFunc(v.Copies, func(c *Copy) bool { return c.Verdict.Code == "" })
		slices.SortFunc(v.Copies, compareCopies)
	}
	return all, nil
}

// askCopies asks every copy whose state does not follow from that of its volume, and every source of one in a
// subdirectory.
func (p *batchProber) askCopies(ctx context.Context, volumes []*Health) (subPathAnswers, error) {
	var requests []probeRequest
	sources := subPathAnswers{}
	for _, health := range volumes {
		for _, copied := range health.Copies {
			if dead := health.Verdict.Code == fault.DisconnectedFUSE || health.Verdict.Code == fault.HungMount; dead &&
				deviceOf(copied.Mount.Mount) == deviceOf(health.Evidence.Mount.Mount) {
				copied.Answer = health.Evidence.Answer // the whole file system is dead
				copied.Answer.ID = mount.IDOf(copied.Mount)
			} else {
				requests = append(requests, probeRequest{probeTarget(copied.accountablePod(), copied.Mount, "", true), func(a probe.Answer) {
					copied.Answer, copied.Mount.Unique = a, max(copied.Mount.Unique, a.ID.UniqueID)
				}})
			}
			for _, sub := range []string{copied.SubPath, copied.origin.specSubPath} {
				if health.Replacement.Source == nil || sub == "" || sources.answerOf(health, sub) != nil {
					continue
				}
				answer := &probe.Answer{}
				sources[[2]string{health.Evidence.Point, sub}] = answer
				target := probeTarget(health.Evidence.Pod.UID, health.Replacement.Source.mount, path.Join(health.Replacement.Source.Below, sub), true)
				requests = append(requests, probeRequest{target, func(a probe.Answer) { *answer = a }})
			}
		}
	}
	return sources, p.askAll(ctx, requests)
}

// judge decides about a copy that was asked, and whether it can be replaced. sub is the answer of the source of its
// subPath, and inSpec that of the subPath of the pod's spec. That may lead to the source by a symbolic link. The source
// itself is looked up without following links, so that none leads out of the volume.
func (c *Copy) judge(sub, inSpec *probe.Answer) {
	v, spec, refusal := c.volume, c.origin.specSubPath, ""
	if c.Source = v.Replacement.Source; c.Source != nil && c.SubPath != "" {
		from := c.Source
		if c.Source = nil; sub != nil {
			c.Source, refusal = sourceCandidate{
				mount: from.mount, below: path.Join(from.Below, c.SubPath), answer: *sub, reason: from.Reason,
			}.toSource()
		}
	}
	c.Verdict = judgeCopy(c.judgeEvidence())
	switch s := c.Source; {
	case c.Verdict.Code == fault.VolumeIOError:
		c.Decision = Decision{Reason: noMountCures}
	case refusal != "":
		c.Decision = Decision{Reason: refusal}
	case !c.Decision.Replaceable:
	case s != nil && !c.origin.onHost && !sameType(v.Replacement.Source.FSType, c.Mount.FSType) && deviceOf(c.Mount.Mount) != v.Evidence.stagedLocation().nodeDisk():
		c.Decision = refuseReplacement("it is of type %q, and the source of type %q", c.Mount.FSType, v.Replacement.Source.FSType)
	case spec != "" && v.Replacement.Source != nil && (inSpec == nil || !s.isAnswer(*inSpec)):
		c.Decision = refuseReplacement("the mount is of directory %q of the volume, and the pod's spec asks for subPath %q, which does not "+
			"lead there within the volume", c.SubPath, spec)
	case s != nil && c.Answer.Stat != (probe.Stat{}) && c.Answer.Stat.Dir != s.probedStat.Dir:
		c.Decision = refuseReplacement("one of %q and the mount is a directory, and the other is a file", s.Path)
	}
	c.Decision.Reason = cmp.Or(c.Decision.Reason, c.Verdict.Reason())
}

// judgeEvidence is what the verdict on the copy follows from.
func (c *Copy) judgeEvidence() copyEvidence {
	at := c.volume.Evidence.stagedLocation()
	return copyEvidence{
		answer: c.Answer, source: c.Source, countsLinks: c.volume.Evidence.countsLinks(), unstableInodes: c.volume.Evidence.Expected.UnstableInodes,
		onNodeDisk: at.Covered != "" && deviceOf(c.Mount.Mount) == at.nodeDisk(),
	}
}

// recheckCopies asks again about copies that differ from their source by their inode number alone.
func (p *batchProber) recheckCopies(ctx context.Context, volumes []*Health) error {
	var requests []probeRequest
	for _, v := range volumes {
		for _, c := range v.Copies {
			if c.Verdict.Code == fault.DeletedVolumeSource && c.judgeEvidence().directoryReplaced() {
				requests = append(requests, v.Evidence.recheckRequest(c.accountablePod(), c.Mount, "", c.Answer))
			}
		}
	}
	if err := p.askAll(ctx, requests); err != nil {
		return err
	}
	for _, health := range volumes {
		if !health.Evidence.Expected.UnstableInodes {
			continue
		}
		for _, c := range health.Copies {
			c.Verdict = judgeCopy(c.judgeEvidence())
		}
		p.seen.Coverage.Notes = append(p.seen.Coverage.Notes, fmt.Sprintf("the file system of volume %q of pod %q gives its directory another inode "+
			"number every time, so a replaced directory cannot be detected", health.Evidence.Name, health.Evidence.Pod.UID))
	}
	return nil
}

// isStaleSubPath reports whether the copy is of a subPath whose source was deleted or replaced, in a volume that is right
// otherwise. Package subpath finds the kubelet's bind of it, and containers keep their copies until their next start, as on
// any file system.
func (c *Copy) isStaleSubPath() bool {
	return c.volume.Verdict.Code == "" && c.volume.Evidence.Mount.ID != 0 && c.SubPath != "" && deviceOf(c.Mount.Mount) == deviceOf(c.volume.Evidence.Mount.Mount) &&
		(c.Verdict.Code == fault.DeletedVolumeSource || c.Verdict.Code == fault.StaleFileHandle)
}

// compareCopies orders the copies of a volume: the kubelet's binds, then those that may be replaced, then the rest.
func compareCopies(a, b *Copy) int {
	rank := func(c *Copy) int {
		switch {
		case c.origin.onHost:
			return 0
		case c.Decision.Replaceable:
			return 1
		}
		return 2
	}
	return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Holder.Pod.UID, b.Holder.Pod.UID), cmp.Compare(a.Holder.Container, b.Holder.Container),
		cmp.Compare(a.Mount.Namespace.Inode, b.Mount.Namespace.Inode), cmp.Compare(a.Mount.Point, b.Mount.Point), cmp.Compare(a.Mount.ID, b.Mount.ID))
}
