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
		view := node.View()
		paths := pathLookup{l, &view}
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
		found = append(found, p.find(pathLookup{Lookups: l}, name)...)
	}
	return found
}

// pathLookup looks paths of the node up. It asks the kernel, inside the kubelet's namespace, and writes the answers down; or it has those that were
// written down.
type pathLookup struct {
	*Lookups
	view *mountns.View // of the kubelet's namespace; nil: nothing is asked
}

// answer asks the node about a key and records the answer, or returns the recorded answer.
func answer[A any](p pathLookup, known map[string]A, key string, ask func() A) A {
	if p.view != nil {
		known[key] = ask()
	}
	return known[key]
}

// statHostPath looks up the path of a hostPath volume as the kubelet does, which follows symbolic links. A file system that may hang is not
// asked: package volume judges what lies on one.
func (p pathLookup) statHostPath(name string) (sys.Stat, error) {
	return p.stat(p.HostPaths, name, func() (st sys.Stat, err error) {
		fd, resolved, err := p.view.LookupFollowing(name)
		switch {
		case errors.Is(err, sys.ENOENT):
			err = absenceOf(*p.view, name, resolved)
		case err == nil:
			defer fd.Close()
			if err = p.view.NotHanging(resolved, fd); err == nil {
				st, err = fd.Stat(sys.StatType)
			}
		}
		return st, err
	})
}

// statReported looks a path up that the kubelet has written, and follows no link.
func (p pathLookup) statReported(name string) (sys.Stat, error) {
	return p.stat(p.Reported, name, func() (sys.Stat, error) { return statWithoutLinks(*p.view, name) })
}

// stat is the entry at a path, or the error of its lookup as far as that is written down.
func (p pathLookup) stat(known map[string]Lookup, name string, ask func() (sys.Stat, error)) (sys.Stat, error) {
	if _, ok := known[name]; !ok && p.view == nil {
		return sys.Stat{}, fmt.Errorf("look up %q: it was not asked for", name)
	}
	l := answer(p, known, name, func() Lookup {
		st, err := ask()
		l := Lookup{Stat: st}
		errors.As(err, &l.Absence)
		if err != nil && !errors.As(err, &l.Errno) {
			l.Unknown = err.Error()
		}
		return l
	})
	switch {
	case l.Errno == sys.ENOENT:
		return sys.Stat{}, l.Absence
	case l.Errno != 0:
		return sys.Stat{}, l.Errno
	case l.Unknown != "":
		return sys.Stat{}, errors.New(l.Unknown)
	}
	return l.Stat, nil
}

// pathMissing reports whether nothing is at a path, or something for which or counts the same.
func (p pathLookup) pathMissing(name string, or ...error) bool {
	return answer(p, p.Missing, name, func() bool {
		if name == "" {
			return false
		}
		_, err := mount.Inspect(path.Clean(name))
		return slices.ContainsFunc(append(or, sys.ENOENT), func(target error) bool { return errors.Is(err, target) })
	})
}

// missingInVolume reports whether a volume is there and has no such entry. Only a local file system is asked.
func (p pathLookup) missingInVolume(target target, name string) bool {
	return answer(p, p.MissingIn, target.node.SubPathPoint(target.place), func() bool {
		volume, err := target.openVolume()
		if err != nil {
			return false
		}
		defer volume.close()
		if volume.isLocal() {
			_, err = volume.statName(name)
		}
		return errors.Is(err, sys.ENOENT)
	})
}

// kindOf returns the kind of the entry at a path. If bound is not nil, it is the kind of the live bind of a subPath. Empty: not known.
func (p pathLookup) kindOf(name string, bound *target) string {
	if p.view == nil {
		return p.Kinds[name]
	}
	if bound != nil {
		bind, there, err := bound.inspect(name)
		switch {
		case err != nil || !there || bind.Verdict != Alive:
			p.Kinds[name] = ""
		case bind.State.Dir:
			p.Kinds[name] = directoryKind.noun
		default:
			p.Kinds[name] = fileKind.noun
		}
	} else if st, err := statWithoutLinks(*p.view, name); err == nil {
		p.Kinds[name] = describeKind(st)
	}
	return p.Kinds[name]
}

// volumesOf lists the volumes that the kubelet has a directory of for a pod; false: they are not known.
func (p pathLookup) volumesOf(n *kubelet.Node, uid string) (volumes []kubelet.Volume, known bool) {
	if p.view == nil {
		volumes, known = p.Volumes[uid]
		return volumes, known
	}
	volumes, err := n.PodVolumes(uid)
	if err != nil {
		return nil, false
	}
	p.Volumes[uid] = volumes
	return volumes, true
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
