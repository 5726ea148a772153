// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Evidence has the answers of the node to a survey, so that it can be written down and judged again elsewhere.
type Evidence struct {
	mountstate.Coverage

	// Found is on the binds that are not alive.
	Found []BindEvidence `json:"found"`
}

// BindEvidence has the answers of the node about one bind.
type BindEvidence struct {
	SubPath  kubelet.SubPath      `json:"subPath"`
	Expected podinfo.SubPathMount `json:"want"`
	State    mount.State          `json:"state"`
	// NotInspected is why it could not be looked at; empty: it was.
	NotInspected string `json:"unasked,omitempty"`
	comparison
	TableFacts
	Outlook
}

// Evidence is the base of the survey.
func (s *Survey) Evidence() Evidence {
	evidence := Evidence{Coverage: s.Coverage, Found: []BindEvidence{}}
	for _, f := range s.Found {
		b := BindEvidence{SubPath: f.SubPath, Expected: f.Bind.SubPathMount, State: f.Bind.State, comparison: f.Bind.comparison, TableFacts: f.Bind.TableFacts, Outlook: f.Bind.Outlook}
		if f.Bind.notInspected {
			b.NotInspected = f.Bind.Reason
		}
		evidence.Found = append(evidence.Found, b)
	}
	return evidence
}

// Judge makes the survey again from evidence alone. podOf gives a pod by its UID, nil if it is not known.
func (e Evidence) Judge(podOf func(uid string) *corev1.Pod) *Survey {
	survey := &Survey{Coverage: e.Coverage}
	for _, of := range e.Found {
		bind := judgeComparison(of.Expected, of.State, of.comparison)
		if of.NotInspected != "" {
			bind = notInspected(of.Expected, of.State, of.NotInspected)
		}
		bind.TableFacts, bind.Outlook = of.TableFacts, of.Outlook
		if bind.Verdict.isFault() {
			survey.Found = append(survey.Found, Found{of.SubPath, podOf(of.SubPath.PodUID), bind})
		}
	}
	return survey
}

// pathLookup looks paths of the node up.
type pathLookup interface {
	// statHostPath looks up the path of a hostPath volume as the kubelet does, which follows symbolic links. A file system that may hang is not
	// asked: package volume judges what lies on one.
	statHostPath(name string) (sys.Stat, error)
	// pathMissing reports whether nothing is at a path, or something for which or counts the same.
	pathMissing(name string, or ...error) bool
	// missingInVolume reports whether a volume is there and has no such entry. Only a local file system is asked.
	missingInVolume(s target, name string) bool
	// kindOf is the kind of the entry at a path, or of one that is bound at the place of a subPath and alive; empty: it could not be seen.
	kindOf(name string, bound *target) string
	// withoutLink lists the entries of a volume's current version that are not to be reached. Nothing is asked that may hang.
	withoutLink(dir string) []lostEntry
	// statReported looks a path up that the kubelet has written, and follows no link.
	statReported(name string) (sys.Stat, error)
	// volumesOf lists the volumes that the kubelet has a directory of for a pod; false: they are not known.
	volumesOf(n *kubelet.Node, uid string) ([]kubelet.Volume, bool)
}

// Lookups are the answers of the node about the sources of pods, by path.
type Lookups struct {
	HostPaths map[string]Lookup `json:"hostPaths,omitempty"`
	// Missing is whether nothing is at a path, MissingIn whether a volume has no entry of a subPath, by the place of
	// its bind.
	Missing   map[string]bool `json:"missing,omitempty"`
	MissingIn map[string]bool `json:"missingIn,omitempty"`
	// Kinds are of the entries at paths, WithoutLink of those that a volume has and does not show, Reported of those at paths in the
	// kubelet's words, and Volumes those that the kubelet has directories of, by the pod's UID.
	Kinds       map[string]string           `json:"kinds,omitempty"`
	WithoutLink map[string][]lostEntry      `json:"withoutLink,omitempty"`
	Reported    map[string]Lookup           `json:"reported,omitempty"`
	Volumes     map[string][]kubelet.Volume `json:"volumes,omitempty"`
}

// Lookup is the entry at one path, or why it is not known.
type Lookup struct {
	Stat sys.Stat `json:"stat,omitzero"`
	// Errno is that of the lookup. For ENOENT, Absence says more.
	Errno   sys.Errno `json:"errno,omitempty"`
	Absence Absence   `json:"absence,omitzero"`
	// Unknown is why it could not be looked up.
	Unknown string `json:"unknown,omitempty"`
}

func (l *Lookups) makeMaps() {
	if l.HostPaths == nil {
		*l = Lookups{
			map[string]Lookup{}, map[string]bool{}, map[string]bool{}, map[string]string{}, map[string][]lostEntry{}, map[string]Lookup{},
			map[string][]kubelet.Volume{},
		}
	}
}

// Ask is BadSources of all containers of pods that writes down the answers of the node. It enters the kubelet's namespace once for all pods.
func (l *Lookups) Ask(ctx context.Context, node *kubelet.Node, pods []*corev1.Pod, claims ClaimPaths) ([]fault.Finding, error) {
	all := make([]podSources, len(pods))
	for i, pod := range pods {
		all[i] = podSources{node: node, pod: pod}
	}
	return l.ask(ctx, node, all, claims)
}

// ask asks the node in the kubelet's namespace.
func (l *Lookups) ask(ctx context.Context, node *kubelet.Node, all []podSources, claims ClaimPaths) (found []fault.Finding, err error) {
	containers, count := make([][]string, len(all)), 0
	for i := range all {
		if containers[i] = all[i].containers(); len(containers[i]) > 0 {
			all[i].readClaims(ctx, claims, containers[i])
			count++
		}
	}
	if count == 0 {
		return nil, nil
	}
	l.makeMaps()
	err = node.Do(ctx, func() error {
		paths := nodePathLookup{l, node.View()}
		for i, p := range all {
			for _, name := range containers[i] {
				found = append(found, p.find(paths, name)...)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// Judge is BadSources from answers that were written down. n gives paths alone. An answer that is missing proves nothing.
func (l *Lookups) Judge(node *kubelet.Node, pod *corev1.Pod) (found []fault.Finding) {
	p := podSources{node: node, pod: pod}
	for _, name := range p.containers() {
		found = append(found, p.find(recordedPathLookup{l}, name)...)
	}
	return found
}

// nodePathLookup asks the kernel, inside the kubelet's namespace, and writes its answers down.
type nodePathLookup struct {
	*Lookups
	view mountns.View
}

func (r nodePathLookup) statHostPath(name string) (st sys.Stat, err error) {
	fd, resolved, err := r.view.LookupFollowing(name)
	switch {
	case errors.Is(err, sys.ENOENT):
		err = absenceOf(r.view, name, resolved)
	case err == nil:
		defer fd.Close()
		if err = r.view.NotHanging(resolved, fd); err == nil {
			st, err = fd.Stat(sys.StatType)
		}
	}
	r.HostPaths[name] = lookupOf(st, err)
	return st, err
}

func lookupOf(st sys.Stat, err error) Lookup {
	l := Lookup{Stat: st}
	errors.As(err, &l.Absence)
	if err != nil && !errors.As(err, &l.Errno) {
		l.Unknown = err.Error()
	}
	return l
}

func (r nodePathLookup) pathMissing(name string, or ...error) bool {
	missing := false
	if name != "" {
		_, err := mount.Inspect(path.Clean(name))
		missing = slices.ContainsFunc(append(or, sys.ENOENT), func(target error) bool { return errors.Is(err, target) })
	}
	r.Missing[name] = missing
	return missing
}

func (r nodePathLookup) missingInVolume(target target, name string) bool {
	missing := false
	if volume, err := target.openVolume(); err == nil {
		defer volume.close()
		if volume.isLocal() {
			_, err = volume.statName(name)
			missing = errors.Is(err, sys.ENOENT)
		}
	}
	r.MissingIn[target.node.SubPathPoint(target.place)] = missing
	return missing
}

func (r nodePathLookup) kindOf(name string, bound *target) string {
	if bound != nil {
		bind, there, err := bound.inspect(name)
		switch {
		case err != nil || !there || bind.Verdict != Alive:
			r.Kinds[name] = ""
		case bind.State.Dir:
			r.Kinds[name] = directoryKind.noun
		default:
			r.Kinds[name] = fileKind.noun
		}
	} else if st, err := statWithoutLinks(r.view, name); err == nil {
		r.Kinds[name] = describeKind(st)
	}
	return r.Kinds[name]
}

func (r nodePathLookup) withoutLink(dir string) (lost []lostEntry) {
	fd, err := r.view.Lookup(dir)
	if err == nil {
		defer fd.Close()
		err = r.view.NotHanging(dir, fd)
	}
	if err == nil {
		volume := openedVolume{dir: fd, view: r.view, path: dir}
		for range maxLookups { // the kubelet makes the links one after the other
			if lost = volume.lostOnce(); len(lost) == 0 {
				break
			}
		}
	}
	r.WithoutLink[dir] = lost
	return lost
}

func (r nodePathLookup) statReported(name string) (sys.Stat, error) {
	st, err := statWithoutLinks(r.view, name)
	r.Reported[name] = lookupOf(st, err)
	return st, err
}

func (r nodePathLookup) volumesOf(n *kubelet.Node, uid string) ([]kubelet.Volume, bool) {
	volumes, err := n.PodVolumes(uid)
	if err != nil {
		return nil, false
	}
	r.Volumes[uid] = volumes
	return volumes, true
}

// recordedPathLookup has the answers that were written down.
type recordedPathLookup struct{ *Lookups }

func (r recordedPathLookup) statHostPath(name string) (sys.Stat, error) {
	return answerOf(r.HostPaths, name)
}

func answerOf(lookups map[string]Lookup, name string) (sys.Stat, error) {
	lookup, known := lookups[name]
	switch {
	case !known:
		return sys.Stat{}, fmt.Errorf("look up %q: it was not asked for", name)
	case lookup.Errno == sys.ENOENT:
		return sys.Stat{}, lookup.Absence
	case lookup.Errno != 0:
		return sys.Stat{}, lookup.Errno
	case lookup.Unknown != "":
		return sys.Stat{}, errors.New(lookup.Unknown)
	}
	return lookup.Stat, nil
}

func (r recordedPathLookup) pathMissing(name string, _ ...error) bool { return r.Missing[name] }

func (r recordedPathLookup) missingInVolume(target target, _ string) bool {
	return r.MissingIn[target.node.SubPathPoint(target.place)]
}

func (r recordedPathLookup) kindOf(name string, _ *target) string { return r.Kinds[name] }

func (r recordedPathLookup) withoutLink(dir string) []lostEntry { return r.WithoutLink[dir] }

func (r recordedPathLookup) statReported(name string) (sys.Stat, error) {
	return answerOf(r.Reported, name)
}

func (r recordedPathLookup) volumesOf(_ *kubelet.Node, uid string) ([]kubelet.Volume, bool) {
	volumes, known := r.Volumes[uid]
	return volumes, known
}

// Merge adds the answers about another pod.
func (l *Lookups) Merge(other Lookups) {
	l.makeMaps()
	maps.Copy(l.HostPaths, other.HostPaths)
	maps.Copy(l.Missing, other.Missing)
	maps.Copy(l.MissingIn, other.MissingIn)
	maps.Copy(l.Kinds, other.Kinds)
	maps.Copy(l.WithoutLink, other.WithoutLink)
	maps.Copy(l.Reported, other.Reported)
	maps.Copy(l.Volumes, other.Volumes)
}
