// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package sentinel watches a node. It keeps the set of present faults, notifies an observer of each, and in mode
// Automatic repairs those that can be repaired without a loss. A Guard decides about each fault.
//
// It watches the subPath binds. A bind that becomes stale (kubernetes#68211) is reported within milliseconds, while its
// container still runs. In mode Automatic it is unmounted at once, so that the next start of the container finds the
// current content. It also watches the volumes that can die under their pods: see volumeWatcher.
//
// Package subpath decides whether a bind is stale and may be unmounted, for the sentinel as for a Diagnosis. It decides
// by the pod's UID and spec, the mount table and the kernel. The sentinel only decides when to inspect a bind: once at
// first, again when inotify reports a change of its source, and every few minutes in case an event was missed. A watch
// pins neither the mount nor its mount namespace. If a kubelet replaces stale binds of local file systems itself (1.19 and
// later), those are left alone. Other file systems send no events: they are asked, once at first and then every few
// minutes.
//
// Before it changes anything, its Observer writes the repair down. After a restart it looks how those have ended whose end is not
// written down, and inspects everything again. It rests on inotify(7), and on the
// kernel reporting IN_ATTRIB to every watch on a file when its last name is removed.
package sentinel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Mode is how the sentinel handles the faults that it finds.
type Mode string

// Modes.
const (
	// Off watches nothing.
	Off Mode = "Off"
	// Observe reports faults.
	Observe Mode = "Observe"
	// Automatic reports faults, and repairs those that are safe to repair.
	Automatic Mode = "Automatic"
)

// Set sets the mode from the value of a flag.
func (m *Mode) Set(s string) error {
	switch Mode(s) {
	case Off, Observe, Automatic:
		*m = Mode(s)
		return nil
	}
	return fmt.Errorf("mode %q must be %s, %s or %s", s, Off, Observe, Automatic)
}

// String returns the mode.
func (m *Mode) String() string { return string(*m) }

// Type returns the name of the value's type in the help of a flag.
func (*Mode) Type() string { return "mode" }

// Lock keeps repairs of several programs apart.
type Lock interface {
	// Try takes the lock, or returns an error at once. The caller calls release.
	Try() (release func(), err error)
}

// tryLock takes the lock for repairs. It reports whether repairs may be made; a later try follows if they may not.
func (s *Sentinel) tryLock() (release func(), ok bool) {
	if s.Lock == nil {
		return func() {}, true
	}
	release, err := s.Lock.Try()
	if err != nil {
		return func() {}, false
	}
	return release, true
}

// Observer is notified of faults and repairs. Several goroutines call its methods, which return soon.
type Observer interface {
	// Found reports a fault once, when it is first seen. after is the age of the fault, and 0 if the kernel does not
	// record it.
	Found(f fault.Finding, after time.Duration)
	// Begin writes down a repair right before it changes anything. An error forbids it.
	Begin(r Repair) error
	// Repaired reports a repair that has begun. Found has reported the fault before, to this process or an earlier one.
	Repaired(r Repair)
	// Left reports a repair that has begun, and that has changed nothing.
	Left(r Repair)
	// Trouble reports an error that keeps the sentinel from seeing everything. The sentinel retries on its own.
	Trouble(err error)
}

// Intervals.
const (
	// tickInterval is how often the lists of mounts are updated, unless that takes too long: see cpuShareDivisor. Binds
	// without a watch are inspected as often.
	tickInterval = time.Second
	// fullScanInterval is how often all binds are inspected, with or without events.
	fullScanInterval = 5 * time.Minute
	// retryInterval is the delay after an error that concerns the whole node.
	retryInterval = 5 * time.Second
)

// Guard decides what may be done about faults.
type Guard interface {
	// Mode returns at once what may be done about a fault of a pod. pod is nil for a fault of no pod. If it is Automatic,
	// Acquire decides.
	Mode(code fault.Code, pod *corev1.Pod) Mode
	// Acquire reports whether a fault of a pod may be repaired now. It may wait for a moment.
	Acquire(ctx context.Context, f fault.Finding, pod *corev1.Pod) bool
	// Ended records how a repair ended that Acquire has allowed.
	Ended(key fault.Key, pod fault.Pod, err error)
	// Subscribe returns a channel that receives when answers may have changed.
	Subscribe() <-chan struct{}
}

// Sentinel watches one node. Its fields are set before Run.
type Sentinel struct {
	// Mode is Off if nothing is watched. The Guard has the mode of each fault.
	Mode     Mode
	Guard    Guard
	Kubelet  kubelet.Locator
	Pods     kubelet.PodCache
	Observer Observer
	// Binds is what is asked about binds whose file systems may not answer, and about pods that go.
	Binds subpath.Sources
	// Volumes is nil if volumes are not watched. Connections is nil if the kernel gives no access to FUSE connections.
	// Then the next scan finds a dead one.
	Volumes     Volumes
	Connections Connections
	// Lock keeps other programs of the node from repairs while the sentinel makes one. Nil: there are no others.
	Lock Lock
	// Begun are the repairs that an earlier process has begun. Their ends are not known.
	Begun []Repair
	// Orphans is nil if the directories of pods that are gone are not counted.
	Orphans Orphans
	// Looks are the searches that are made from time to time. Their faults are reported.
	Looks map[fault.Search]Look
	// Changed is called when the result of Faults may have changed. It returns at once. It may be nil.
	Changed func()

	// watches is how many inotify watches root has; 0: ask the kernel.
	watches int

	// podsStay is set while pods were found whose time is over, and cleared by a scan of volumes, which says why.
	podsStay atomic.Bool

	mu      sync.Mutex
	reports map[fault.Search]*report
}

// Run watches until ctx is done and returns nil. It reports errors to the observer and retries.
func (s *Sentinel) Run(ctx context.Context) error {
	if s.Mode != Observe && s.Mode != Automatic {
		return nil
	}
	s.setStatus(fault.SearchSubPaths, Status{})
	var group sync.WaitGroup
	group.Go(func() { s.watchdog(ctx) })
	if s.Volumes != nil {
		s.setStatus(fault.SearchVolumes, Status{})
		group.Go(func() { newVolumeWatcher(s).run(ctx) })
	}
	if s.Orphans != nil {
		group.Go(func() { s.watchOrphans(ctx) })
	}
	for search, look := range s.Looks {
		group.Go(func() { s.lookAgain(ctx, search, look) })
	}
	memory := &bindMemory{
		notified: map[fault.Key]mount.ID{}, repairLimiters: repairLimiters{}, decisions: s.Guard.Subscribe(), begun: s.begunFor(fault.SearchSubPaths),
	}
	for ctx.Err() == nil {
		err := s.watchKubelet(ctx, memory)
		s.setStatus(fault.SearchSubPaths, Status{})
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
	group.Wait()
	return nil
}

// errReplaced ends the watch of a kubelet that was replaced by another process.
var errReplaced = errors.New("kubelet was replaced")

// watchKubelet watches the binds of the current kubelet until it is replaced.
func (s *Sentinel) watchKubelet(ctx context.Context, memory *bindMemory) error {
	node, err := s.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	renews, err := node.ReplacesStaleBinds()
	v, err := newBindWatcher(s, node, memory, err == nil && renews)
	if err != nil {
		return err
	}
	defer v.close()
	if err := v.settleBegun(ctx); err != nil {
		return err
	}
	return v.run(ctx)
}
