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

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/probe"
)

// holds gives the way from the volume's directory to that of a mount: of the same file system, of another of its kind,
// which the driver had mounted before, or of the directory of the node's disk that the volume covers.
func (v *Volume) holds(m mountinfo.Mount) (sub string, ok bool) {
	if v.location.hidden != "" && deviceOf(m) == v.location.disk {
		return relative(v.location.hidden, rootOf(m))
	}
	if v.Mount.ID == 0 || !sameType(m.FSType, v.Mount.FSType) {
		return "", false
	}
	return relative(v.root(), rootOf(m))
}

// sameType compares types of file systems. Some kernels do not tell the part after the dot of another namespace's mount.
func sameType(a, b string) bool {
	kind, _, _ := strings.Cut(a, ".")
	other, _, _ := strings.Cut(b, ".")
	return a == b || kind == other && (a == kind || b == other)
}

// findBinds lists the kubelet's subPath binds of volumes that are broken, and those that are of another file system than
// their volume is by now. Where one pod is looked at, it lists all.
func (l *look) findBinds(context.Context) error {
	byName := map[kubelet.Volume][]*Volume{} // without the plugin
	for _, v := range l.survey.Volumes {
		name := kubelet.Volume{PodUID: v.Pod.UID, Name: v.Name}
		byName[name] = append(byName[name], v)
	}
	for point, m := range l.at {
		place, ok := l.node.ParseSubPath(point)
		if !ok {
			continue
		}
		var found []*Copy
		for _, v := range byName[kubelet.Volume{PodUID: place.PodUID, Name: place.Volume}] {
			sub, ok := v.holds(m)
			if !ok || l.selection.PodUID == "" && v.Code == "" && deviceOf(m) == deviceOf(v.Mount.Mount) {
				continue
			}
			c := &Copy{Mount: l.own(m), Pod: v.Pod, Container: place.Container, SubPath: sub, onHost: true, volume: v}
			c.Replaceable, c.Why = l.bindFits(c)
			found = append(found, c)
		}
		if len(found) > 1 {
			found = found[:1]
			found[0].Replaceable, found[0].Why = false, fmt.Sprintf("the pod has several volumes that the kubelet calls %q", place.Volume)
		}
		for _, c := range found {
			c.volume.Copies = append(c.volume.Copies, c)
		}
	}
	return nil
}

// bindFits tells whether a subPath bind of the kubelet is what the pod's spec asks for.
func (l *look) bindFits(c *Copy) (bool, string) {
	v := c.volume
	if v.pod == nil {
		return false, "the pod's spec is not known, so neither is which directory of the volume belongs there"
	}
	want, ok := subpath.Find(l.node, v.pod, c.Point)
	switch {
	case !ok:
		return false, "the pod's spec asks for no subPath there"
	case len(l.table.Children(c.ID)) > 0:
		return false, "another mount lies on it"
	}
	if whyNot := c.name(want); whyNot != "" {
		return false, whyNot
	}
	return true, fmt.Sprintf("it is the kubelet's bind of subPath %q, which container %q asks for", cmp.Or(c.named, c.SubPath), c.Container)
}

// name takes down what the pod's spec calls the directory of a copy.
func (c *Copy) name(want subpath.Want) (whyNot string) {
	name := subpath.NameOf(c.volume.pod, want)
	if name == "" {
		return fmt.Sprintf("the pod's spec asks for subPath %q, and which directory that is cannot be told from the pod alone",
			cmp.Or(want.Mount.SubPath, want.Mount.SubPathExpr))
	}
	if name = path.Clean(name); name != c.SubPath {
		c.named = name
	}
	return ""
}

// leads tells whether the subPath that the pod's spec asks for leads to what is put in the copy's place. That itself is
// looked up without following links, so that no link leads out of the volume.
func (c *Copy) leads(named *probe.Answer) bool {
	return c.named == "" || c.volume.Source == nil || named != nil && c.Source.is(*named)
}

// askCopies asks every copy whose state does not follow from that of its volume, and every source of one in a
// subdirectory.
func (l *look) askCopies(ctx context.Context) error {
	var questions []probeRequest
	asked := map[string]*probe.Answer{} // by volume and subPath
	for _, v := range l.survey.Volumes {
		for _, c := range v.Copies {
			if d := v.Code; (d == fault.DisconnectedFUSE || d == fault.HungMount) && deviceOf(c.Mount.Mount) == deviceOf(v.Mount.Mount) {
				c.Answer = v.Answer // the whole file system is dead
				c.Answer.ID = mountID(c.Mount)
			} else {
				questions = append(questions, probeRequest{of(c.owner(), about(c.Mount, "", true)), func(a probe.Answer) {
					c.Answer, c.Mount.Unique = a, max(c.Mount.Unique, a.ID.Unique)
				}})
			}
			for _, sub := range []string{c.SubPath, c.named} {
				if v.Source == nil || sub == "" || asked[v.Point+"\x00"+sub] != nil {
					continue
				}
				answer := &probe.Answer{}
				asked[v.Point+"\x00"+sub] = answer
				from := l.own(mountOf(v.Source.Mount))
				from.Unique = v.Source.Mount.ID
				questions = append(questions, probeRequest{of(v.Pod.UID, about(from, path.Join(v.Source.Below, sub), true)), func(a probe.Answer) { *answer = a }})
			}
		}
	}
	if err := l.ask(ctx, questions); err != nil {
		return err
	}
	for _, v := range l.survey.Volumes {
		for _, c := range v.Copies {
			l.settle(c, asked[v.Point+"\x00"+c.SubPath], asked[v.Point+"\x00"+c.named])
		}
	}
	if err := l.askCopiesTwice(ctx); err != nil {
		return err
	}
	for _, v := range l.survey.Volumes {
		l.found = append(l.found, v.Copies...)
		v.Copies = slices.DeleteFunc(v.Copies, func(c *Copy) bool { return c.Code == "" })
	}
	return nil
}

// mountOf is the mount that was written down, as far as that goes.
func mountOf(m fault.Mount) mountinfo.Mount {
	id, _ := subpath.IDOf(m) // it was written down here
	return mountinfo.Mount{
		ID: id.Reused, Parent: id.Parent, Major: id.Major, Minor: id.Minor, Root: id.Root, Point: id.Point, FSType: m.FSType,
	}
}

// settle decides about a copy, and says what belongs in its place. sub is what the source of its subPath answered, and
// named what the subPath of the pod's spec leads to.
func (l *look) settle(c *Copy, sub, named *probe.Answer) {
	v := c.volume
	l.findCopySource(c, sub)
	if c.Replaceable && !c.leads(named) {
		c.Replaceable, c.Why = false, fmt.Sprintf("the mount is of directory %q of the volume, and the pod's spec asks for subPath %q, which "+
			"does not lead there within the volume", c.SubPath, c.named)
	}
	d, ok := judgeRoot(c.Answer, v.countsLinks())
	if ok && d.code == "" {
		d = c.compare()
	}
	if !ok && c.Answer.State != probe.Vanished {
		l.incomplete("the mount at %q in mount namespace %s could not be judged: %s", c.Point, c.Namespace, describeAnswer(c.Answer))
	}
	if c.Code = d.code; c.Why == "" {
		c.Why = d.why
	}
	if c.Replaceable && c.Source != nil && c.Answer.Stat != (probe.Stat{}) && c.Answer.Stat.Dir != c.Source.dir {
		c.Replaceable, c.Why = false, fmt.Sprintf("one of %q and the mount is a directory, and the other is a file", c.Source.Path)
	}
}

// compare says whether a copy that answers is still what belongs there.
func (c *Copy) compare() verdict {
	v := c.volume
	if v.location.hidden != "" && deviceOf(c.Mount.Mount) == v.location.disk {
		return verdict{fault.DeletedVolumeSource, "data is being split: it is a directory of the node's own disk, which the volume covers"}
	}
	if own := c.Answer.Stat; c.replaced() {
		return verdict{fault.DeletedVolumeSource, fmt.Sprintf("%q is another directory now (inode %d) than the one that is mounted (inode %d)",
			c.Source.Path, c.Source.Inode, own.Inode)}
	}
	return verdict{}
}

// replaced tells whether the directory's name means another directory of the same file system by now.
func (c *Copy) replaced() bool {
	own := c.Answer.Stat
	return !c.volume.unstableInodes && c.Source != nil && own.Fresh && c.Source.Device == (device{own.Major, own.Minor}).String() &&
		c.Source.Inode != own.Inode
}

// findCopySource takes the volume's source, or what is in it.
func (l *look) findCopySource(c *Copy, sub *probe.Answer) {
	v := c.volume
	switch {
	case v.Source == nil:
		return
	case c.SubPath == "":
		c.Source = v.Source
	case sub != nil:
		from := sourceCandidate{mount: l.own(mountOf(v.Source.Mount)), below: path.Join(v.Source.Below, c.SubPath), answer: *sub, why: v.Source.Why}
		var whyNot string
		if c.Source, whyNot = from.source(); whyNot != "" {
			c.Replaceable, c.Why = false, whyNot
		}
	}
	if c.Source != nil && c.Replaceable && !c.onHost && !sameType(v.Source.FSType, c.FSType) && deviceOf(c.Mount.Mount) != v.location.disk {
		c.Replaceable, c.Why = false, fmt.Sprintf("it is of type %q, and the source of type %q", c.FSType, v.Source.FSType)
	}
}
