// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// unfinishedIndex finds the Diagnoses of a Trigger for one target that have not ended.
const unfinishedIndex = "trigger.unfinished"

// unfinished are the values of unfinishedIndex.
func unfinished(o client.Object) []string {
	d, ok := o.(*v1.Diagnosis)
	if !ok || d.Ended() {
		return nil
	}
	owner := d.OwningTrigger()
	if owner == nil {
		return nil
	}
	return []string{target{node: d.Spec.NodeName, pod: d.Spec.PodReference}.key(owner.UID)}
}

// make makes the Diagnoses of a cause that are not there yet. A *Rejection is final unless it passes; any
// other error is worth another attempt.
func (d *Dispatcher) make(ctx context.Context, queue *lane, cause *Cause) error {
	t, err := d.trigger(ctx, queue.name)
	if t == nil || err != nil {
		return err
	}
	if err := d.declared(ctx, t, cause); err != nil {
		return err
	}
	targets, err := d.findTargets(ctx, t, cause)
	if err != nil {
		return err
	}
	for i, target := range targets {
		queue.mu.Lock()
		queue.pending = int32(min(len(targets)-i, 1<<30))
		queue.mu.Unlock()
		// It may have been suspended, changed or deleted while its nodes waited.
		if now, err := d.trigger(ctx, queue.name); err != nil || now == nil || now.UID != t.UID {
			return err
		}
		err := d.diagnose(ctx, queue, t, cause, target)
		if r, ok := errors.AsType[*Rejection](err); ok {
			queue.count(cause, r) // of this node; the others get theirs
		} else if err != nil {
			return err
		}
	}
	return nil
}

// trigger reads the Trigger as it is now. Nil: it is gone.
func (d *Dispatcher) trigger(ctx context.Context, name string) (*v1.Trigger, error) {
	t := &v1.Trigger{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: name}, t)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading trigger %q: %w", name, err)
	case t.Spec.Suspend:
		return nil, Reject(v1.ReasonSuspended, "spec.suspend is set")
	}
	return t, nil
}

// diagnose makes one Diagnosis, in its turn. A cause that has one already is counted as repeated. The policy of the cause decides about an
// earlier Diagnosis for the same target that has not ended, so a node that answers no more collects no Diagnoses.
func (d *Dispatcher) diagnose(ctx context.Context, queue *lane, t *v1.Trigger, cause *Cause, to target) error {
	if known, err := d.known(ctx, d.Client, t, cause, to); err != nil || known {
		return queue.repeat(cause, err)
	}
	earlier, err := d.concurrent(ctx, t, cause, to)
	if err != nil {
		return err // which takes nothing of the pace
	}
	if wait, err := queue.mayMake(ctx, cause.owner()); err != nil || wait > 0 {
		return cmp.Or[error](err, laterError{wait})
	}
	if known, err := d.known(ctx, d.Reader, t, cause, to); err != nil || known { // the cache may lag behind
		return queue.repeat(cause, err)
	}
	for i := range earlier {
		if err := kubeclient.DeleteSame(ctx, d.Client, &earlier[i]); err != nil {
			return fmt.Errorf("deleting diagnosis %s/%s: %w", d.Namespace, earlier[i].Name, err)
		}
	}
	parameters := map[string]string{}
	maps.Copy(parameters, t.Spec.Parameters)
	maps.Copy(parameters, cause.Parameters)
	made := &v1.Diagnosis{Spec: v1.DiagnosisSpec{
		OperationSet: t.Spec.OperationSet, Mode: t.Spec.Mode, NodeName: to.node, PodReference: to.pod, Parameters: parameters,
	}}
	made.Namespace, made.Name = d.Namespace, diagnosisName(t, cause, cause.slot(t.Spec.RepeatInterval()), to.node)
	made.Labels = map[string]string{v1.LabelTrigger: v1.NodeLabelValue(t.Name), v1.LabelOrigin: v1.OriginTrigger}
	made.Annotations = cause.Annotations
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Trigger", Name: t.Name, UID: t.UID}}
	err = d.Client.Create(ctx, made)
	switch {
	case apierrors.IsAlreadyExists(err):
		return queue.repeat(cause, nil)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return Reject(v1.ReasonAPIError, "%v", err)
	case err != nil:
		return fmt.Errorf("creating diagnosis %s/%s: %w", d.Namespace, made.Name, err)
	}
	queue.mu.Lock()
	defer queue.mu.Unlock()
	queue.delta.Fired++
	queue.delta.LastFired, queue.delta.LastDiagnosis = time.Now().Truncate(time.Second), made.Name
	results.WithLabelValues(string(cause.Kind), resultFired).Inc()
	return nil
}

// repeat counts a cause that has its Diagnosis, unless there was an error.
func (l *lane) repeat(c *Cause, err error) error {
	if err == nil {
		l.count(c, nil)
	}
	return err
}

// known reports whether the cause has a Diagnosis of this slot, or one of the slot before that is within the interval.
func (d *Dispatcher) known(ctx context.Context, from client.Reader, t *v1.Trigger, c *Cause, to target) (bool, error) {
	interval := t.Spec.RepeatInterval()
	slots := []int64{c.slot(interval)}
	if c.Scheduled.IsZero() {
		slots = append(slots, slots[0]-1)
	}
	for _, slot := range slots {
		found := &v1.Diagnosis{}
		name := diagnosisName(t, c, slot, to.node)
		err := from.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, found)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading diagnosis %s/%s: %w", d.Namespace, name, err)
		}
		if err == nil && (slot == slots[0] || time.Since(found.CreationTimestamp.Time) < interval) {
			return true, nil
		}
	}
	return false, nil
}

// concurrent returns the Diagnoses for the same target that have not ended and are to be replaced, or refuses a cause because of them.
// So a node that answers no more collects no Diagnoses.
func (d *Dispatcher) concurrent(ctx context.Context, t *v1.Trigger, cause *Cause, to target) (replaced []v1.Diagnosis, err error) {
	if cause.Policy == v1.AllowConcurrent {
		return nil, nil
	}
	var earlier v1.DiagnosisList
	err = d.Client.List(ctx, &earlier, client.InNamespace(d.Namespace), client.MatchingFields{unfinishedIndex: to.key(t.UID)})
	if err != nil {
		return nil, fmt.Errorf("listing unfinished diagnoses: %w", err)
	}
	if len(earlier.Items) > 0 && cause.Policy != v1.ReplaceConcurrent {
		return nil, Reject(v1.ReasonStillRunning, "Diagnosis %s/%s has not ended", d.Namespace, earlier.Items[0].Name)
	}
	return earlier.Items, nil
}
