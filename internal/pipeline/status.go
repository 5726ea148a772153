// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/redact"
)

// statusWriter writes the status of a Diagnosis: into d, and from there to the store.
type statusWriter struct {
	store Store
	d     *v1.Diagnosis
	// stored is the status as it is stored.
	stored *v1.DiagnosisStatus
	// graph is that of the run whose progress is written.
	graph *graph.Graph
}

func (w *statusWriter) condition(c metav1.Condition) {
	c.Message, c.ObservedGeneration = printable.ClipMiddle(c.Message, maxMessageBytes), w.d.Generation
	meta.SetStatusCondition(&w.d.Status.Conditions, c)
}

func (w *statusWriter) save(ctx context.Context) error {
	printable.Fields(&w.d.Status)
	shrinkStatus(w.d)
	if err := w.store.Save(ctx, w.d.DeepCopy()); err != nil {
		return fmt.Errorf("saving status: %w", err)
	}
	w.stored = w.d.Status.DeepCopy()
	return nil
}

// isStored reports whether the status is stored as it is.
func (w *statusWriter) isStored() bool {
	printable.Fields(&w.d.Status)
	shrinkStatus(w.d)
	now, errNow := json.Marshal(&w.d.Status)
	stored, errStored := json.Marshal(w.stored)
	return errors.Join(errNow, errStored) == nil && string(now) == string(stored)
}

// progress writes into the status how far a run is.
func (w *statusWriter) progress(r report) {
	s := &w.d.Status
	s.OperationResults = r.Results
	s.Operations, s.Artifacts, s.FailedPaths, s.SucceededPath, s.Plan = nil, nil, nil, nil, nil
	var findings []fault.Finding
	for _, o := range r.Operations {
		s.Operations = append(s.Operations, *o.DeepCopy())
		for _, a := range o.Gone {
			findings = slices.DeleteFunc(findings, a.Covers)
		}
		findings = append(findings, o.Findings...)
		if o.Plan != nil {
			s.Plan = o.Plan.DeepCopy()
		}
		s.Artifacts = append(s.Artifacts, o.Artifacts...)
	}
	s.Faults = Faults(findings)
	for _, path := range r.Failed[:min(len(r.Failed), v1.MaxListedPaths)] {
		s.FailedPaths = append(s.FailedPaths, w.path(path))
	}
	if len(r.Path) > 0 {
		s.Checkpoint = &v1.Checkpoint{PathIndex: w.graph.PathIndex(r.Path), NodeIndex: int32(r.Reached)}
	}
	if r.Succeeded {
		s.SucceededPath = w.path(r.Path)
	}
}

func (w *statusWriter) path(ids []int32) v1.Path {
	path := make(v1.Path, len(ids))
	for i, id := range ids {
		n := w.graph.Node(id)
		path[i] = v1.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	return path
}

// conclude writes the end into the status. No error is success. Without a report, the status from before stays.
func (w *statusWriter) conclude(r report, t *terminalError, f *files) {
	s := &w.d.Status
	if len(r.Path) > 0 {
		w.progress(r)
	}
	if w.d.Spec.Artifacts == v1.ArtifactsInStatus {
		// The files that the operations have kept are copied, as far as there is room. A file that cannot be read has no copy.
		room := v1.MaxArtifactBytes
		for i := range s.Artifacts {
			a := &s.Artifacts[i]
			kept, below := artifact(*a), false
			if kept.Path, below = strings.CutPrefix(a.Path, f.base+"/"); !below || a.SizeBytes > maxCopied {
				continue
			}
			text, err := f.load(kept)
			if err != nil {
				continue
			}
			var content bytes.Buffer // which takes all
			packed := gzip.NewWriter(&content)
			_, _ = io.WriteString(packed, printable.Text(redact.Text(text)))
			_ = packed.Close()
			if content.Len() <= room {
				a.Content = content.Bytes()
				room -= content.Len()
			}
		}
	}
	now := metav1.Now()
	s.CompletionTime, s.Outcome = &now, outcome(s.Faults, r, t)
	c := metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1.ReasonComplete, Message: "Diagnosis is completed"}
	s.Phase = v1.DiagnosisSucceeded
	if t != nil {
		s.Phase, c.Status, c.Reason, c.Message = v1.DiagnosisFailed, metav1.ConditionFalse, t.reason, t.message
	}
	w.condition(c)
	s.Summary = summary(w.d, r, t)
}

// outcome is the result of a Diagnosis that has ended, in one word.
func outcome(all []v1.Fault, r report, t *terminalError) v1.Outcome {
	switch {
	case r.Planned:
		return v1.OutcomePlanned
	case slices.ContainsFunc(all, func(f v1.Fault) bool { return f.State != v1.FaultHealed }):
		return v1.OutcomeFaultFound
	case len(all) > 0:
		return v1.OutcomeHealed
	case t == nil && slices.ContainsFunc(r.Operations, func(o operationRun) bool { return o.NoFault || o.foundGone() }):
		return v1.OutcomeNoFault
	case t == nil:
		return v1.OutcomeCompleted
	case t.reason == v1.ReasonNotApplicable:
		return v1.OutcomeNoFault
	}
	return v1.OutcomeError
}

// NewAction returns an action of a plan as statuses have it, planned.
func NewAction(a fault.Action) v1.Action {
	return v1.Action{
		Kind: string(a.Kind), Target: printable.Clip(a.Target, maxMessageBytes), Mount: mountOf(a.Mount), Fault: string(a.Key().Code),
		Safety: printable.Clip(a.Safety, maxMessageBytes), Loss: printable.Clip(a.Loss, maxMessageBytes), Phase: v1.ActionPlanned,
	}
}

// microTime is nil for no time at all.
func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return &metav1.MicroTime{Time: t}
}
