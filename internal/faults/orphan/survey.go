// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Bounds of what is told of one pod, and of how many pods have a directory on a node.
const (
	maxRecordedReasons = 32
	maxListedEntries   = 256
	maxPods            = 200_000
)

// maxInspected bounds how many directories are looked into at once, as each takes room and a question to the runtime.
// If there are more, others have their turn every hour, so that a repair still finds what was diagnosed.
const (
	maxInspected   = 1000
	rotationPeriod = time.Hour
)

// inspection is one look at the node.
type inspection struct {
	inspector     *Inspector
	node          *kubelet.Node
	host          mountns.Namespace
	table         *mountinfo.Table // of the kubelet's namespace
	podsDirectory directoryID      // what the directory of the pods is
	podSources    podSources       // whose pods there are
	uid           string           // of the one pod that is looked at; empty: all are
	cleanupRetry  cleanupRetry
	// removalStarted is whether something may have been removed already: then what counts is when things were made.
	removalStarted bool
}

// cleanupRetry says how often the kubelet itself tries to clean up the volumes of pods that are gone.
type cleanupRetry struct {
	onlyOnce bool      // whether it tries once with those that it finds when it starts, and not mounted
	since    time.Time // when it has started
	err      error     // why that is not known
}

// judgeTerms are those on which directories are judged, the same for all.
type judgeTerms struct {
	now         time.Time
	minimumAge  time.Duration
	unavailable []string // the sources that could not be asked, and why
	// serverAsked is whether the API server was asked in this look.
	serverAsked bool
}

// directoryID is a directory of a file system.
type directoryID struct {
	major, minor uint32
	root         string
}

// Survey looks at the directories of all pods of the node. It changes nothing.
func (i *Inspector) Survey(ctx context.Context) (*Survey, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	s, err := (&inspection{inspector: i, node: node}).surveyPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("survey pod directories of %s: %w", node, err)
	}
	return s, nil
}

// surveyPods lists the directories before it asks whose they are, so that a pod that comes meanwhile is not taken for
// gone, and looks into them last.
func (n *inspection) surveyPods(ctx context.Context) (*Survey, error) {
	survey := &Survey{KubeletRoot: n.node.Root, Pods: []*Pod{}}
	var uids, open []string
	err := n.withPodsDirectory(ctx, func(pods *sys.FD) (err error) {
		if uids, err = n.podDirectories(pods, survey); err != nil {
			return err
		}
		survey.Directories = len(uids)
		uids = slices.DeleteFunc(uids, n.inspector.inCache)
		if n.uid == "" {
			n.inspector.confirmedGone.retainOnly(uids)
			uids = n.selectTurn(uids, survey)
		}
		open, err = n.serverCandidates(ctx, uids, pods)
		return err
	})
	if errors.Is(err, sys.ENOENT) { // a kubelet that has had no pod yet
		return survey, nil
	}
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		return survey, ctx.Err()
	}
	n.podSources = n.inspector.askSources(ctx, open)
	survey.UnavailableSources = n.podSources.unavailable
	uids = slices.DeleteFunc(uids, func(uid string) bool { return n.podSources.server[uid] || n.podSources.runtime[uid] })
	if len(uids) == 0 {
		return survey, ctx.Err()
	}
	if len(n.podSources.unavailable) > 0 {
		return survey, n.listUnproven(ctx, uids, survey)
	}
	return survey, n.inspectPods(ctx, uids, survey)
}

// listUnproven adds the directories of these pods while a source does not say whose they are: nothing is proven then, and nothing is removed. So
// neither their content nor the mounts of the machine are looked at, but only the places and the age of their volumes.
func (n *inspection) listUnproven(ctx context.Context, uids []string, s *Survey) error {
	contained := n.inspector.containerDoubts(ctx, uids, n.podSources)
	s.terms = n.newTerms()
	err := n.withPodsDirectory(ctx, func(pods *sys.FD) error {
		for _, uid := range uids {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &Pod{Place: Place{UID: uid, Path: n.node.PodDir(uid)}, containerDoubt: contained[uid]}
			if p.listPlaces(pods); len(p.allEntries) > 0 { // else it has gone
				n.judgePod(p, s.terms, &mountns.Survey{})
				s.Pods = append(s.Pods, p)
			}
		}
		return nil
	})
	n.addPodNames(ctx, s.Pods)
	return err
}

// newTerms are those of this look, once the sources were asked.
func (n *inspection) newTerms() judgeTerms {
	return judgeTerms{n.inspector.currentTime(), n.inspector.minimumAge(), n.podSources.unavailable, n.podSources.server != nil}
}

// selectTurn picks those whose turn it is.
func (n *inspection) selectTurn(uids []string, s *Survey) []string {
	if len(uids) <= maxInspected {
		return uids
	}
	turns := (len(uids) + maxInspected - 1) / maxInspected
	at := int(n.inspector.currentTime().Unix()/int64(rotationPeriod/time.Second)) % turns * maxInspected
	now := uids[at:min(at+maxInspected, len(uids))]
	s.Skipped = append(s.Skipped, fmt.Sprintf("%d of %d directories of pods: %d are looked into at once, and others every hour", len(uids)-len(now),
		len(uids), maxInspected))
	return now
}

// serverCandidates are those of the pods that only the API server can say of that they are gone: nothing else speaks
// against it yet, and it has not said so. Without a cache all are.
func (n *inspection) serverCandidates(ctx context.Context, uids []string, pods *sys.FD) (open []string, err error) {
	if n.inspector.Cache == nil {
		return uids, nil
	}
	for _, uid := range uids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !serverUID.MatchString(uid) || n.inspector.confirmedGone.contains(uid) {
			continue
		}
		p := &Pod{Place: Place{UID: uid, Path: n.node.PodDir(uid)}}
		if err := p.listEntries(pods); err != nil {
			return nil, fmt.Errorf("look into %q: %w", p.Path, err)
		}
		if p.tooRecentReason(judgeTerms{now: n.inspector.currentTime(), minimumAge: n.inspector.minimumAge()}, n.removalStarted) == "" {
			open = append(open, uid)
		}
	}
	return open, nil
}

// inspectPods adds the directories of these pods, and what is to be said of them.
func (n *inspection) inspectPods(ctx context.Context, uids []string, s *Survey) error {
	contained := n.inspector.containerDoubts(ctx, uids, n.podSources)
	found, survey, err := n.findMounts(uids)
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	retry := &n.cleanupRetry
	if retry.onlyOnce, retry.err = n.node.RetriesCleanupOnce(); retry.err == nil && retry.onlyOnce {
		retry.since, retry.err = n.node.Started()
	}
	s.terms = n.newTerms()
	s.Coverage = &survey
	err = n.withPodsDirectory(ctx, func(pods *sys.FD) error {
		for _, uid := range uids {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &Pod{Place: Place{UID: uid, Path: n.node.PodDir(uid)}, containerDoubt: contained[uid], mounts: *found[uid]}
			if err := p.listEntries(pods); err != nil {
				return fmt.Errorf("look into %q: %w", p.Path, err)
			}
			for i, e := range p.allEntries {
				if e.Kind == Record {
					p.allEntries[i].facts.NeededReason = n.recordNeeded(e, p.UID)
				}
			}
			n.judgePod(p, s.terms, s.Coverage)
			s.Pods = append(s.Pods, p)
		}
		return nil
	})
	s.Pods = slices.DeleteFunc(s.Pods, func(p *Pod) bool { return len(p.allEntries) == 0 }) // gone meanwhile
	n.addPodNames(ctx, s.Pods)
	return err
}

// withPodsDirectory runs fn in the kubelet's mount namespace with the directory of the pods, once it is known what that
// is.
func (n *inspection) withPodsDirectory(ctx context.Context, fn func(pods *sys.FD) error) error {
	return n.node.Do(ctx, func() error {
		var err error
		if n.host, err = mountns.Self(); err != nil {
			return err
		}
		if n.table, err = n.node.TableInside(); err != nil {
			return err
		}
		pods, err := mountns.Lookup(0, n.node.PodsDir())
		if err != nil {
			return fmt.Errorf("open %q: %w", n.node.PodsDir(), err)
		}
		defer pods.Close()
		// The mount table shows which one it is: the device number of a file is not reliable on all file systems.
		m, ok := n.table.On(n.node.PodsDir())
		st, err := pods.Stat(sys.StatMountID)
		id := int(st.MountID)
		if err != nil || !st.Has(sys.StatMountID) {
			id, err = pods.FDMountID()
		}
		switch {
		case err != nil:
			return err
		case !ok, m.ID != id, m.Deleted():
			return fmt.Errorf("find the mount that %q lies on: the mount table does not show it", n.node.PodsDir())
		}
		n.podsDirectory = directoryID{m.Major, m.Minor, pathInMount(m.Point, m.Root, n.node.PodsDir())}
		return fn(pods)
	})
}

// pathInMount is what a path is in the file system of a mount that it lies below.
func pathInMount(point, root, name string) string {
	below, _ := mountinfo.Below(point, name)
	return path.Join(root, below)
}

// podDirectories lists the pods that have one.
func (n *inspection) podDirectories(pods *sys.FD, s *Survey) ([]string, error) {
	names, more, err := sys.ListDir(pods, maxPods)
	switch {
	case more && n.uid != "":
		err = fmt.Errorf("more than %d entries", maxPods)
	case more:
		s.Skipped = append(s.Skipped, fmt.Sprintf("directories of pods beyond the first %d", maxPods))
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", n.node.PodsDir(), err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		st, err := pods.StatAt(name, sys.StatType)
		return err == nil && !st.IsDir() || n.uid != "" && name != n.uid
	})
	slices.Sort(names)
	return names, nil
}

// judgePod says whether a directory belongs to no pod, and what may be removed of it.
func (n *inspection) judgePod(pod *Pod, terms judgeTerms, looked *mountns.Survey) {
	pod.Unproven = slices.Clone(terms.unavailable)
	if pod.containerDoubt != "" {
		pod.Unproven = append(pod.Unproven, pod.containerDoubt)
	}
	if !serverUID.MatchString(pod.UID) {
		pod.Unproven = append(pod.Unproven, "its name is not a UID that an API server gives: it may be that of a static pod")
	}
	if young := pod.tooRecentReason(terms, n.removalStarted); young != "" {
		pod.Unproven = append(pod.Unproven, young)
	}
	if len(pod.Unproven) == 0 && !terms.serverAsked && !n.inspector.confirmedGone.contains(pod.UID) {
		pod.Unproven = append(pod.Unproven, "the API server was not asked for it, as it was too young until now")
	}
	pod.Orphaned = len(pod.Unproven) == 0
	pod.Mounts = pod.mounts.examples
	if pod.mounts.total > 0 && len(pod.Mounts) > 0 {
		m := pod.Mounts[0]
		pod.addRefusal(fault.InUse, fmt.Sprintf("mounts that show it to be in use: %d, the first at %q in mount namespace %d, %s", pod.mounts.total, m.Point,
			m.Namespace, m.Reason))
	}
	if looked.Partial > 0 {
		pod.addRefusal(fault.NotProven, fmt.Sprintf("%d mount namespaces could not be read, and may have something of it mounted", looked.Partial))
	}
	for _, what := range looked.Skipped {
		pod.addRefusal(fault.NotProven, "something of it may be mounted where it was not looked: "+what)
	}
	pod.planRemoval(looked)
	pod.Entries = pod.allEntries[:min(len(pod.allEntries), maxListedEntries)]
	pod.More = len(pod.allEntries) - len(pod.Entries)
}

func (p *Pod) addRefusal(reason fault.RefusalReason, why string) {
	if p.reason == "" {
		p.reason = reason
	}
	switch {
	case len(p.Refusals) < maxRecordedReasons-1:
		p.Refusals = append(p.Refusals, why)
	case len(p.Refusals) == maxRecordedReasons-1:
		p.Refusals = append(p.Refusals, "and more")
	}
}

// tooRecentReason says why the directory may be that of a pod that is about to begin; empty: it is not. Once something
// of it has been removed, that is the last change, and what was made counts instead, as far as that is known.
func (p *Pod) tooRecentReason(terms judgeTerms, acting bool) string {
	for _, e := range p.allEntries {
		if e.facts.Changed.After(p.Changed) {
			p.Changed = e.facts.Changed
		}
	}
	last := p.Changed
	if acting {
		last = time.Time{}
		for _, e := range p.allEntries {
			if e.facts.Made.After(last) {
				last = e.facts.Made
			}
		}
	}
	switch age := terms.now.Sub(last); {
	case age < 0:
		return "something in it was changed at a time that is yet to come: " + last.Format(time.RFC3339)
	case age < terms.minimumAge:
		return fmt.Sprintf("something in it has changed %d seconds ago, and a kubelet makes the directory before anything else of a pod: "+
			"%d have to pass", int(age.Seconds()), int(terms.minimumAge.Seconds()))
	}
	return ""
}

// addPodNames fills in the names of the pods, as far as they are known.
func (n *inspection) addPodNames(ctx context.Context, pods []*Pod) {
	if len(pods) == 0 {
		return
	}
	names, err := n.node.PodNames(ctx)
	if err != nil {
		return
	}
	for _, p := range pods {
		p.Namespace, p.Name = names[p.UID].Namespace, names[p.UID].Name
	}
}
