// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// Evidence is what the node has answered to a survey, so that it can be written down and judged again elsewhere.
type Evidence struct {
	Scope
	// Found is on the binds that are not alive.
	Found []BindEvidence `json:"found"`
}

// BindEvidence is what the node has answered about one bind.
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

// Evidence is what the survey rests on.
func (s *Survey) Evidence() Evidence {
	evidence := Evidence{Scope: s.Scope, Found: []BindEvidence{}}
	for _, f := range s.Found {
		b := BindEvidence{SubPath: f.SubPath, Expected: f.SubPathMount, State: f.State, comparison: f.comparison, TableFacts: f.TableFacts, Outlook: f.Outlook}
		if f.notInspected {
			b.NotInspected = f.Reason
		}
		evidence.Found = append(evidence.Found, b)
	}
	return evidence
}

// Judge makes the survey again from evidence alone. podOf gives a pod by its UID, nil if it is not known.
func (e Evidence) Judge(podOf func(uid string) *corev1.Pod) *Survey {
	survey := &Survey{Scope: e.Scope}
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

// pathLookup says what is at paths of the node.
type pathLookup interface {
	// followHostPath looks up the path of a hostPath volume, see followHostPath.
	statHostPath(name string) (sys.Stat, error)
	// pathMissing reports whether nothing is at a path, or something for which or counts the same.
	pathMissing(name string, or ...error) bool
	// missingInVolume reports whether a volume is there and has no such entry.
	missingInVolume(s target, name string) bool
}

// Lookups are what the node has answered about the sources of pods, by path.
type Lookups struct {
	HostPaths map[string]Lookup `json:"hostPaths,omitempty"`
	// Missing is whether nothing is at a path, MissingIn whether a volume has no entry of a subPath, by the place of
	// its bind.
	Missing   map[string]bool `json:"missing,omitempty"`
	MissingIn map[string]bool `json:"missingIn,omitempty"`
}

// Lookup is what is at one path, or why that is not known.
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
		l.HostPaths, l.Missing, l.MissingIn = map[string]Lookup{}, map[string]bool{}, map[string]bool{}
	}
}

// Ask is BadSources of all containers of a pod that writes down what the node answers.
func (l *Lookups) Ask(ctx context.Context, node *kubelet.Node, pod *corev1.Pod) ([]fault.Finding, error) {
	return l.ask(ctx, podSources{node, pod, ""})
}

// ask asks the node in the kubelet's namespace.
func (l *Lookups) ask(ctx context.Context, p podSources) (found []fault.Finding, err error) {
	names := p.containers()
	if len(names) == 0 {
		return nil, nil
	}
	l.makeMaps()
	err = p.node.Do(ctx, func() error {
		for _, name := range names {
			found = append(found, containerBadSources(nodePathLookup{l}, p.node, p.pod, name)...)
		}
		return ctx.Err()
	})
	return found, err
}

// Judge is BadSources from what was written down. n gives paths alone. An answer that is missing proves nothing.
func (l *Lookups) Judge(node *kubelet.Node, pod *corev1.Pod) (found []fault.Finding) {
	p := podSources{node, pod, ""}
	for _, name := range p.containers() {
		found = append(found, containerBadSources(recordedPathLookup{l}, node, pod, name)...)
	}
	return found
}

// nodePathLookup asks the kernel, inside the kubelet's namespace, and writes down what it says.
type nodePathLookup struct{ *Lookups }

func (r nodePathLookup) statHostPath(name string) (sys.Stat, error) {
	st, err := followHostPath(name)
	l := Lookup{Stat: st}
	errors.As(err, &l.Absence)
	if err != nil && !errors.As(err, &l.Errno) {
		l.Unknown = err.Error()
	}
	r.HostPaths[name] = l
	return st, err
}

func (r nodePathLookup) pathMissing(name string, or ...error) bool {
	r.Missing[name] = pathIsMissing(name, or...)
	return r.Missing[name]
}

func (r nodePathLookup) missingInVolume(target target, name string) bool {
	at := target.node.SubPathPoint(target.place)
	r.MissingIn[at] = target.subPathMissing(name)
	return r.MissingIn[at]
}

// recordedPathLookup says what was written down.
type recordedPathLookup struct{ *Lookups }

func (r recordedPathLookup) statHostPath(name string) (sys.Stat, error) {
	lookup, known := r.HostPaths[name]
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

// Merge adds the answers about another pod.
func (l *Lookups) Merge(other Lookups) {
	l.makeMaps()
	maps.Copy(l.HostPaths, other.HostPaths)
	maps.Copy(l.Missing, other.Missing)
	maps.Copy(l.MissingIn, other.MissingIn)
}
