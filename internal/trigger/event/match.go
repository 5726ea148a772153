// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package event

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

// maxAge is how old an Event may be that was stored before the watch began. An older one is about a problem that is
// over, or comes again.
const maxAge = 10 * time.Minute

// signal is an Event, and whether it was stored before the watch began.
type signal struct {
	event  *corev1.Event
	stored bool
	now    time.Time
}

// expression is a field of an Event and the expression that it must match.
type expression struct {
	of func(e *corev1.Event) string
	re *regexp.Regexp
}

// compile makes a rule of the template of a Trigger. Nil: it has none of this source.
func compile(t *v1.Trigger) (trigger.Match[signal], error) {
	template := t.Spec.SourceTemplate.KubernetesEventTemplate
	if template == nil {
		return nil, nil
	}
	r := template.Regexp
	var all []expression
	for _, x := range []struct {
		pattern string
		of      func(e *corev1.Event) string
	}{
		{r.Reason, func(e *corev1.Event) string { return e.Reason }},
		{r.Namespace, func(e *corev1.Event) string { return e.Namespace }},
		{r.Name, func(e *corev1.Event) string { return e.Name }},
		{r.Source.Component, component},
		{r.Source.Host, host},
		{r.Message, func(e *corev1.Event) string { return e.Message }},
	} {
		if x.pattern == "" {
			continue
		}
		re, err := regexp.Compile(x.pattern)
		if err != nil {
			return nil, fmt.Errorf("compiling expression: %w", err)
		}
		all = append(all, expression{x.of, re})
	}
	since, age := t.CreationTimestamp.Time, min(maxAge, t.Spec.RepeatInterval())
	return func(s signal) (trigger.Cause, bool, error) {
		at := lastSeen(s.event)
		if s.stored && (at.Before(since) || s.now.Sub(at) > age) {
			return trigger.Cause{}, false, nil
		}
		for _, x := range all {
			if !x.re.MatchString(x.of(s.event)) {
				return trigger.Cause{}, false, nil
			}
		}
		if off := s.now.Sub(at).Abs(); off > maxAge {
			at = s.now // the clock of the reporter is wrong
		}
		return causeOf(s.event, at), true, nil
	}, nil
}

// causeOf is the object of the Event and its reason: other Events of both are of one cause.
func causeOf(e *corev1.Event, at time.Time) trigger.Cause {
	o, seen := e.InvolvedObject, max(e.Count, 1)
	if e.Series != nil {
		seen = e.Series.Count
	}
	cause := trigger.Cause{
		Kind: trigger.KindEvent, Time: at,
		Key: strings.Join([]string{o.Kind, o.Namespace, o.Name, string(o.UID), e.Reason}, "\x00"),
		Annotations: map[string]string{v1.AnnotationKubernetesEvent: trigger.Excerpt(map[string]string{
			"namespace": e.Namespace, "name": e.Name, "reason": e.Reason, "message": e.Message, "component": component(e),
			"host": host(e), "object": o.Kind + " " + o.Namespace + "/" + o.Name, "count": strconv.Itoa(int(seen)),
			"lastSeen": lastSeen(e).UTC().Format(time.RFC3339),
		})},
	}
	switch {
	case o.Kind == "Pod" && group(o.APIVersion) == "":
		cause.Pod, cause.PodUID = &v1.PodReference{Namespace: cmp.Or(o.Namespace, e.Namespace), Name: o.Name}, o.UID
	case o.Kind == "Node" && group(o.APIVersion) == "":
		cause.Node = o.Name
	case len(validation.IsDNS1123Subdomain(host(e))) == 0:
		cause.Node = host(e)
	}
	return cause
}

// group is that of an API version. Events of core objects often name none.
func group(apiVersion string) string {
	group, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return group
}

// component and host are where both kinds of Events have them.
func component(e *corev1.Event) string { return cmp.Or(e.Source.Component, e.ReportingController) }

func host(e *corev1.Event) string { return cmp.Or(e.Source.Host, e.ReportingInstance) }

// lastSeen is when the Event happened last. Reporters fill in different fields.
func lastSeen(e *corev1.Event) time.Time {
	if e.Series != nil && !e.Series.LastObservedTime.IsZero() {
		return e.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return e.CreationTimestamp.Time
}
