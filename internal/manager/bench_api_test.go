// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// BenchmarkBind measures how long a Diagnosis waits for its node, from the request that creates it to the moment when its
// agent could see it, and the same in bare status patches.
func BenchmarkBind(b *testing.B) {
	w := newWorld(b, apitest.Start(b))
	w.run(b)
	node := w.node(b)
	ref := w.pod(b, node)
	watching, err := client.NewWithWatch(w.Config, client.Options{Scheme: w.Client.Scheme()})
	must(b, err)
	events, err := watching.Watch(b.Context(), &v1.DiagnosisList{}, client.InNamespace(w.ns), client.MatchingLabels{v1.LabelNode: node})
	must(b, err)
	defer events.Stop()
	w.warmUp(b)
	var bare time.Duration
	for b.Loop() {
		d := w.diagnose(b, v1.DiagnosisSpec{NodeName: node, PodReference: ref})
		for e := range events.ResultChan() {
			if got, ok := e.Object.(*v1.Diagnosis); ok && e.Type == watch.Added && got.UID == d.UID {
				break
			}
		}
		b.StopTimer()
		bare += w.patchStatus(b, d)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(bare), "patches/op")
}

// warmUp waits until the manager is at work.
func (w *world) warmUp(b *testing.B) {
	b.Helper()
	d := w.diagnose(b, v1.DiagnosisSpec{NodeName: w.node(b)})
	w.Until(b, d, func() bool { return d.Labels[v1.LabelNode] != "" })
}

// patchStatus is how long one bare status patch takes. It ends the Diagnosis.
func (w *world) patchStatus(b *testing.B, d *v1.Diagnosis) time.Duration {
	b.Helper()
	began := time.Now()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"phase": "Succeeded"}}`))
	must(b, w.Client.Status().Patch(b.Context(), d, patch))
	return time.Since(began)
}
