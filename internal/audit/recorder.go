// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit writes down the repairs of the sentinel of a node, as Diagnoses with mode Record that have ended.
//
// A record is on the disk before it is sent, and stays there until the API server has all of it. So neither a restart
// nor an API server that is away loses one. A repair is in a journal before it changes anything and until its record is on the disk, so
// the end of the process loses none either: the next process finds out how the repair ended. Many repairs of one fault within a minute
// become a few records, and a record with the number of the rest. It decides about no repair. Add never waits. At rest it does no work.
package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of the records.
const (
	// perWindow bounds the repairs of one fault code in the pods of one namespace that get a record of their own in a window. One
	// record at its end counts the others.
	perWindow = 6
	// window is the time in which repairs are counted together.
	window = time.Minute
	// maxQueued bounds the records that wait to be sent. Namespaces share them. If a namespace has its share, its repairs are only counted.
	maxQueued = 256
	// maxLoaded bounds the records of an earlier process that are loaded: those that waited, and the counts of each namespace.
	maxLoaded = 4 * maxQueued
	// persistInterval is the time between two writes of the counts of a window to the disk.
	persistInterval = time.Second
	// sendTimeout bounds the sending of one record.
	sendTimeout = 10 * time.Second
)

// sendBackoff is the back-off of sending.
var sendBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// Options configure a Recorder.
type Options struct {
	// Node is the name of the node.
	Node string
	// Boot is the name of the boot that the node is in.
	Boot string
	// Namespace is where records are made.
	Namespace string
	// DataRoot is a directory for records that wait to be sent. It must exist.
	DataRoot string
	// Client writes, Reader reads from the API server itself.
	Client client.Client
	Reader client.Reader
	Log    logr.Logger
}

// Recorder writes down repairs.
type Recorder struct {
	Options
	spool   *spool
	journal *begunJournal
	wake    chan struct{}

	mu      sync.Mutex
	ended   []fault.Mount // of repairs that were added, and may not be on the disk
	windows map[windowKey]*counted
	queue   []*queued
	room    share.Room // of the queue
	made    int        // records, for their names
}

// windowKey groups repairs: by code and by namespace of the pods. The namespace is empty for the node itself.
type windowKey struct {
	code      fault.Code
	namespace string
}

// queued is a record that waits to be sent.
type queued struct {
	record *v1.Diagnosis
	owner  share.Owner
	saved  bool // whether it is on the disk
}

// counted are the repairs of one code and namespace in a window.
type counted struct {
	ends   time.Time
	single int // have records of their own
	rest   *fold
	// stored is how many of the rest are on the disk.
	stored int32
}

// fold are repairs that share a record.
type fold struct {
	name        string
	first, last sentinel.Repair
	decision    v1.Decision
	repeats     v1.Repeats
}

// New makes a Recorder, with the records that an earlier process has not sent.
func New(o Options) (*Recorder, error) {
	root, err := os.OpenRoot(o.DataRoot)
	if err != nil {
		return nil, fmt.Errorf("opening data root: %w", err)
	}
	r := &Recorder{Options: o, spool: &spool{root: root}, wake: make(chan struct{}, 1), windows: map[windowKey]*counted{}, room: share.Room{Places: maxQueued}}
	left, err := r.spool.load()
	if err == nil {
		r.journal, err = openJournal(root, o.Boot)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	for _, d := range left {
		owner := share.Owner{Namespace: d.PodNamespace()}
		r.room.Add(owner)
		r.queue = append(r.queue, &queued{record: d, owner: owner, saved: true})
	}
	return r, nil
}

// Close releases the data root. Run must have ended.
func (r *Recorder) Close() error { return errors.Join(r.journal.file.Close(), r.spool.root.Close()) }

// Add takes a repair and returns at once, with the name of the Diagnosis that will have it.
func (r *Recorder) Add(repair sentinel.Repair, decision v1.Decision) (name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, *repair.Action.Mount)
	key, now := windowKey{repair.Fault.Code, repair.Fault.Pod.Namespace}, time.Now()
	w := r.windows[key]
	if w == nil || now.After(w.ends) && r.flush(key, w) {
		w = &counted{ends: now.Add(window)}
		r.windows[key] = w
	}
	if w.single < perWindow && r.room.Take(key.namespaceOwner()) {
		w.single++
		name = r.name(key.code, now)
		r.queue = append(r.queue, &queued{
			record: r.record(name, &fold{first: repair, last: repair, decision: decision}), owner: key.namespaceOwner(),
		})
	} else {
		if w.rest == nil {
			w.rest = &fold{name: r.name(key.code, now), first: repair, repeats: v1.Repeats{FirstTarget: target(repair)}}
			w.stored = 0
		}
		f := w.rest
		name, f.last, f.decision = f.name, repair, decision
		f.repeats.LastTarget = target(repair)
		f.repeats.Count++
		f.repeats.Calls += int32(len(repair.Calls))
		if repair.Err != nil {
			f.repeats.Failed++
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return name
}

// namespaceOwner returns the owner of the records of the window while they wait.
func (k windowKey) namespaceOwner() share.Owner { return share.Owner{Namespace: k.namespace} }

// flush ends a window: the record of its rest is queued. It reports whether there was room.
func (r *Recorder) flush(key windowKey, w *counted) bool {
	if w.rest == nil {
		delete(r.windows, key)
		return true
	}
	if !r.room.Take(key.namespaceOwner()) {
		return false
	}
	r.queue = append(r.queue, &queued{record: r.record(w.rest.name, w.rest), owner: key.namespaceOwner()})
	delete(r.windows, key)
	return true
}

// Run sends records until ctx is done. The rest is on the disk then.
func (r *Recorder) Run(ctx context.Context) error {
	retry, backoff := time.Duration(0), sendBackoff
	for {
		wake := r.wake
		r.persist()
		if err := r.send(ctx); err != nil && ctx.Err() == nil {
			wake, retry = nil, backoff.Step() // only the time wakes until the API server answers
			r.Log.Error(err, "Could not record repairs of the sentinel", "tryAgainIn", retry.String())
		} else {
			retry, backoff = 0, sendBackoff
		}
		wait := r.next(retry)
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			r.mu.Lock()
			for _, w := range r.windows { // each ends now, and the next start sends its record
				w.ends = time.Time{}
			}
			r.mu.Unlock()
			r.persist()
			return nil
		case <-wake:
		case <-timer:
		}
	}
}

// next returns the time until the next work. 0: there is no work before the next repair.
func (r *Recorder) next(retry time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait := retry
	for _, w := range r.windows {
		left := time.Until(w.ends)
		if left <= 0 || w.rest != nil && left > persistInterval { // a window that is over waits for room in the queue
			left = persistInterval
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// persist ends the windows that are over, saves the records that are not on the disk, and then closes their repairs in the journal.
func (r *Recorder) persist() {
	r.mu.Lock()
	var unsaved []*v1.Diagnosis
	ended := r.ended
	r.ended = nil
	now := time.Now()
	for key, w := range r.windows {
		if now.After(w.ends) && r.flush(key, w) {
			continue
		}
		if w.rest != nil && w.stored != w.rest.repeats.Count {
			w.stored = w.rest.repeats.Count
			unsaved = append(unsaved, r.record(w.rest.name, w.rest))
		}
	}
	for _, q := range r.queue {
		if !q.saved {
			q.saved = true
			unsaved = append(unsaved, q.record)
		}
	}
	r.mu.Unlock()
	for _, d := range unsaved {
		if err := r.spool.save(d); err != nil {
			r.Log.Error(err, "Could not put a record on the disk", "diagnosis", d.Name)
		}
	}
	if err := r.journal.end(ended...); err != nil {
		r.Log.Error(err, "Could not close repairs that are recorded")
	}
}
