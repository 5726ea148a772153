// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of a lane.
const (
	// maxWaiting is how many causes of a Trigger may wait.
	maxWaiting = 1000
	// burst is how many Diagnoses are made without a pause for one namespace, which leaves one more for others.
	burst = 10
	// attempts and firstDelay bound how often the API server is asked for one cause. The delay doubles each time.
	attempts   = 5
	firstDelay = time.Second
)

// errFull says that a queue has no room: the sender may try again later.
var errFull = errors.New("queue of the trigger is full")

// lane is the queue of one Trigger. Each has a goroutine, so that no Trigger waits for another. In a lane, namespaces take turns, and
// then pods. They share its room and its pace, too.
type lane struct {
	name       string
	dispatcher *Dispatcher
	stop       context.CancelFunc // nil until the lane runs
	queue      workqueue.TypedInterface[turn]

	mu       sync.Mutex
	pace     *share.Bucket // of Diagnoses
	room     share.Room
	interval time.Duration
	causes   map[string]Cause // those in the queue and the one at work, by key
	pending  int32            // nodes that are still to get a Diagnosis of the cause at work
	schedule time.Time        // the time of the schedule that was completed last
	delta    Tally
}

// turn is the place of a cause in the queue.
type turn struct {
	key   string
	owner share.Owner
}

// Tally has the counts since the status of a Trigger was last written.
type Tally struct {
	Matched, Fired, Repeated int64
	LastFired                time.Time
	LastDiagnosis            string
	Dropped                  map[string]v1.TriggerDrop
}

func paceOf(perMinute int) share.Pace {
	return share.Pace{AtOnce: burst + 1, PerHour: float64(60 * perMinute)}
}

func (l *lane) offer(cause Cause) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delta.Matched++
	// Causes that would make the same Diagnosis have one key.
	key := string(cause.Kind) + " " + time.Unix(cause.slot(l.interval), 0).UTC().Format(time.RFC3339) + " " + cause.Key
	if _, waits := l.causes[key]; waits {
		l.repeated(&cause)
		return nil
	}
	owner := cause.owner()
	if !l.room.Take(owner) {
		why := Reject(v1.ReasonQueueFull, "%d causes wait for their turn already", l.room.Taken())
		if owner.Namespace != "" {
			why = Reject(v1.ReasonQueueFull, "as many causes of namespace %s, or of its pod %s, wait for their turn already as may, of %d in all",
				owner.Namespace, owner.Pod, l.room.Taken())
		}
		l.drop(cause.Kind, why)
		return errFull
	}
	l.causes[key] = cause
	waiting.Inc()
	if !cause.Scheduled.IsZero() {
		l.pending = max(l.pending, 1)
	}
	l.queue.Add(turn{key, owner})
	return nil
}

// repeated and drop count. The caller holds the lock.
func (l *lane) repeated(c *Cause) {
	l.delta.Repeated++
	results.WithLabelValues(string(c.Kind), resultRepeated).Inc()
}

func (l *lane) drop(kind Kind, r *Rejection) {
	d := l.delta.Dropped[r.Reason]
	l.delta.Dropped[r.Reason] = v1.TriggerDrop{
		Reason: r.Reason, Count: d.Count + 1, LastTime: metav1.NewTime(time.Now().Truncate(time.Second)), Message: r.Message,
	}
	results.WithLabelValues(string(kind), r.Reason).Inc()
}

// count counts an end of one node of a cause that made no Diagnosis.
func (l *lane) count(c *Cause, r *Rejection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r == nil {
		l.repeated(c)
	} else {
		l.drop(c.Kind, r)
	}
}

// run works off the queue until ctx is done, and drops then all that wait.
func (l *lane) run(ctx context.Context) {
	defer context.AfterFunc(ctx, l.queue.ShutDown)()
	for {
		next, ended := l.queue.Get()
		if ended {
			l.mu.Lock()
			defer l.mu.Unlock()
			waiting.Sub(float64(len(l.causes))) // those that were put back
			return
		}
		l.mu.Lock()
		cause := l.causes[next.key]
		l.room.Free(next.owner)
		l.mu.Unlock()
		if ctx.Err() == nil {
			if wait := l.work(ctx, cause); wait > 0 {
				l.queue.Done(next) // others may have their turn while it waits for its part of the pace
				l.mu.Lock()
				l.room.Add(next.owner) // its place
				time.AfterFunc(wait, func() { l.queue.Add(next) })
				l.mu.Unlock()
				continue
			}
		}
		l.queue.Done(next)
		waiting.Dec()
		l.mu.Lock()
		delete(l.causes, next.key) // the next signal of it counts again
		l.pending = 0
		if !cause.Scheduled.IsZero() && ctx.Err() == nil {
			l.schedule = cause.Scheduled
		}
		l.mu.Unlock()
	}
}

// mayMake takes one Diagnosis of the pace. Without a namespace it waits for that, and an owner with one may have to come back after wait.
func (l *lane) mayMake(ctx context.Context, owner share.Owner) (wait time.Duration, err error) {
	for {
		l.mu.Lock()
		now := time.Now()
		answer := l.pace.May(owner, now)
		wait = max(answer.Until.Sub(now), time.Millisecond)
		if answer.OK {
			l.pace.Take(owner, now)
		} else {
			l.pace.Wait(owner, now, wait+time.Second)
		}
		l.mu.Unlock()
		switch {
		case answer.OK:
			return 0, nil
		case owner.Namespace != "":
			return wait, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for the turn: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

// laterError says that a cause has to wait for its part of the pace.
type laterError struct{ wait time.Duration }

func (e laterError) Error() string { return fmt.Sprint("the turn comes in ", e.wait) }

// work makes the Diagnoses of a cause, or returns how long it has to wait for its part of the pace. An error of the API server is met
// again after a while, a few times: a Diagnosis that was made before it keeps its name and is not made twice.
func (l *lane) work(ctx context.Context, cause Cause) (later time.Duration) {
	var last error
	_ = wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: firstDelay, Factor: 2, Steps: attempts}, func(ctx context.Context) (bool, error) {
		last = l.dispatcher.make(ctx, l, &cause)
		if e, ok := errors.AsType[laterError](last); ok {
			later, last = e.wait, nil
		}
		rejection, ok := errors.AsType[*Rejection](last)
		return last == nil || ok && !rejection.passes, nil
	})
	if last == nil || ctx.Err() != nil {
		return later
	}
	rejection, ok := errors.AsType[*Rejection](last)
	if !ok {
		rejection = Reject(v1.ReasonAPIError, "%v", last)
	}
	l.count(&cause, rejection)
	return 0
}
