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

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Bounds of what is told of one pod, and of how many pods have a directory on a node.
const (
	maxTold        = 32
	maxEntriesTold = 256
	maxPods        = 200_000
)

// maxLooked bounds how many directories are looked into at once, as each takes room and a question to the runtime. If
// there are more, others have their turn every hour, so that a repair still finds what was diagnosed.
const (
	maxLooked = 1000
	turnEvery = time.Hour
)

// look is one look at the node.
type look struct {
	*Inspector
	node  *kubelet.Node
	host  mountns.Namespace
	table *mountinfo.Table // of the kubelet's namespace
	base  ground           // what the directory of the pods is
	from  sources          // whose pods there are
	uid   string           // of the one pod that is looked at; empty: all are
	attempts
	// acting is whether something may have been removed already: then what counts is when things were made.
	acting bool
}

// terms are those on which directories are judged, the same for all.
type terms struct {
	at         time.Time
	minimumAge time.Duration
	unasked    []string // the sources that could not be asked, and why
	// server is whether the API server was asked in this look.
	server bool
}

// ground is a directory of a file system.
type ground struct {
	major, minor uint32
	root         string
}

// Survey looks at the directories of all pods of the node. It changes nothing.
func (i *Inspector) Survey(ctx context.Context) (*Survey, error) {
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	s, err := (&look{Inspector: i, node: n}).survey(ctx)
	if err != nil {
		return nil, fmt.Errorf("survey pod directories of %s: %w", n, err)
	}
	return s, nil
}

// survey lists the directories before it asks whose they are, so that a pod that comes meanwhile is not taken for gone,
// and looks into them last.
func (l *look) survey(ctx context.Context) (*Survey, error) {
	s := &Survey{KubeletRoot: l.node.Root, Pods: []*Pod{}}
	var uids, open []string
	err := l.inPods(ctx, func(pods *sys.FD) (err error) {
		if uids, err = l.directories(pods, s); err != nil {
			return err
		}
		s.Directories = len(uids)
		uids = slices.DeleteFunc(uids, l.cached)
		if l.uid == "" {
			l.absent.keep(uids)
			uids = l.turn(uids, s)
		}
		open, err = l.open(ctx, uids, pods)
		return err
	})
	if errors.Is(err, sys.ENOENT) { // a kubelet that has had no pod yet
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		return s, ctx.Err()
	}
	l.from = l.ask(ctx, open)
	s.Unasked = l.from.unasked
	uids = slices.DeleteFunc(uids, func(uid string) bool { return l.from.knows(uid) != "" })
	if len(uids) == 0 {
		return s, ctx.Err()
	}
	return s, l.lookInto(ctx, uids, s)
}

// turn picks those whose turn it is.
func (l *look) turn(uids []string, s *Survey) []string {
	if len(uids) <= maxLooked {
		return uids
	}
	turns := (len(uids) + maxLooked - 1) / maxLooked
	at := int(l.now().Unix()/int64(turnEvery/time.Second)) % turns * maxLooked
	now := uids[at:min(at+maxLooked, len(uids))]
	s.Skipped = append(s.Skipped, fmt.Sprintf("%d of %d directories of pods: %d are looked into at once, and others every hour", len(uids)-len(now),
		len(uids), maxLooked))
	return now
}

// open are those of the pods that only the API server can say of that they are gone: nothing else speaks against it yet,
// and it has not said so. Without a cache all are.
func (l *look) open(ctx context.Context, uids []string, pods *sys.FD) (open []string, err error) {
	if l.Cache == nil {
		return uids, nil
	}
	for _, uid := range uids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !serverUID.MatchString(uid) || l.absent.has(uid) {
			continue
		}
		p := &Pod{UID: uid, Path: l.node.PodDir(uid)}
		if err := l.fill(p, pods); err != nil {
			return nil, fmt.Errorf("look into %q: %w", p.Path, err)
		}
		if p.young(terms{at: l.now(), minimumAge: l.minimumAge()}, l.acting) == "" {
			open = append(open, uid)
		}
	}
	return open, nil
}

// lookInto adds the directories of these pods, and what is to be said of them.
func (l *look) lookInto(ctx context.Context, uids []string, s *Survey) error {
	contained := l.contained(ctx, uids, l.from)
	found, survey, err := l.mounted(uids)
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	l.attempts = attemptsOf(l.node)
	s.terms = terms{l.now(), l.minimumAge(), l.from.unasked, l.from.server != nil}
	s.Looked = &Looked{survey.Backend, survey.Namespaces, survey.Mounts, survey.Denied, survey.Partial, survey.Skipped}
	err = l.inPods(ctx, func(pods *sys.FD) error {
		for _, uid := range uids {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &Pod{UID: uid, Path: l.node.PodDir(uid), contained: contained[uid], mounts: *found[uid]}
			if err := l.fill(p, pods); err != nil {
				return fmt.Errorf("look into %q: %w", p.Path, err)
			}
			l.noteNeeded(p)
			l.classify(p, s.terms, s.Looked)
			s.Pods = append(s.Pods, p)
		}
		return nil
	})
	s.Pods = slices.DeleteFunc(s.Pods, func(p *Pod) bool { return len(p.all) == 0 }) // gone meanwhile
	l.callByName(ctx, s.Pods)
	return err
}

// inPods runs fn in the kubelet's mount namespace with the directory of the pods, once it is known what that is.
func (l *look) inPods(ctx context.Context, fn func(pods *sys.FD) error) error {
	return l.node.Do(ctx, func() error {
		var err error
		if l.host, err = mountns.Self(); err != nil {
			return err
		}
		if l.table, err = mountns.Table(0); err != nil {
			return err
		}
		pods, err := mountns.Lookup(0, l.node.PodsDir())
		if err != nil {
			return fmt.Errorf("open %q: %w", l.node.PodsDir(), err)
		}
		defer pods.Close()
		if l.base, err = l.groundOf(pods); err != nil {
			return err
		}
		return fn(pods)
	})
}

// groundOf returns the directory and the file system that the directory of the pods lies on, by the mount table: the
// device number of a file is not reliable on all file systems.
func (l *look) groundOf(pods *sys.FD) (ground, error) {
	m, ok := l.table.On(l.node.PodsDir())
	id, err := mountID(pods)
	switch {
	case err != nil:
		return ground{}, err
	case !ok, m.ID != id, m.Deleted():
		return ground{}, fmt.Errorf("find the mount that %q lies on: the mount table does not show it", l.node.PodsDir())
	}
	return ground{m.Major, m.Minor, within(m.Point, m.Root, l.node.PodsDir())}, nil
}

// within is what a path is in the file system of a mount that it lies below.
func within(point, root, name string) string {
	if point == "/" {
		return path.Join(root, name)
	}
	return path.Join(root, name[len(point):])
}

func mountID(fd *sys.FD) (int, error) {
	st, err := fd.Stat(sys.StatMountID)
	if err == nil && st.Has(sys.StatMountID) {
		return int(st.MountID), nil
	}
	return fd.FDMountID()
}

// directories lists the pods that have one.
func (l *look) directories(pods *sys.FD, s *Survey) ([]string, error) {
	names, more, err := sys.ListDir(pods, maxPods)
	switch {
	case more && l.uid != "":
		err = fmt.Errorf("more than %d entries", maxPods)
	case more:
		s.Skipped = append(s.Skipped, fmt.Sprintf("directories of pods beyond the first %d", maxPods))
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", l.node.PodsDir(), err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		st, err := pods.StatAt(name, sys.StatType)
		return err == nil && !st.IsDir() || l.uid != "" && name != l.uid
	})
	slices.Sort(names)
	return names, nil
}

// classify says whether a directory belongs to no pod, and what may be removed of it.
func (l *look) classify(p *Pod, t terms, looked *Looked) {
	p.Unproven = slices.Clone(t.unasked)
	if p.contained != "" {
		p.Unproven = append(p.Unproven, p.contained)
	}
	if !serverUID.MatchString(p.UID) {
		p.Unproven = append(p.Unproven, "its name is not a UID that an API server gives: it may be that of a static pod")
	}
	if young := p.young(t, l.acting); young != "" {
		p.Unproven = append(p.Unproven, young)
	}
	if len(p.Unproven) == 0 && !t.server && !l.absent.has(p.UID) {
		p.Unproven = append(p.Unproven, "the API server was not asked for it, as it was too young until now")
	}
	p.Orphaned = len(p.Unproven) == 0
	p.Mounts = p.mounts.first
	if p.mounts.all > 0 && len(p.Mounts) > 0 {
		m := p.Mounts[0]
		p.refuse(fmt.Sprintf("mounts that show it to be in use: %d, the first at %q in mount namespace %d, %s", p.mounts.all, m.Point,
			m.Namespace, m.Why))
	}
	if looked.Partial > 0 {
		p.refuse(fmt.Sprintf("%d mount namespaces could not be read, and may have something of it mounted", looked.Partial))
	}
	for _, what := range looked.Skipped {
		p.refuse("something of it may be mounted where it was not looked: " + what)
	}
	p.plan(looked)
	p.Entries = p.all[:min(len(p.all), maxEntriesTold)]
	p.More = len(p.all) - len(p.Entries)
}

func (p *Pod) refuse(why string) {
	switch {
	case len(p.Refusals) < maxTold-1:
		p.Refusals = append(p.Refusals, why)
	case len(p.Refusals) == maxTold-1:
		p.Refusals = append(p.Refusals, "and more")
	}
}

// young says why the directory may be that of a pod that is about to begin; empty: it is not. Once something of it has
// been removed, that is the last change, and what was made counts instead, as far as that is known.
func (p *Pod) young(t terms, acting bool) string {
	for _, e := range p.all {
		if e.changed.After(p.Changed) {
			p.Changed = e.changed
		}
	}
	last := p.Changed
	if acting {
		last = time.Time{}
		for _, e := range p.all {
			if e.made.After(last) {
				last = e.made
			}
		}
	}
	switch age := t.at.Sub(last); {
	case age < 0:
		return "something in it was changed at a time that is yet to come: " + last.Format(time.RFC3339)
	case age < t.minimumAge:
		return fmt.Sprintf("something in it has changed %d seconds ago, and a kubelet makes the directory before anything else of a pod: "+
			"%d have to pass", int(age.Seconds()), int(t.minimumAge.Seconds()))
	}
	return ""
}

// callByName fills in the names of the pods, as far as they are known.
func (l *look) callByName(ctx context.Context, pods []*Pod) {
	if len(pods) == 0 {
		return
	}
	names, err := l.node.PodNames(ctx)
	if err != nil {
		return
	}
	for _, p := range pods {
		p.Namespace, p.Name = names[p.UID].Namespace, names[p.UID].Name
	}
}
