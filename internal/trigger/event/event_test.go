// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/trigger"
)

// offers keeps the offered causes.
type offers struct {
	mu     sync.Mutex
	causes []trigger.Cause
}

func (o *offers) Offer(_ string, c trigger.Cause) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.causes = append(o.causes, c)
	return nil
}

func (o *offers) Reject(string, trigger.Kind, *trigger.Rejection) {}

func (o *offers) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.causes)
}

func eventTrigger(name string, r v1.KubernetesEventRegexp) *v1.Trigger {
	t := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
	t.Spec.SourceTemplate.KubernetesEventTemplate = &v1.KubernetesEventTemplate{Regexp: r}
	return t
}

// failedMount is an Event of a kubelet.
func failedMount(change func(*corev1.Event)) *corev1.Event {
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "team", Name: "web.1"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "team", Name: "web", UID: "u"},
		Reason:         "FailedMount", Message: "MountVolume.SetUp failed for volume \"a\"",
		Source:        corev1.EventSource{Component: "kubelet", Host: "n1"},
		LastTimestamp: metav1.Now(), Count: 1,
	}
	if change != nil {
		change(e)
	}
	return e
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		regexp v1.KubernetesEventRegexp
		change func(*corev1.Event)
		want   bool
	}{
		"everything":        {v1.KubernetesEventRegexp{}, nil, true},
		"reason":            {v1.KubernetesEventRegexp{Reason: "Mount"}, nil, true},
		"anchored":          {v1.KubernetesEventRegexp{Reason: "^Mount"}, nil, false},
		"all fields":        {v1.KubernetesEventRegexp{Name: "web", Namespace: "^team$", Reason: "F", Message: `"a"`, Source: v1.KubernetesEventSourceRegexp{Component: "kubelet", Host: "n1"}}, nil, true},
		"one of all fields": {v1.KubernetesEventRegexp{Name: "web", Namespace: "^tea$"}, nil, false},
		"message":           {v1.KubernetesEventRegexp{Message: "(?i)setup FAILED"}, nil, true},
		"events.k8s.io": {v1.KubernetesEventRegexp{Source: v1.KubernetesEventSourceRegexp{Component: "^csi$", Host: "^n2$"}}, func(e *corev1.Event) {
			e.Source = corev1.EventSource{}
			e.ReportingController, e.ReportingInstance = "csi", "n2"
		}, true},
		"component of both":  {v1.KubernetesEventRegexp{Source: v1.KubernetesEventSourceRegexp{Component: "csi"}}, func(e *corev1.Event) { e.ReportingController = "csi" }, false},
		"of kubediag itself": {v1.KubernetesEventRegexp{}, func(e *corev1.Event) { e.InvolvedObject.APIVersion = "diagnosis.kubediag.org/v1" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got offers
			s := New(nil, &got, clock.RealClock{})
			must(t, s.Install(eventTrigger("t", tc.regexp)))
			s.see(failedMount(tc.change), false)
			if (got.count() == 1) != tc.want {
				t.Errorf("%d causes", got.count())
			}
		})
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*corev1.Event)
		pod    *v1.PodReference
		node   string
	}{
		"pod":                   {nil, &v1.PodReference{Namespace: "team", Name: "web"}, ""},
		"pod without namespace": {func(e *corev1.Event) { e.InvolvedObject.Namespace = "" }, &v1.PodReference{Namespace: "team", Name: "web"}, ""},
		"node":                  {func(e *corev1.Event) { e.InvolvedObject = corev1.ObjectReference{Kind: "Node", Name: "n9"} }, nil, "n9"},
		"Pod of another group":  {func(e *corev1.Event) { e.InvolvedObject.APIVersion = "metrics.k8s.io/v1" }, nil, "n1"},
		"claim":                 {func(e *corev1.Event) { e.InvolvedObject.Kind = "PersistentVolumeClaim" }, nil, "n1"},
		"claim, no host": {func(e *corev1.Event) {
			e.InvolvedObject.Kind, e.Source.Host, e.ReportingInstance = "PersistentVolumeClaim", "", "csi_2 of x"
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := causeOf(failedMount(tc.change), time.Now())
			if diff := cmp.Diff(tc.pod, c.Pod); diff != "" || c.Node != tc.node {
				t.Errorf("node %q, pod (-want +got):\n%s", c.Node, diff)
			}
			if text := c.Annotations[v1.AnnotationKubernetesEvent]; !strings.Contains(text, `"reason":"FailedMount"`) {
				t.Errorf("annotation = %s", text)
			}
		})
	}
}

// A series is one cause, however often and with whatever words it comes.
func TestSeriesIsOneCause(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for _, change := range []func(*corev1.Event){
		nil,
		func(e *corev1.Event) { e.Count = 99 },
		func(e *corev1.Event) { e.Name, e.Message = "web.2", "timed out" },
		func(e *corev1.Event) {
			e.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NowMicro()}
			e.LastTimestamp, e.EventTime = metav1.Time{}, metav1.NowMicro()
		},
	} {
		keys[causeOf(failedMount(change), time.Now()).Key] = true
	}
	if len(keys) != 1 {
		t.Errorf("%d causes", len(keys))
	}
	for _, change := range []func(*corev1.Event){
		func(e *corev1.Event) { e.Reason = "FailedAttachVolume" },
		func(e *corev1.Event) { e.InvolvedObject.UID = "another pod of the name" },
		func(e *corev1.Event) { e.InvolvedObject.Name = "other" },
	} {
		if key := causeOf(failedMount(change), time.Now()).Key; keys[key] {
			t.Errorf("another cause has the same key %q", key)
		}
	}
}

// Defect 19: of the Events that are stored when the watch begins, those fire that are new, and came after the Trigger.
func TestStoredEvents(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) func(*corev1.Event) {
		return func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(now.Add(-d)) }
	}
	for name, tc := range map[string]struct {
		stored   bool
		change   func(*corev1.Event)
		interval int32
		want     bool
		at       time.Duration // how long ago the cause is
	}{
		"new":                       {true, ago(time.Minute), 21600, true, time.Minute},
		"before the Trigger":        {true, ago(2 * time.Hour), 21600, false, 0},
		"old":                       {true, ago(11 * time.Minute), 21600, false, 0},
		"older than the interval":   {true, ago(2 * time.Minute), 60, false, 0},
		"comes late":                {false, ago(2 * time.Hour), 21600, true, 0},
		"of a clock that is ahead":  {false, ago(-2 * time.Hour), 21600, true, 0},
		"of a clock a little ahead": {false, ago(-time.Minute), 21600, true, -time.Minute},
		"without any time":          {true, func(e *corev1.Event) { e.LastTimestamp = metav1.Time{} }, 21600, false, 0},
		"with its creation alone": {true, func(e *corev1.Event) {
			e.LastTimestamp, e.CreationTimestamp = metav1.Time{}, metav1.NewTime(now.Add(-time.Minute))
		}, 21600, true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := eventTrigger("t", v1.KubernetesEventRegexp{})
			tr.CreationTimestamp, tr.Spec.RepeatIntervalSeconds = metav1.NewTime(now.Add(-time.Hour)), &tc.interval
			match, err := compile(tr)
			must(t, err)
			c, ok, err := match(signal{event: failedMount(tc.change), stored: tc.stored, now: now})
			if ok != tc.want || err != nil || ok && !c.Time.Equal(now.Add(-tc.at)) {
				t.Errorf("matched %t at %s, %v", ok, c.Time, err)
			}
		})
	}
}

// server acts as the API server.
type server struct {
	mu      sync.Mutex
	pages   []*corev1.EventList
	lists   int
	watches []string
	answer  func(n int) (watch.Interface, error)
}

func (s *server) List(_ context.Context, o metav1.ListOptions) (*corev1.EventList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if o.Limit != eventsAtOnce {
		return nil, fmt.Errorf("limit %d", o.Limit)
	}
	page := 0
	_, _ = fmt.Sscan(o.Continue, &page)
	return s.pages[page], nil
}

func (s *server) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, o.ResourceVersion)
	return s.answer(len(s.watches))
}

// asked is how often Events were listed, and from which versions they were watched.
func (s *server) asked() (lists int, watches []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, slices.Clone(s.watches)
}

// newServer has two pages of Events. It fails first, then sends changes, then says that the version is too old, and at last ends
// each watch at once.
func newServer(changes watch.Interface) *server {
	s := &server{pages: []*corev1.EventList{
		{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "1"}, Items: []corev1.Event{*failedMount(nil)}},
		{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Event{*failedMount(func(e *corev1.Event) { e.Reason = "Other" })}},
	}}
	s.answer = func(n int) (watch.Interface, error) {
		switch n {
		case 1:
			return nil, errors.New("down")
		case 2:
			return changes, nil
		case 3: // after the first ended
			gone := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
			gone.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
			return gone, nil
		}
		ended := watch.NewFake()
		ended.Stop()
		return ended, nil
	}
	return s
}

// The source lists all pages once, goes on from the last version it saw, lists again when that is too old, backs off from a
// server that fails, and asks for nothing while no Trigger needs it.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		changes := watch.NewFake()
		s := newServer(changes)
		var got offers
		source := New(s, &got, clock.RealClock{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- source.Start(ctx) }()
		time.Sleep(time.Hour)
		if lists, _ := s.asked(); lists != 0 {
			t.Errorf("%d lists without a Trigger", lists)
		}
		must(t, source.Install(eventTrigger("t", v1.KubernetesEventRegexp{})))
		time.Sleep(5 * time.Second)
		lists, watches := s.asked()
		if len(watches) != 2 || lists != 4 {
			t.Fatalf("%d lists, watches from %q", lists, watches)
		}
		before := got.count()
		changes.Add(failedMount(func(e *corev1.Event) { e.ResourceVersion = "8" }))
		changes.Modify(failedMount(func(e *corev1.Event) { e.ResourceVersion = "9" }))
		changes.Action(watch.Bookmark, &corev1.Event{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "12"}})
		changes.Delete(failedMount(func(e *corev1.Event) { e.ResourceVersion = "13" }))
		synctest.Wait()
		if got.count() != before+2 {
			t.Errorf("%d causes, %d before", got.count(), before)
		}
		changes.Stop()
		time.Sleep(10 * time.Minute)
		if lists, watches = s.asked(); watches[2] != "13" || lists < 6 || lists > 60 {
			t.Errorf("%d lists, watches from %q", lists, watches[:3])
		}
		source.Remove("t")
		time.Sleep(2 * time.Minute)
		lists, _ = s.asked()
		time.Sleep(time.Hour)
		if again, _ := s.asked(); again != lists {
			t.Error("a source without Triggers lists Events")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestInstall(t *testing.T) {
	t.Parallel()
	s := New(nil, &offers{}, clock.RealClock{})
	if err := s.Install(eventTrigger("t", v1.KubernetesEventRegexp{Reason: "a"})); err != nil {
		t.Errorf("%v", err)
	}
	if err := s.Install(eventTrigger("t", v1.KubernetesEventRegexp{Reason: "a("})); err == nil || !s.rules.Empty() {
		t.Errorf("an expression that does not compile: %v", err)
	}
	if err := s.Install(&v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "t"}}); err != nil {
		t.Errorf("another source: %v", err)
	}
	if !s.NeedLeaderElection() {
		t.Error("every manager watches")
	}
}

// BenchmarkStorm compares Events with ten Triggers, of which none matches.
func BenchmarkStorm(b *testing.B) {
	s := New(nil, &offers{}, clock.RealClock{})
	for i := range 10 {
		must(b, s.Install(eventTrigger(fmt.Sprint(i), v1.KubernetesEventRegexp{Reason: "^Failed", Message: "never(this|that)"})))
	}
	e := failedMount(nil)
	for b.Loop() {
		s.see(e, false)
	}
}

var must = kerneltest.Must
