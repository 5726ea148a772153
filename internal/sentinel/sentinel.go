// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package sentinel keeps watch over a node: it keeps the list of present faults true, tells of each, and in mode
// Automatic heals what can be healed without losing anything.
//
// It watches the subPath binds: a bind that has become stale (kubernetes#68211) is told of within milliseconds, while the
// container that has it still runs, and in mode Automatic unmounted at once, so that the next start of the container
// finds the content of then. And it watches the volumes that can die under their pods: see patrol.
//
// What a bind is, whether it is stale, and whether it may go is decided where a Diagnosis decides it, in package
// subpath: by the pod's UID and spec, the mount table and the kernel. The sentinel only knows when to look: at every
// bind once, again when inotify tells that its source has changed, and at all of them every few minutes, should
// anything have been missed. A watch pins neither the mount nor its namespace. A kubelet that mends its binds by itself
// (1.19 and later) is left alone.
//
// It keeps nothing on disk: after a restart it looks at everything again. It rests on inotify(7), and on the kernel
// marking every bind of a file whose last name goes (IN_ATTRIB).
package sentinel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Mode is what the sentinel does about the faults that it finds.
type Mode string

// Modes.
const (
	// Off: nothing is watched.
	Off Mode = "Off"
	// Observe: faults are told of.
	Observe Mode = "Observe"
	// Automatic: faults are told of, and healed where that is safe.
	Automatic Mode = "Automatic"
)

// Set takes the mode from a flag.
func (m *Mode) Set(s string) error {
	switch Mode(s) {
	case Off, Observe, Automatic:
		*m = Mode(s)
		return nil
	}
	return fmt.Errorf("mode %q must be %s, %s or %s", s, Off, Observe, Automatic)
}

// String is the mode.
func (m *Mode) String() string { return string(*m) }

// Type is how the help of a flag calls the value.
func (*Mode) Type() string { return "mode" }

// Pods are the pods of this node.
type Pods interface {
	// PodByUID gives the pod as it is known now, nil where none is. The caller does not change it.
	PodByUID(uid string) *corev1.Pod
}

// Observer hears what the sentinel sees and does. Its methods are called one at a time and return soon.
type Observer interface {
	// Found tells of a fault once, when it is first seen. after is for how long it had been there, 0 where the kernel
	// does not tell.
	Found(f fault.Finding, after time.Duration)
	// Repaired tells how the repair of a fault went that Found has told of.
	Repaired(f fault.Finding, err error)
	// Trouble tells what keeps the sentinel from seeing everything at once. It goes on by itself.
	Trouble(err error)
}

// serialObserver hands on what two watches tell, one call at a time.
type serialObserver struct {
	mu       sync.Mutex
	observer Observer
}

// Found is that of Observer, in turn; so are the others.
func (o *serialObserver) Found(f fault.Finding, after time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observer.Found(f, after)
}

func (o *serialObserver) Repaired(f fault.Finding, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observer.Repaired(f, err)
}

func (o *serialObserver) Trouble(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observer.Trouble(err)
}

// Intervals, and their bounds.
const (
	// tickInterval is how often the lists of mounts are brought up to date, unless that takes too long: see thrift. It is also how
	// often binds are looked at that no event tells about.
	tickInterval = time.Second
	// fullScanInterval is how often everything is looked at, whatever has been told.
	fullScanInterval = 5 * time.Minute
	// retryInterval is how long it is waited after something that concerns the whole node has failed.
	retryInterval = 5 * time.Second
)

// Sentinel watches one node. Its fields are set before Run.
type Sentinel struct {
	Mode     Mode
	Kubelet  kubelet.Locator
	Pods     Pods
	Observer Observer
	// Volumes is nil where volumes are not to be watched. Connections is nil where the kernel tells nothing about them:
	// then a dead one is noticed at the next round.
	Volumes     Volumes
	Connections Connections
	// Orphans is nil where the directories of pods that are gone are not to be counted.
	Orphans Orphans
	// Changed is called when Faults may return something else than before. It returns at once. nil: it is not called.
	Changed func()

	// notified are the mounts of the faults that have been told of, by point: a kubelet that is restarted is no news.
	notified map[string]mount.ID
	// repairLimiters bound the repairs of each place, by point.
	repairLimiters map[string]*repairLimiter

	mu           sync.Mutex
	bindStatus   Status // of binds
	volumeStatus Status // of volumes
	// faults are those that are present, by where they were found. A source that is not in it has not looked yet.
	faults map[source][]*Fault
}

// Run watches until ctx is done. It ends with nil: what fails is told, and tried again.
func (s *Sentinel) Run(ctx context.Context) error {
	if s.Mode != Observe && s.Mode != Automatic {
		return nil
	}
	s.notified, s.repairLimiters = map[string]mount.ID{}, map[string]*repairLimiter{}
	s.Observer = &serialObserver{observer: s.Observer}
	s.setBindStatus(Status{})
	var group sync.WaitGroup
	group.Go(func() { s.watchdog(ctx) })
	if s.Volumes != nil {
		s.setVolumeStatus(Status{})
		group.Go(func() { newVolumeWatcher(s).run(ctx) })
	}
	if s.Orphans != nil {
		group.Go(func() { s.watchOrphans(ctx) })
	}
	s.watchBinds(ctx)
	group.Wait()
	return nil
}

// watchBinds watches the binds until ctx is done.
func (s *Sentinel) watchBinds(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.watchKubelet(ctx)
		s.setBindStatus(Status{})
		if errors.Is(err, errReplaced) {
			continue
		}
		if err != nil && ctx.Err() == nil {
			s.Observer.Trouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// errReplaced ends the watch over a kubelet that is another process by now.
var errReplaced = errors.New("kubelet was replaced")

// watchKubelet keeps watch for as long as the kubelet is the one that it is now.
func (s *Sentinel) watchKubelet(ctx context.Context) error {
	node, err := s.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	if renews, err := node.Renews(); err == nil && renews {
		return s.awaitReplacement(ctx, node)
	}
	v, err := newBindWatcher(s, node)
	if err != nil {
		return err
	}
	defer v.close()
	return v.run(ctx)
}

// awaitReplacement waits for another kubelet.
func (s *Sentinel) awaitReplacement(ctx context.Context, node *kubelet.Node) error {
	for {
		s.setBindStatus(Status{Watching: true})
		s.publish(fromBinds, nil)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryInterval):
		}
		if err := s.checkKubelet(ctx, node); err != nil {
			return err
		}
	}
}

// checkKubelet makes sure that the kubelet is still that one.
func (s *Sentinel) checkKubelet(ctx context.Context, node *kubelet.Node) error {
	now, err := s.Kubelet.Node(ctx)
	if err == nil && now != node {
		return errReplaced
	}
	return err
}
