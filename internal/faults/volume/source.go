// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// findSources says what belongs in the place of every volume.
func (l *look) findSources(ctx context.Context) error {
	for _, v := range l.survey.Volumes {
		if v.location.split && v.Code == fault.DeletedVolumeSource {
			l.readSplit(ctx, v)
		}
		if !v.notKnown {
			l.findSource(v)
		}
	}
	return ctx.Err()
}

// findSource says what belongs in the place of a volume's mount and of its copies. The mount itself is that for the
// copies where it is healthy.
func (l *look) findSource(v *Volume) {
	from := sourceCandidate{mount: v.Mount, below: v.below(), answer: v.Answer}
	switch {
	case v.Plugin == HostPathPlugin:
		if from.below != "" {
			from.answer = v.location.answer
		}
		from.why = fmt.Sprintf("the pod's spec names hostPath %q, which lies on it", v.Point)
		if v.Code != "" && v.Code != fault.DeletedVolumeSource {
			v.NoSourceReason = fmt.Sprintf("the mount at %q, which the hostPath %q lies on, is not the kubelet's to mount: whoever has mounted it has to "+
				"mend it", v.Mount.Point, v.Point)
			return
		}
	case v.Code == "" && v.Plugin == kubelet.CSI && v.Record == nil:
		return
	case v.Code == "":
		from.why = "it is what the kubelet keeps for this volume of this pod"
		if v.Record != nil {
			from.why += ", and its record there names " + v.Record.String()
		}
	case v.Staging == nil:
		return
	default:
		from = sourceCandidate{mount: v.Staging.Mount, below: v.location.below, answer: v.location.answer, why: fmt.Sprintf(
			"the kubelet's records beside it and beside the pod's mount both name %s, and it is directory %q of it, as before", v.Record,
			v.location.below)}
		if v.NoSourceReason = l.sourceMismatch(v); v.NoSourceReason != "" {
			return
		}
	}
	v.Source, v.NoSourceReason = from.source()
}

// sourceMismatch says why nothing can be taken from the staging path.
func (l *look) sourceMismatch(v *Volume) string {
	g := v.Staging
	switch {
	case g.Answer.State != probe.Alive:
		return fmt.Sprintf("the staging path %q is not alive either (%s): its driver has not mounted the volume afresh", g.Point, describeAnswer(g.Answer))
	case !v.location.known:
		return v.NoSourceReason
	case v.location.split:
		return ""
	case g.Mount.FSType != v.Mount.FSType || g.Mount.Source != v.Mount.Source:
		return fmt.Sprintf("the staging path %q is of type %q from %q, and the pod's mount of type %q from %q: it cannot be told that they are "+
			"the same volume", g.Point, g.Mount.FSType, g.Mount.Source, v.Mount.FSType, v.Mount.Source)
	}
	return ""
}

// sourceCandidate is a directory that may be put in the place of a mount, and what it answered.
type sourceCandidate struct {
	mount  mountns.Mount
	below  string
	answer probe.Answer
	why    string
}

// source makes it a source, if it is one.
func (o sourceCandidate) source() (s *Source, whyNot string) {
	name := path.Join(o.mount.Point, o.below)
	switch a := o.answer; {
	case a.State == probe.Missing:
		return nil, fmt.Sprintf("there is no %q", name)
	case a.State != probe.Alive:
		return nil, fmt.Sprintf("%q does not answer as it should (%s)", name, describeAnswer(a))
	case a.Bindable != probe.Yes:
		return nil, fmt.Sprintf("%q cannot be bound, or it is not known whether it can", name)
	case !a.Stat.Fresh:
		return nil, fmt.Sprintf("%q has not told its inode", name)
	}
	at := o.mount
	at.Unique = o.answer.ID.Unique
	return &Source{
		Mount: faultMount(at), Below: o.below, Path: name, Why: o.why, FSType: o.mount.FSType,
		Device: device{o.answer.Stat.Major, o.answer.Stat.Minor}.String(), Inode: o.answer.Stat.Inode, dir: o.answer.Stat.Dir,
	}, ""
}

// is tells whether an answer is that of the source.
func (s *Source) is(a probe.Answer) bool {
	return s != nil && a.State == probe.Alive && a.Stat.Inode == s.Inode && (device{a.Stat.Major, a.Stat.Minor}).String() == s.Device
}

// maxSplit bounds how many names are read of what was written to the node's own disk.
const maxSplit = 16

// readSplit lists what has been written to the node's own disk instead of to the volume. That is a local directory, and
// the one way to it that is left is the pod's mount; any other mount that is there by now may not answer.
func (l *look) readSplit(ctx context.Context, v *Volume) {
	if mountns.MayHang(v.Mount.FSType) || v.Answer.Stat.Nlink == 0 {
		return
	}
	err := l.node.Do(ctx, func() error {
		dir, err := open(v.Mount)
		if err != nil {
			return err
		}
		defer dir.Close()
		names, _, err := sys.ListDir(dir, maxSplit)
		v.WrittenToNodeDisk = names[:min(len(names), maxSplit)]
		return err
	})
	if err != nil {
		v.WrittenToNodeDisk = []string{"(what it holds could not be listed: " + err.Error() + ")"}
	}
}
