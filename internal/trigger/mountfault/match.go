// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/trigger"
)

// A fault that stays is compared again after a quarter of the repeat interval, within these bounds.
const (
	minRepeat = time.Second
	maxRepeat = 5 * time.Minute
)

// signal is a MountFault as it is now. A rule that must see it again writes so into it.
type signal struct {
	fault  *v1.MountFault
	labels *labels
	now    time.Time

	again time.Duration // 0: when it changes
	err   error         // labels could not be read
}

// later has the signal compared again after a while.
func (s *signal) later(after time.Duration) {
	if s.again == 0 || after < s.again {
		s.again = after
	}
}

// compile makes a rule of the template of a Trigger. Nil: it has none of this source.
func compile(t *v1.Trigger) (trigger.Match[*signal], error) {
	template := t.Spec.SourceTemplate.MountFaultTemplate
	if template == nil {
		return nil, nil
	}
	for _, code := range template.Codes {
		if !known(code) && code != v1.UnlistedFaults {
			return nil, fmt.Errorf("spec.sourceTemplate.mountFaultTemplate.codes: there is no fault %q", code)
		}
	}
	var of selectors
	for _, s := range []struct {
		from *metav1.LabelSelector
		to   *klabels.Selector
	}{{template.NamespaceSelector, &of.namespace}, {template.PodSelector, &of.pod}, {template.NodeSelector, &of.node}} {
		if s.from == nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(s.from)
		if err != nil {
			return nil, fmt.Errorf("compiling selector: %w", err)
		}
		*s.to = selector
	}
	lasting, interval := template.Lasting(), t.Spec.RepeatInterval()
	return func(s *signal) (trigger.Cause, bool, error) {
		if code := s.fault.Status.Code; !slices.Contains(template.Codes, code) && (len(template.Codes) > 0 || !known(code)) {
			return trigger.Cause{}, false, nil
		}
		// A fault began by the clock of its node, and never later than its object, by that of the API server: a node whose clock is ahead
		// delays nothing.
		at := s.fault.CreationTimestamp.Time
		if since := s.fault.Status.Since.Time; since.Before(at) {
			at = since
		}
		if left := lasting - s.now.Sub(at); left > 0 {
			s.later(left)
			return trigger.Cause{}, false, nil
		}
		if !of.match(s) {
			return trigger.Cause{}, false, nil
		}
		s.later(min(max(interval/4, minRepeat), maxRepeat))
		// The beginning of the interval in which now falls, counted from the beginning of the fault: so two managers give one fault the
		// same time.
		if s.now.Before(at) {
			at = s.now
		} else {
			at = at.Add(s.now.Sub(at).Truncate(interval))
		}
		return causeOf(s.fault, at), true, nil
	}, nil
}

// known reports whether the catalogue has a code.
func known(code string) bool {
	_, ok := fault.Known().Lookup(fault.Code(code))
	return ok
}

// selectors are those of a template. Nil: there is none.
type selectors struct{ namespace, pod, node klabels.Selector }

// match compares the labels of the namespace, the pod and the node of a fault. A fault without a pod has neither of the first
// two, and an object that is gone has no labels.
func (of selectors) match(s *signal) bool {
	pod := cmp.Or(s.fault.Status.Pod, &v1.FaultPod{})
	if pod.Name == "" && (of.namespace != nil || of.pod != nil) {
		return false
	}
	for _, c := range []struct {
		selector klabels.Selector
		kind     string
		key      types.NamespacedName
		uid      types.UID
	}{
		{of.namespace, "Namespace", types.NamespacedName{Name: pod.Namespace}, ""},
		{of.pod, "Pod", types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.UID},
		{of.node, "Node", types.NamespacedName{Name: s.fault.Status.Node}, ""},
	} {
		if c.selector == nil {
			continue
		}
		id := c.kind + " " + c.key.String()
		o, read := s.labels.read[id]
		if !read {
			o = kubeclient.Metadata(c.kind)
			err := s.labels.reader.Get(s.labels.ctx, c.key, o)
			switch {
			case apierrors.IsNotFound(err):
				o = nil
			case err != nil:
				s.err = fmt.Errorf("reading labels of %s: %w", id, err)
				return false
			}
			s.labels.read[id] = o
		}
		if o == nil || c.uid != "" && o.UID != c.uid || !c.selector.Matches(klabels.Set(o.Labels)) { // another object of the same name has another UID
			return false
		}
	}
	return true
}

// causeOf is the object: its name is that of the node, the fault, the pod, the container and the volume. The Diagnosis is for the
// whole pod, because faults of one pod come together and one of its Diagnoses runs at a time.
func causeOf(f *v1.MountFault, at time.Time) trigger.Cause {
	s := &f.Status
	c := trigger.Cause{
		Kind: trigger.KindMountFault, Time: at, Node: s.Node, Key: f.Namespace + "/" + f.Name,
		Annotations: map[string]string{v1.AnnotationMountFault: trigger.Excerpt(map[string]string{
			"namespace": f.Namespace, "name": f.Name, "code": s.Code, "impact": string(s.Impact), "node": s.Node, "target": s.Target,
			"container": s.Container, "volume": s.Volume, "since": s.Since.UTC().Format(time.RFC3339),
		})},
	}
	if s.Pod != nil {
		c.Pod, c.PodUID = &v1.PodReference{Namespace: s.Pod.Namespace, Name: s.Pod.Name}, s.Pod.UID
	}
	return c
}

// labels reads labels from the API server itself, each object once, and of each the metadata only. It is for one comparison: no
// cache of pods, namespaces or nodes is kept.
type labels struct {
	ctx    context.Context //nolint:containedctx // that of the comparison
	reader client.Reader
	read   map[string]*metav1.PartialObjectMetadata // nil: there is no such object
}
