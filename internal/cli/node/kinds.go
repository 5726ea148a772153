// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/podinfo"
)

// faultSearch looks for faults of one kind, and writes down in s.looked what it has looked at.
type faultSearch struct {
	// description it looks for, as people say it.
	description string
	search      fault.Search
	find        func(ctx context.Context, s *scan) ([]fault.Finding, error)
}

// faultSearches are all that is looked for.
var faultSearches = []faultSearch{
	{"subPath binds", fault.SearchSubPaths, findStaleSubPaths},
	{"sources of hostPath volumes", fault.SearchSources, findBadSources},
	{"devices", fault.SearchDevices, findHeldDevices},
	{"volumes", fault.SearchVolumes, findBrokenVolumes},
	{"directories of pods that are gone", fault.SearchOrphans, findOrphanedPods},
}

// searchesFor are the kinds that can find faults of these codes; all if there are none.
func searchesFor(codes []string) []faultSearch {
	if len(codes) == 0 {
		return faultSearches
	}
	return slices.DeleteFunc(slices.Clone(faultSearches), func(k faultSearch) bool {
		return !slices.ContainsFunc(fault.Known().FoundBy(k.search), func(c fault.Code) bool { return slices.Contains(codes, string(c)) })
	})
}

// findBrokenVolumes looks for volumes whose file system is dead, hangs, or is not the one that the pod was given.
func findBrokenVolumes(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.volumes(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	s.addVolumeCoverage(survey)
	if passed := survey.Coverage.Namespaces; passed != nil {
		s.looked.addSurvey(passed.Denied, passed.Partial, passed.Skipped)
	}
	var faults []fault.Finding
	for _, v := range survey.Broken() {
		faults = append(faults, v.Findings()...)
	}
	return faults, nil
}

// addVolumeCoverage takes in what was judged of volumes, and what not.
func (s *scan) addVolumeCoverage(survey *volume.Survey) {
	l := &s.looked
	l.Volumes = len(survey.Volumes)
	for _, u := range survey.Coverage.Unjudged {
		l.Unproven = append(l.Unproven, unprovenPlace{
			Point: u.Point, Why: u.Reason, Pod: scanPod{u.Pod.UID, u.Pod.Namespace, u.Pod.Name}, Volume: u.Volume,
		})
	}
	for _, g := range survey.Coverage.Incomplete {
		if gap := (coverageGap{What: g.What, Why: g.Why}); !slices.Contains(l.NotLookedAt, gap) {
			l.NotLookedAt = append(l.NotLookedAt, gap)
		}
	}
	l.Notes = append(l.Notes, survey.Coverage.Notes...)
}

// addLeavingPods takes in the pods that do not go though their time is over. Only the specs of pods say that one is to go.
func (s *scan) addLeavingPods(ctx context.Context) error {
	stuck, err := s.source.leaving(ctx, s.specs)
	for _, p := range stuck {
		s.looked.Unproven = append(s.looked.Unproven, unprovenPlace{Point: p.Path, Why: p.Why, Pod: p.Pod})
	}
	return err
}

// findOrphanedPods looks for directories of pods that are gone. Without the specs of all pods nothing is proven; what
// speaks for it otherwise is told all the same, where only sources are missing or one thing else.
func findOrphanedPods(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.orphans(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	if passed := survey.Coverage; passed != nil {
		s.looked.addSurvey(passed.Denied, passed.Partial, passed.Skipped)
	}
	s.looked.addSurvey(0, 0, survey.Skipped)
	for _, p := range survey.Pods {
		if !p.Orphaned && len(p.Unproven) <= max(1, len(survey.UnavailableSources)) && (len(p.Volumes) > 0 || p.SubPaths) {
			s.looked.Unproven = append(s.looked.Unproven, unprovenPlace{
				Point: p.Path, Pod: scanPod{UID: p.UID}, Why: "it has volumes and may belong to no pod: " + strings.Join(p.Unproven, "; "),
			})
		}
	}
	return survey.Findings(), nil
}

// findStaleSubPaths looks for subPath binds whose source is gone or another one by now. A bind that the kubelet renews
// or unmounts by itself is counted, and is no fault.
func findStaleSubPaths(ctx context.Context, s *scan) ([]fault.Finding, error) {
	survey, err := s.source.subPaths(ctx, s.specs)
	if err != nil {
		return nil, err
	}
	l := &s.looked
	l.MountNamespace, l.Pods, l.Mounts, l.Binds = survey.Namespace, survey.Pods, survey.Mounts, survey.Binds
	l.KubeletRenews = replacesUnknown
	if survey.ReplacesBindsKnown {
		l.KubeletRenews = survey.ReplacesBinds
	}
	var faults []fault.Finding
	for _, found := range survey.Found {
		switch {
		case found.Verdict == subpath.Unproven:
			l.Unproven = append(l.Unproven, unprovenPlace{
				Point: found.State.Point, Why: found.Reason, Pod: scanPodOf(found.SubPath.PodUID, found.Pod), Volume: found.SubPath.Volume,
			})
		case found.LeftToKubelet():
			l.RenewedByKubelet++
		default:
			faults = append(faults, found.Finding(survey.Namespace))
		}
	}
	return faults, nil
}

// scanPodOf names a pod, as far as it is known: pod may be nil.
func scanPodOf(uid string, pod *corev1.Pod) scanPod {
	if pod == nil {
		return scanPod{UID: uid}
	}
	return scanPod{uid, pod.Namespace, pod.Name}
}

// maxSourceContainers is how many containers a pod may have whose sources are looked for. For each of them the whole pod is read.
const maxSourceContainers = 64

// findBadSources looks for what containers that are not started mount and cannot get. Only the specs of pods say what
// that is.
func findBadSources(ctx context.Context, s *scan) (faults []fault.Finding, err error) {
	uids, err := s.source.podUIDs(ctx)
	if err != nil {
		return nil, err
	}
	onNode := map[string]bool{}
	for _, uid := range uids {
		onNode[uid] = true
	}
	here := slices.DeleteFunc(slices.Collect(maps.Values(s.specs)), func(pod *corev1.Pod) bool { return pod == nil || !onNode[string(pod.UID)] })
	slices.SortFunc(here, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	for _, pod := range here {
		if n := len(podinfo.ContainerNames(pod)); n > maxSourceContainers {
			s.looked.NotLookedAt = append(s.looked.NotLookedAt, coverageGap{
				What: "sources of the volumes of pod " + pod.Namespace + "/" + pod.Name, Why: fmt.Sprintf("it has %d containers, and at most %d are looked at", n, maxSourceContainers),
			})
			continue
		}
		found, err := s.source.badSources(ctx, pod)
		if err != nil {
			return nil, err
		}
		faults = append(faults, found...)
	}
	return faults, nil
}

// findHeldDevices looks for block devices that the kubelet has done with and other mount namespaces keep: with a copy
// of one of its mounts. A mount that a container made itself is its own, and no fault.
func findHeldDevices(ctx context.Context, s *scan) ([]fault.Finding, error) {
	left, err := s.source.devices(ctx)
	if err != nil {
		return nil, err
	}
	var faults []fault.Finding
	for _, c := range left {
		s.looked.addSurvey(c.Coverage.Mounts.Denied, c.Coverage.Mounts.Partial, c.Coverage.Mounts.Skipped)
		s.looked.Notes = append(s.looked.Notes, timedOutSources(c)...)
		if c.IsHeld() && c.HasCopies() {
			faults = append(faults, c.Findings()...)
		}
	}
	s.looked.DevicesElsewhere = len(left)
	return faults, nil
}

// timedOutSources name the sources that did not answer and could have shown more about a device.
func timedOutSources(c *device.Usage) (list []string) {
	if errors.Is(c.Untested, blockdev.ErrNoAnswer) {
		list = append(list, fmt.Sprintf("waited in vain for device %s to say whether it is busy: %v", c.Device.Node(), c.Untested))
	}
	if n := c.Coverage.Unanswered; n > 0 {
		list = append(list, fmt.Sprintf("waited in vain for %s, which may hold device %s", countProcesses(n), c.Device.Node()))
	}
	return list
}

// filterFaults leaves the faults of the codes and of the pod that were asked for.
func (s *scan) filterFaults(ctx context.Context, faults []fault.Finding, options scanOptions) ([]fault.Finding, error) {
	if len(options.only) > 0 {
		faults = slices.DeleteFunc(faults, func(f fault.Finding) bool { return !slices.Contains(options.only, string(f.Code)) })
	}
	if options.pod == "" {
		return faults, nil
	}
	uids, err := s.podUIDsOf(ctx, options.pod)
	if err != nil {
		return nil, err
	}
	s.looked.Unproven = slices.DeleteFunc(s.looked.Unproven, func(u unprovenPlace) bool {
		return u.Pod.UID != "" && !slices.Contains(uids, u.Pod.UID)
	})
	return slices.DeleteFunc(faults, func(f fault.Finding) bool { return !slices.Contains(uids, f.Pod.UID) }), nil
}

// podUIDsOf are those of the pods of this node that have a name. Several had it if it was used again. A pod that is not
// known here is an error: that nothing of it is broken would say nothing.
func (s *scan) podUIDsOf(ctx context.Context, pod string) (uids []string, err error) {
	here, err := s.source.podUIDs(ctx)
	if err != nil {
		return nil, err
	}
	namespace, name, named := strings.Cut(pod, "/")
	if !named {
		if !slices.Contains(here, pod) {
			return nil, fmt.Errorf("--pod=%q: the kubelet has no pod with this UID", pod)
		}
		return []string{pod}, nil
	}
	for _, uid := range here {
		if spec := s.specs.PodByUID(uid); spec != nil && spec.Namespace == namespace && spec.Name == name {
			uids = append(uids, uid)
		}
	}
	failed := ""
	for _, ask := range []func(context.Context) (podNames, error){s.source.runtimeNames, s.source.logNames} {
		names, err := callWithin(ctx, nameTimeout, ask)
		if err != nil {
			failed += "; " + err.Error()
		}
		for uid, n := range names {
			if n.Namespace == namespace && n.Name == name && slices.Contains(here, uid) && !slices.Contains(uids, uid) {
				uids = append(uids, uid)
			}
		}
	}
	if len(uids) == 0 {
		return nil, fmt.Errorf("--pod=%q: no pod with this name is known on this node%s", pod, failed)
	}
	return uids, nil
}
