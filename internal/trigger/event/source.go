// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package event watches Events and offers those that a Trigger matches. Events of core/v1 and of events.k8s.io are the same
// objects, and core/v1 shows both on all API servers from 1.18 on.
//
// It keeps no Event: a cache of all of a cluster's would not fit. It lists them in pages, drops each page once it was
// compared, and watches from there. It watches nothing while no Trigger asks for Events.
package event

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

// eventsAtOnce is how many Events one request lists. Tenants may write 1.5 MB into each.
const eventsAtOnce = 64

// Delays before a watch that failed is begun again.
const (
	firstDelay = time.Second
	maxDelay   = time.Minute
)

// watchBackoff is the back-off of watches that fail.
var watchBackoff = wait.Backoff{Duration: firstDelay, Factor: 2, Cap: maxDelay, Steps: math.MaxInt}

// errIdle ends a watch when no Trigger asks for Events any more.
var errIdle = errors.New("no trigger asks for events")

// errEnded keeps a server that ends each watch from being asked without a pause.
var errEnded = errors.New("watch ended as soon as it had begun")

// Events reads Events of all namespaces.
type Events interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.EventList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Source watches Events.
type Source struct {
	events  Events
	to      trigger.Offerer
	clock   clock.Clock
	rules   trigger.Rules[signal]
	changed chan struct{} // holds a token when the rules have changed
}

// New makes a source that offers the causes that Triggers match. Start begins to watch.
func New(events Events, to trigger.Offerer, clock clock.Clock) *Source {
	return &Source{events: events, to: to, clock: clock, changed: make(chan struct{}, 1)}
}

// Install takes a Trigger, and forgets it if it is of another source.
func (s *Source) Install(t *v1.Trigger) error {
	_, err := s.rules.Install(t, compile)
	s.wake()
	return err
}

// Remove forgets a Trigger.
func (s *Source) Remove(name string) {
	s.rules.Remove(name)
	s.wake()
}

func (s *Source) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// NeedLeaderElection has the leader alone watch.
func (s *Source) NeedLeaderElection() bool { return true }

// Start watches until ctx is done. A watch that fails is begun again, with back-off.
func (s *Source) Start(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithName("events")
	backoff := watchBackoff
	for ctx.Err() == nil {
		if s.rules.Empty() {
			select {
			case <-ctx.Done():
			case <-s.changed:
			}
			continue
		}
		began := s.clock.Now()
		version, err := s.replay(ctx) // the Events that are stored, and then those that come
		for err == nil {
			version, err = s.watch(ctx, version)
		}
		if errors.Is(err, errIdle) || ctx.Err() != nil {
			continue
		}
		if s.clock.Since(began) > maxDelay {
			backoff = watchBackoff
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			log.Error(err, "Could not watch Events")
		}
		select {
		case <-ctx.Done():
		case <-s.clock.After(backoff.Step()):
		}
	}
	return nil
}

// replay compares the stored Events, page by page, and returns the version to watch from. A cause that has a Diagnosis
// makes no second one, because its name would be the same.
func (s *Source) replay(ctx context.Context) (version string, err error) {
	o := metav1.ListOptions{Limit: eventsAtOnce}
	for {
		page, err := s.events.List(ctx, o)
		if err != nil {
			return "", fmt.Errorf("listing events: %w", err)
		}
		if version == "" {
			version = page.ResourceVersion
		}
		for i := range page.Items {
			s.see(&page.Items[i], true)
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return version, nil
		}
	}
}

// watch compares new Events, until the server ends the watch. It returns the version to watch from next.
func (s *Source) watch(ctx context.Context, version string) (string, error) {
	w, err := s.events.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return "", fmt.Errorf("watching events: %w", err)
	}
	defer w.Stop()
	began := s.clock.Now()
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-s.changed:
			if s.rules.Empty() {
				return "", errIdle
			}
		case change, open := <-w.ResultChan():
			switch {
			case !open && s.clock.Since(began) < firstDelay:
				return "", errEnded
			case !open:
				return version, nil
			}
			if change.Type == watch.Error {
				return "", fmt.Errorf("watching events: %w", apierrors.FromObject(change.Object))
			}
			e, ok := change.Object.(*corev1.Event)
			if !ok {
				continue
			}
			version = e.ResourceVersion
			if change.Type == watch.Added || change.Type == watch.Modified {
				s.see(e, false)
			}
		}
	}
}

// see compares one Event. Those about kubediag's own objects are left out, so that no Trigger answers to itself.
func (s *Source) see(e *corev1.Event, stored bool) {
	if group(e.InvolvedObject.APIVersion) == v1.Group {
		return
	}
	trigger.Seen(trigger.KindEvent)
	// A cause for which there is no room is counted, and comes again with the series.
	_, _ = s.rules.Apply(s.to, signal{event: e, stored: stored, now: s.clock.Now()})
}
