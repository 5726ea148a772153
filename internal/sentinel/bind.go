// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// A repair that fails is tried again after a second, and then after twice as long each time.
const (
	firstDelay = time.Second
	lastDelay  = 5 * time.Minute
)

// bind is one subPath bind, as it was seen last.
type bind struct {
	sub   kubelet.SubPath
	point string
	shape shape
	due   bool
	// calls counts the events that concern it since the last beat.
	calls int
	// watched is true while events tell of its source.
	watched bool
	// rests is until when no watch is set on its source, because there was a flood of events.
	rests time.Time

	looked bool // found is what was seen
	found  subpath.Bind
	code   fault.Code // of the fault that it has, if a container suffers from it
	fault  *Fault     // with that code, once it was described
	retry  time.Time  // no repair before
	delay  time.Duration
}

// uncertain tells whether something may become of the bind that no event tells about: nothing watches its source, or what
// the subPath names may be made anew.
func (b *bind) uncertain() bool {
	return !b.watched || b.found.Lost || b.found.Verdict == subpath.SourceGone
}

// calm tells whether nothing is to be done about the bind, nor said of it, before an event tells of it.
func (b *bind) calm() bool { return b.looked && b.code == "" && !b.uncertain() }

// shape tells whether other mounts are at a place than were: it is of the newest there, and of how many there are.
type shape struct {
	unique uint64
	id     int
	root   string
	count  int
	// deleted is the kernel's mark on the root, as far as the list shows it.
	deleted bool
}

// same tells whether these are the same mounts, whatever has become of their source.
func (s shape) same(other shape) bool {
	s.deleted = other.deleted
	return s == other
}

func (s *shape) add(m *mountns.Mount) {
	if m.Unique >= s.unique {
		s.unique, s.id = m.Unique, m.ID
		s.root, s.deleted = mountinfo.Deleted(m.Root)
	}
	s.count++
}

// news is what a visit to the kubelet's namespace has brought to light about one bind.
type news struct {
	bind     *bind
	pod      *corev1.Pod
	found    subpath.Bind
	seen     time.Time
	repaired bool
	err      error // of the repair
}

// examine looks at binds in one visit to the kubelet's namespace, and repairs where that is wanted.
func (v *vigil) examine(ctx context.Context, batch []*bind) error {
	return v.node.Do(ctx, func() error {
		ns, err := mountns.Self()
		if err != nil {
			return err
		}
		v.space = ns.Inode
		for _, b := range batch {
			n, err := v.look(ctx, b)
			if err != nil {
				v.Observer.Trouble(err) // this bind's own
			}
			if n != nil {
				v.news = append(v.news, *n)
			}
		}
		return nil
	})
}

// tell says what is seen now, and tells the news: of a fault once, and of every repair. That can wait until all that is
// to be done has been, as it takes reading the mount table.
func (v *vigil) tell(ctx context.Context) error {
	if len(v.news) > 0 {
		table, err := v.recentTable(ctx)
		if err != nil {
			return err
		}
		for _, n := range v.news {
			b := n.bind
			n.found.Describe(v.node, b.sub.PodUID, table)
			f := subpath.Found{SubPath: b.sub, Pod: n.pod, Bind: n.found}.Fault(v.space)
			b.fault = &Fault{Finding: f, Since: begin(n.found.State), KubeletPID: v.node.PID}
			if told, ok := v.told[b.point]; !ok || !told.Same(n.found.State.ID) {
				v.told[b.point] = n.found.State.ID
				v.Observer.Found(f, age(n.found.State, n.seen))
			}
			if n.repaired {
				v.Observer.Repaired(f, n.err)
			}
		}
		v.news = v.news[:0]
	}
	if v.stirred {
		v.report()
	}
	return nil
}

// recentTable is the mount table, for words alone: reading it takes longer than everything else, so it may be a beat old.
func (v *vigil) recentTable(ctx context.Context) (*mountinfo.Table, error) {
	if v.table != nil && time.Since(v.read) < beat {
		return v.table, nil
	}
	table, err := v.node.Mounts(ctx)
	if err == nil {
		v.table, v.read = table, time.Now()
	}
	return table, err
}

// look looks at one bind, and heals it. It runs inside the namespace. Only what is to be told is returned.
func (v *vigil) look(ctx context.Context, b *bind) (*news, error) {
	pod := v.Pods.PodByUID(b.sub.PodUID)
	if pod == nil {
		return nil, nil
	}
	if !b.watched {
		v.listen(b, pod)
	}
	found, there, err := subpath.Look(v.node, pod, b.point)
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", b.point, err)
	}
	b.looked, b.found, b.code = true, found, ""
	if !there || found.Verdict != subpath.Stale && found.Verdict != subpath.SourceGone {
		return nil, nil
	}
	b.code = subpath.Found{SubPath: b.sub, Pod: pod, Bind: found}.Fault(0).Code
	n := &news{bind: b, pod: pod, found: found, seen: time.Now()}
	if !v.suffers(b) {
		return nil, nil
	}
	if v.heals(b, n.seen) && v.allows(b, n.seen) {
		n.repaired, n.err = true, subpath.Unmount(ctx, v.node, pod, found.State.ID)
		b.settle(n)
		if n.err == nil && found.Fresh {
			v.listen(b, pod) // what is there now may go as well before it is on the list
		}
	}
	return n, nil
}

// suffers tells whether a container will fail for a bind, as far as is known: one that is not started again will not.
func (v *vigil) suffers(b *bind) bool {
	if b.code == "" {
		return false
	}
	pod := v.Pods.PodByUID(b.sub.PodUID)
	if pod == nil {
		return false
	}
	outlook, _ := subpath.OutlookOf(pod, b.sub.Container)
	return outlook != subpath.Over
}

// heals tells whether a bind is to be unmounted now. Where nothing can take its place, a container that is just being
// started would get the empty file or directory below it: then a moment is waited for at which none is.
func (v *vigil) heals(b *bind, now time.Time) bool {
	if v.Mode != Automatic || b.found.Verdict != subpath.Stale || now.Before(b.retry) {
		return false
	}
	return b.found.Fresh || subpath.Settled(v.Pods.PodByUID(b.sub.PodUID), b.sub.Container)
}

// allows tells whether the place may be repaired once more now.
func (v *vigil) allows(b *bind, now time.Time) bool {
	a := v.allowances[b.point]
	if a == nil {
		a = &allowance{}
		v.allowances[b.point] = a
	}
	if a.take(now) {
		return true
	}
	b.retry = now.Add(beat)
	return false
}

// settle notes how a repair went. A mount that has gone or changed in the meantime is somebody else's repair.
func (b *bind) settle(n *news) {
	switch {
	case n.err == nil:
		b.code = ""
	case errors.Is(n.err, mount.ErrNotMounted), errors.Is(n.err, mount.ErrChanged), errors.Is(n.err, subpath.ErrNotStale):
		b.code, n.repaired, n.err = "", false, nil
	default:
		b.delay = min(max(firstDelay, 2*b.delay), lastDelay)
		b.retry = n.seen.Add(b.delay)
	}
}

// knows tells whether the fault has been told of.
func (v *vigil) knows(b *bind) bool {
	told, ok := v.told[b.point]
	return ok && told.Same(b.found.State.ID)
}

// begin is when a source went. Zero: the kernel does not say.
func begin(st mount.State) time.Time {
	if !st.Gone {
		return time.Time{}
	}
	return st.Changed
}

// age is for how long a source had been gone when that was seen.
func age(st mount.State, seen time.Time) time.Duration {
	since := begin(st)
	if since.IsZero() {
		return 0
	}
	return max(0, seen.Sub(since))
}

// listen has events tell of the bind's source. It runs inside the namespace, and comes before the look: what changes in
// between is seen twice, not missed.
func (v *vigil) listen(b *bind, pod *corev1.Pod) {
	if time.Now().Before(b.rests) {
		return
	}
	err := v.setWatches(b, pod)
	b.watched = err == nil
	if err != nil {
		v.alarm.drop(b)
	}
	if errors.Is(err, sys.ENOSPC) && !v.short {
		v.short = true
		v.Observer.Trouble(fmt.Errorf("watch %q: %w: fs.inotify.max_user_watches is too low; binds without a watch are looked at "+
			"every second", b.point, err))
	}
}

// errNoWatch is for sources that inotify does not know about.
var errNoWatch = errors.New("file system reports no changes")

func (v *vigil) setWatches(b *bind, pod *corev1.Pod) error {
	v.alarm.drop(b)
	st, err := mount.Inspect(b.point)
	if err != nil {
		return err
	}
	if mountns.MayHang(st.FSType) {
		return errNoWatch
	}
	fd, err := mountns.Lookup(0, b.point)
	if err != nil {
		return err
	}
	defer fd.Close()
	if !st.Dir {
		return v.alarm.set(b, fd, ofFile, "")
	}
	if err := v.alarm.set(b, fd, ofDirectory, ""); err != nil {
		return err
	}
	parent, name, err := subpath.Parent(v.node, pod, b.point)
	if err != nil {
		return err
	}
	defer parent.Close()
	return v.alarm.set(b, parent, ofParent, name)
}
