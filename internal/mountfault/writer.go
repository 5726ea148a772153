// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountfault shows the faults that are present on a node in the API: as MountFaults, and as Events on the broken objects.
//
// It reads no state of the node. The sentinel knows the faults, and a Writer brings the objects in line with them. It writes an
// object at most once in ten seconds, and only if it changes; without faults, it neither writes nor waits.
// The Writer lists the objects of its node once after its start, so it finds the objects of a predecessor. It
// changes no object of another node.
package mountfault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/sentinel"
)

const (
	// Interval is the least time between two writes of one object.
	Interval = 10 * time.Second
	// maxListed bounds the faults of a node that have an object of their own. Namespaces share them, and then pods.
	maxListed = 200
	// maxAdopted bounds the objects that a list adds to those known, maxPerPage the objects in one answer.
	maxAdopted, maxPerPage = 2 * maxListed, client.Limit(8)
	// repeatInterval is the time between two Events about a lasting fault, and between two lists of the objects of the API server.
	repeatInterval = 30 * time.Minute
	// refusedDelay is the wait after the API server has refused one object, retryDelay after a request failed otherwise.
	refusedDelay, retryDelay = 5 * time.Minute, 30 * time.Second
	// writesAtOnce is how many objects are written side by side, each of another namespace.
	writesAtOnce = 8
	// requestTimeout bounds one request.
	requestTimeout = 10 * time.Second
)

// Recorder sends Events: a record.EventRecorder.
type Recorder interface {
	Event(about runtime.Object, kind, reason, message string)
}

// Options configure a Writer.
type Options struct {
	// Node is the name of the node. Namespace has the faults that concern no pod.
	Node, Namespace string
	// Client writes MountFaults. Reader reads from the API server itself.
	Client client.Writer
	Reader client.Reader
	// Diagnoses has the Diagnoses of this node.
	Diagnoses client.Reader
	Pods      kubelet.PodCache
	Events    Recorder
	Log       logr.Logger
	// Recovery returns the decision of RecoveryPolicies about faults of one code and one pod, which is nil for a fault of no pod. It may
	// be nil.
	Recovery func(faults []fault.Finding, pod *corev1.Pod) *v1.FaultRecovery
	// Faults returns the faults that are present, and the codes whose faults are not known yet. nil: no faults are watched, and
	// the objects from earlier are deleted.
	Faults func() (present []*sentinel.Fault, unknown []fault.Code)
	// Interval is the least time between two writes of one object.
	Interval time.Duration
}

// Writer keeps the MountFaults of one node.
type Writer struct {
	Options
	changed chan struct{}
	entries entrySet
	objects objectBuilder
	// listed is when the objects were last read, and noted when an error was last logged. No request is made until pause.
	listed, noted, pause time.Time
}

// New returns a Writer. Start runs it.
func New(o Options) *Writer {
	w := &Writer{Options: o, changed: make(chan struct{}, 1), entries: entrySet{}}
	w.objects = objectBuilder{Options: &w.Options, entries: w.entries}
	return w
}

// Changed notes that the faults may have changed. It returns at once.
func (w *Writer) Changed() {
	select {
	case w.changed <- struct{}{}:
	default: // it is noted already
	}
}

// Start keeps the objects until ctx is done. Requests that fail are logged and made again.
func (w *Writer) Start(ctx context.Context) error {
	for {
		wait := time.Until(w.pause)
		if wait <= 0 {
			switch err := w.update(ctx); {
			case err != nil:
				w.noteError(ctx, err)
				wait = retryDelay
				w.pause = time.Now().Add(wait)
			case len(w.entries) == 0:
				wait = 0
			default:
				wait = w.Interval // or until the next write is due
				for _, e := range w.entries {
					if left := time.Until(e.notBefore); left > 0 && e.pending() {
						wait = min(wait, left)
					}
				}
			}
		}
		var due <-chan time.Time // none: the next change of the faults
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-due:
		}
	}
}

// update makes all writes that are due. It ends with an error that the next write would meet too. If the faults change after a round of
// writes, it begins again and leaves the rest: so a fault of a namespace that has few waits for one round, however many faults others have and
// however slow the API server is.
func (w *Writer) update(ctx context.Context) error {
	if age := time.Since(w.listed); w.listed.IsZero() || len(w.entries) > 0 && age >= repeatInterval {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	for changed := true; changed; {
		w.want(ctx)
		changed = false
		for rounds := w.entries.rounds(); len(rounds) > 0 && !changed; rounds = rounds[1:] {
			wrote, err := w.bringRound(ctx, rounds[0])
			if err != nil {
				return err
			}
			if !wrote {
				continue
			}
			select {
			case <-w.changed:
				changed = true
			default:
			}
		}
	}
	return nil
}

// bringRound announces the entries of a round and writes their objects, if that is due. The writes are of different namespaces and are made side
// by side: none of these waits for those of all others. An error is one that the next write would meet too.
func (w *Writer) bringRound(ctx context.Context, names []types.NamespacedName) (wrote bool, err error) {
	var due []*entry
	for _, name := range names {
		item, now := w.entries[name], time.Now()
		if w.Faults != nil {
			w.announce(ctx, item)
		}
		switch waited := !now.Before(item.notBefore); {
		case !item.pending():
			if item.written == nil && waited { // it is of no more use
				delete(w.entries, name)
			}
		case waited:
			item.notBefore = now.Add(w.Interval)
			due = append(due, item)
		}
	}
	for part := range slices.Chunk(due, writesAtOnce) {
		errs := make([]error, len(part))
		var done sync.WaitGroup
		for i, item := range part {
			done.Go(func() { errs[i] = w.write(ctx, item) })
		}
		done.Wait()
		for i, item := range part {
			err := errs[i]
			w.objects.olderAPI, item.olderAPI = w.objects.olderAPI || item.olderAPI, false
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
				apierrors.IsConflict(err) { // the API server refuses this object, and may accept others
				item.notBefore = time.Now().Add(refusedDelay)
				w.noteError(ctx, err)
				errs[i] = nil
			}
		}
		if err := errors.Join(errs...); err != nil {
			return true, err
		}
	}
	return len(due) > 0, nil
}

// list reads the objects of this node. The label selects them, and proves nothing: an agent that was taken over writes it on objects of
// other nodes, with a megabyte of labels on each. So few are read at once, and more than this node ever has are deleted.
func (w *Writer) list(ctx context.Context) error {
	pageCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := time.AfterFunc(requestTimeout, cancel)
	defer timeout.Stop()
	there := map[types.NamespacedName]bool{}
	err := kubeclient.EachPage(pageCtx, w.Reader, &v1.MountFaultList{}, func(page *v1.MountFaultList) {
		for i := range page.Items {
			f := &page.Items[i]
			name := client.ObjectKeyFromObject(f)
			switch {
			case f.Status.Node != w.Node:
			case w.entries[name] == nil && len(there) >= maxAdopted:
				timeout.Reset(requestTimeout)
				if err := kubeclient.DeleteSame(pageCtx, w.Client, f); err != nil {
					w.noteError(ctx, fmt.Errorf("deleting mountfault %s: %w", name, err))
				}
			default:
				there[name] = true
				w.entries.of(name).adopt(f)
			}
		}
		timeout.Reset(requestTimeout)
	}, client.MatchingLabels{v1.LabelNode: v1.NodeLabelValue(w.Node)}, maxPerPage)
	if err != nil {
		return fmt.Errorf("listing mountfaults of node %q: %w", w.Node, err)
	}
	w.listed, w.objects.olderAPI = time.Now(), false
	for name, e := range w.entries {
		if !there[name] {
			e.written = nil
		}
	}
	return nil
}

// want notes the wanted objects in the entries.
func (w *Writer) want(ctx context.Context) {
	var present []*sentinel.Fault
	var unknown []fault.Code
	if w.Faults != nil {
		present, unknown = w.Faults()
	}
	found, unlisted := w.objects.candidates(present), w.objects.unlistedName()
	var unsure []*entry
	for name, e := range w.entries {
		unclear := false // it is not known yet if the fault is still there
		if found[name] == nil && e.last != nil {
			code := e.last.Status.Code
			unclear = slices.Contains(unknown, fault.Code(code)) || code == v1.UnlistedFaults && len(unknown) > 0
		}
		waits := unclear && e.written != nil
		e.want, e.gone = nil, found[name] == nil && !unclear
		e.kept = waits && name == unlisted
		switch {
		case name == unlisted:
		case waits:
			unsure = append(unsure, e)
		case found[name] == nil:
			e.since = metav1.Time{}
		}
	}
	underway := w.underway(ctx, len(found))
	for _, f := range w.objects.choose(found, unsure, maxListed, underway) {
		e := w.entries.of(client.ObjectKeyFromObject(f))
		e.want, e.last, e.since, e.kept, e.gone = f, f, f.Status.Since, false, false
	}
}

// Impacts counts the faults that are present by code and impact. It may be called while the Writer runs.
func (w *Writer) Impacts() map[fault.Code]map[fault.Impact]int {
	present, _ := w.Faults()
	found := map[fault.Code]map[fault.Impact]int{}
	for _, f := range present {
		if found[f.Code] == nil {
			found[f.Code] = map[fault.Impact]int{}
		}
		found[f.Code][advise(f, false).Impact]++ // the impact does not depend on the mode
	}
	return found
}

// underway has the Diagnoses that have not ended: by pod, and under the empty name for the node.
type underway map[types.NamespacedName]string

func (w *Writer) underway(ctx context.Context, faults int) underway {
	if faults == 0 {
		return nil
	}
	var list v1.DiagnosisList
	if err := w.Diagnoses.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.noteError(ctx, fmt.Errorf("listing diagnoses: %w", err))
		return nil
	}
	found := underway{}
	for i := range list.Items {
		d := &list.Items[i]
		if d.Spec.NodeName != w.Node || d.Spec.Mode == v1.ModeRecord || d.Ended() {
			continue
		}
		pod := types.NamespacedName{}
		if r := d.Spec.PodReference; r != nil {
			pod = types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		}
		if name := d.Namespace + "/" + d.Name; found[pod] == "" || name < found[pod] {
			found[pod] = name
		}
	}
	return found
}
