// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of a lane.
const (
	// maxWaiting is how many causes of a Trigger may wait.
	maxWaiting = 1000
	burst      = 10
	// attempts and firstDelay bound how often the API server is asked for one cause. The delay doubles each time.
	attempts   = 5
	firstDelay = time.Second
)

// errFull says that a queue has no room: the sender may try again later.
var errFull = errors.New("queue of the trigger is full")

// lane is the queue of one Trigger. Each has a goroutine, so that no Trigger waits for another. In a lane, namespaces take turns, and
// then pods. They share its room, too.
type lane struct {
	name    string
	maker   *diagnosisMaker
	limiter *rate.Limiter
	stop    context.CancelFunc // nil until the lane runs
	wake    chan struct{}

	mu       sync.Mutex
	queue    share.Turns[Cause]
	room     share.Room
	interval time.Duration
	queued   map[string]bool // keys of the causes in the queue and of the one at work
	pending  int32           // nodes that are still to get a Diagnosis of the cause at work
	schedule time.Time       // the time of the schedule that was completed last
	delta    Tally
}

// Tally is what happened since the status of a Trigger was last written.
type Tally struct {
	Matched, Fired, Repeated int64
	LastFired                time.Time
	LastDiagnosis            string
	Dropped                  map[string]v1.TriggerDrop
}

func newLane(name string, m *diagnosisMaker) *lane {
	return &lane{
		name: name, maker: m, wake: make(chan struct{}, 1), room: share.Room{Places: maxWaiting}, queued: map[string]bool{},
		limiter: rate.NewLimiter(0, burst), delta: Tally{Dropped: map[string]v1.TriggerDrop{}},
	}
}

// set takes the pace of the Trigger.
func (l *lane) set(t *v1.Trigger) {
	l.limiter.SetLimit(rate.Limit(float64(t.Spec.PerMinute()) / 60))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interval = t.Spec.RepeatInterval()
}

// waitingKey is that of causes that would make the same Diagnosis.
func (l *lane) waitingKey(c *Cause) string {
	return string(c.Kind) + " " + time.Unix(c.slot(l.interval), 0).UTC().Format(time.RFC3339) + " " + c.Key
}

func (l *lane) offer(cause Cause) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delta.Matched++
	key := l.waitingKey(&cause)
	if l.queued[key] {
		l.repeated(&cause)
		return nil
	}
	owner := cause.turnOf()
	if !l.room.Take(owner) {
		l.drop(cause.Kind, full(owner, l.queue.Len()))
		return errFull
	}
	l.queue.Push(owner, cause)
	l.queued[key] = true
	waiting.Inc()
	if !cause.Scheduled.IsZero() {
		l.pending = max(l.pending, 1)
	}
	select {
	case l.wake <- struct{}{}:
	default: // it wakes already
	}
	return nil
}

// full says why there is no room for a cause.
func full(owner share.Owner, waiting int) *Rejection {
	if owner.Namespace == "" {
		return Reject(v1.ReasonQueueFull, "%d causes wait for their turn already", waiting)
	}
	return Reject(v1.ReasonQueueFull, "as many causes of namespace %s, or of its pod %s, wait for their turn already as may, of %d in all", owner.Namespace, owner.Pod, waiting)
}

// nextCause takes out the cause whose turn it is.
func (l *lane) nextCause() (Cause, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.queue.Pop(nil)
	if ok {
		l.room.Free(c.turnOf())
	}
	return c, ok
}

// length is how many causes wait.
func (l *lane) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len()
}

// done forgets a cause, so that the next signal of it counts again.
func (l *lane) done(c *Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.queued, l.waitingKey(c))
	waiting.Dec()
	l.pending = 0
	if !c.Scheduled.IsZero() {
		l.schedule = c.Scheduled
	}
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

// fired counts a Diagnosis that was made.
func (l *lane) fired(c *Cause, diagnosis string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delta.Fired++
	l.delta.LastFired, l.delta.LastDiagnosis = time.Now().Truncate(time.Second), diagnosis
	results.WithLabelValues(string(c.Kind), resultFired).Inc()
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

func (l *lane) setPending(nodes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = int32(min(nodes, 1<<30))
}

// run works off the queue until ctx is done.
func (l *lane) run(ctx context.Context) {
	for {
		c, ok := l.nextCause()
		switch {
		case ok && ctx.Err() == nil:
			l.work(ctx, c)
			l.done(&c)
			continue
		case ok: // it is not made any more
			waiting.Dec()
		default:
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
			}
		}
		waiting.Sub(float64(l.length()))
		return
	}
}

// work makes the Diagnoses of a cause. An error of the API server is met again after a while, a few times: a Diagnosis
// that was made before it keeps its name and is not made twice.
func (l *lane) work(ctx context.Context, cause Cause) {
	backoff := wait.Backoff{Duration: firstDelay, Factor: 2, Steps: attempts}
	for attempt := 1; ctx.Err() == nil; attempt++ {
		err := l.maker.make(ctx, l, &cause)
		if err == nil || ctx.Err() != nil {
			return
		}
		rejection, ok := errors.AsType[*Rejection](err)
		if (!ok || rejection.passes) && attempt < attempts {
			select {
			case <-ctx.Done():
			case <-time.After(backoff.Step()):
			}
			continue
		}
		if !ok {
			rejection = Reject(v1.ReasonAPIError, "%v", err)
		}
		l.count(&cause, rejection)
		return
	}
}
