// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"

	v1 "kubediag.org/kubediag/api/v1"
)

const (
	// etcd takes 1.5 MiB by default. These are bytes of JSON for the whole object, and for the status: as many as the
	// rest of the object leaves, within bounds.
	maxObjectBytes = 1300 << 10
	maxStatusBytes = 900 << 10
	minStatusBytes = 64 << 10
)

// fit makes the status of a Diagnosis small enough to be stored. Nearly every one is; of the others, what can be missed
// best goes first.
func fit(d *v1.Diagnosis) {
	s := &d.Status
	limit := maxObjectBytes - size(&v1.Diagnosis{ObjectMeta: d.ObjectMeta, Spec: d.Spec})
	limit = max(min(limit, maxStatusBytes), minStatusBytes)
	for _, shrink := range []func(){
		func() { dropCopies(s) },
		func() { s.FailedPaths = s.FailedPaths[:min(len(s.FailedPaths), 10)] },
		func() { shorten(s, 512) },
		func() { bound(s, 100) },
		func() { s.FailedPaths = nil },
		func() { shorten(s, 64) },
		func() { bound(s, 10) },
		func() { shortenResults(s, limit) },
		func() { s.OperationResults = nil },
		func() { s.SucceededPath = nil },
		func() { s.Operations = s.Operations[max(0, len(s.Operations)-100):] },
	} {
		if size(s) <= limit {
			return
		}
		shrink()
	}
}

// dropCopies leaves the artifacts to the node.
func dropCopies(s *v1.DiagnosisStatus) {
	for i := range s.Artifacts {
		s.Artifacts[i].Content = nil
	}
}

func size(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // strings, numbers and times only
	}
	return len(text)
}

// shorten clips every text that says why.
func shorten(s *v1.DiagnosisStatus, most int) {
	for i := range s.Operations {
		o := &s.Operations[i]
		o.Message = clip(o.Message, most)
		for j := range o.Actions {
			a := &o.Actions[j]
			a.Message, a.Safety, a.Loss = clip(a.Message, most), clip(a.Safety, most), clip(a.Loss, most)
			a.Calls = a.Calls[:min(len(a.Calls), most/16)]
		}
	}
	for i := range s.Faults {
		for j := range s.Faults[i].Evidence {
			s.Faults[i].Evidence[j] = clip(s.Faults[i].Evidence[j], most)
		}
	}
}

// bound cuts every list whose length is up to a processor.
func bound(s *v1.DiagnosisStatus, most int) {
	s.Faults = s.Faults[:min(len(s.Faults), most)]
	s.Artifacts = s.Artifacts[:min(len(s.Artifacts), most)]
	for i := range s.Faults {
		f := &s.Faults[i]
		f.Evidence = f.Evidence[:min(len(f.Evidence), most)]
	}
	for i := range s.Operations {
		o := &s.Operations[i]
		o.Actions = o.Actions[:min(len(o.Actions), most)]
	}
}

// shortenResults leaves of each result what there is room for if all had the same.
func shortenResults(s *v1.DiagnosisStatus, limit int) {
	const worst = 6 // bytes of JSON for one of text
	rest := *s
	rest.OperationResults = nil
	room := max(limit-size(&rest), 0) / (worst * max(len(s.OperationResults), 1))
	for key, value := range s.OperationResults {
		if room < len(key)+64 {
			delete(s.OperationResults, key)
			continue
		}
		s.OperationResults[key] = clip(value, room-len(key))
	}
}
