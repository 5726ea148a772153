// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// Dispatcher makes Diagnoses of causes. It runs on the leader only.
type Dispatcher struct {
	// Client reads Triggers, OperationSets, Operations and Diagnoses from a cache, and writes Diagnoses.
	Client client.Client
	// Reader asks the API server itself for pods and nodes.
	Reader client.Reader
	// Namespace is where the Diagnoses are made.
	Namespace string

	mu    sync.Mutex
	lanes map[string]*lane
	ctx   context.Context //nolint:containedctx // that of Start: lanes begin later
	work  sync.WaitGroup
}

// SetupWithManager adds the dispatcher, and the index by which it finds earlier Diagnoses, to a manager.
func (d *Dispatcher) SetupWithManager(m manager.Manager) error {
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1.Diagnosis{}, unfinishedIndex, unfinished); err != nil {
		return err
	}
	return m.Add(d)
}

// NeedLeaderElection makes the leader the only one who makes Diagnoses.
func (d *Dispatcher) NeedLeaderElection() bool { return true }

// Start works until ctx is done, and returns when nothing is under way any more.
func (d *Dispatcher) Start(ctx context.Context) error {
	d.mu.Lock()
	d.ctx = ctx
	for _, l := range d.lanes {
		d.run(l)
	}
	d.mu.Unlock()
	<-ctx.Done()
	d.work.Wait()
	return nil
}

// run starts a lane. The caller holds the lock.
func (d *Dispatcher) run(l *lane) {
	if d.ctx == nil || d.ctx.Err() != nil || l.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(d.ctx)
	l.stop = stop
	d.work.Go(func() { l.run(ctx) })
}

// Ensure takes the pace of a Trigger, new or changed. Causes can be offered from then on.
func (d *Dispatcher) Ensure(t *v1.Trigger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[t.Name]
	if l == nil {
		l = &lane{
			name: t.Name, dispatcher: d,
			pace: share.NewBucket(paceOf(0), paceOf(0).Quarter()), room: share.Room{Places: maxWaiting}, causes: map[string]Cause{},
			queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[turn]{Queue: share.NewStore(func(of turn) share.Owner { return of.owner })}),
			delta: Tally{Dropped: map[string]v1.TriggerDrop{}},
		}
		if d.lanes == nil {
			d.lanes = map[string]*lane{}
		}
		d.lanes[t.Name] = l
	}
	pace := paceOf(t.Spec.PerMinute())
	l.mu.Lock()
	l.pace.Set(pace, pace.Quarter(), time.Now())
	l.interval = t.Spec.RepeatInterval()
	l.mu.Unlock()
	d.run(l)
}

// Forget drops the causes of a Trigger that wait.
func (d *Dispatcher) Forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[name]
	if l == nil {
		return
	}
	delete(d.lanes, name)
	if l.stop == nil { // it has not begun
		waiting.Sub(float64(l.queue.Len()))
		return
	}
	l.stop()
}

func (d *Dispatcher) lane(name string) *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lanes[name]
}

// Offer takes a cause that a Trigger matched. The error says that there is no room for it now.
func (d *Dispatcher) Offer(trigger string, c Cause) error {
	if now := time.Now(); c.Time.After(now) {
		c.Time = now // a clock that is wrong must not reserve a slot to come
	}
	if l := d.lane(trigger); l != nil {
		return l.offer(c)
	}
	return nil
}

// Reject counts a signal that a Trigger matched and of which no Diagnosis can be made.
func (d *Dispatcher) Reject(trigger string, kind Kind, r *Rejection) {
	l := d.lane(trigger)
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delta.Matched++
	l.drop(kind, r)
}

// Progress is how far a Trigger is.
type Progress struct {
	// Tally has the counts since Settle was last called.
	Tally Tally
	// Pending counts the nodes that are still to get a Diagnosis of the cause at work.
	Pending int32
	// Completed is the time of the schedule whose nodes all have theirs. Zero: none since the process started.
	Completed time.Time
	// Busy reports whether a cause is at work or waits.
	Busy bool
}

// Progress returns how far a Trigger is.
func (d *Dispatcher) Progress(name string) Progress {
	l := d.lane(name)
	if l == nil {
		return Progress{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	tally := l.delta
	tally.Dropped = maps.Clone(tally.Dropped)
	return Progress{Tally: tally, Pending: l.pending, Completed: l.schedule, Busy: len(l.causes) > 0}
}

// Settle takes off the counts that the status of the Trigger holds now.
func (d *Dispatcher) Settle(name string, t Tally) {
	queue := d.lane(name)
	if queue == nil {
		return
	}
	queue.mu.Lock()
	defer queue.mu.Unlock()
	queue.delta.Matched -= t.Matched
	queue.delta.Fired -= t.Fired
	queue.delta.Repeated -= t.Repeated
	for reason, settled := range t.Dropped {
		left := queue.delta.Dropped[reason]
		if left.Count -= settled.Count; left.Count == 0 {
			delete(queue.delta.Dropped, reason)
			continue
		}
		queue.delta.Dropped[reason] = left
	}
}
