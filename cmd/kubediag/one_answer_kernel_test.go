// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/internal/sentinel/sentineltest"
)

// answer is the word of one front door about a node: about the faults of its own kubelet root.
type answer struct {
	// Code is the fault; several are joined. Empty: there is none.
	Code string
	// Heal is the column HEAL of a scan. A door without that column has it if something is planned.
	Heal string
	// Judged is whether all could be judged.
	Judged bool
}

// oneAnswer is a state of a node, and the one answer to it.
type oneAnswer struct {
	// make makes the state, and returns the path to probe; empty: no path shows the fault without the pod's spec.
	make func(t *testing.T, w *brokenNode) (probe string)
	code fault.Code
	heal fault.Heal
	// unjudged is whether the state cannot be judged.
	unjudged bool
}

// TestOneStateOneAnswer asks each front door about each state: scan, scan --brief, probe, the Diagnosis of the node and of the
// pod, recover --dry-run and the sentinel.
func TestOneStateOneAnswer(t *testing.T) {
	for name, c := range oneAnswers {
		t.Run(name, func(t *testing.T) {
			w := newNode(t, volumetest.New(t))
			probe := c.make(t, w)
			w.writePods(t)
			want := answer{Code: string(c.code), Heal: string(c.heal), Judged: !c.unjudged}
			if diff := cmp.Diff(want, w.scanAnswer(t)); diff != "" {
				t.Errorf("scan (-want +got):\n%s", diff)
			}
			w.run(t, "scan", "--pods="+w.pods, "--brief").agrees(t, want)
			if probe != "" {
				callers[0].run(t, w.s.program, "", "probe", probe).agrees(t, want)
			}
			for door, args := range map[string][]string{"node": nil, "pod": {"--pod=" + w.Pod.Namespace + "/" + w.Pod.Name}} {
				if diff := cmp.Diff(planned(want), w.diagnosisAnswer(t, args...)); diff != "" {
					t.Errorf("Diagnosis of the %s (-want +got):\n%s", door, diff)
				}
			}
			if diff := cmp.Diff(want, w.recoverAnswer(t)); diff != "" {
				t.Errorf("recover --dry-run (-want +got):\n%s", diff)
			}
			if !c.unjudged {
				w.checkSentinel(t, want)
			}
		})
	}
}

// planned is the answer of a door that says of the heal only whether there is a plan.
func planned(a answer) answer {
	if a.Heal != string(fault.HealSafe) {
		a.Heal = ""
	}
	return a
}

// own reports whether a fault is of this node's pod or kubelet root.
func (w *brokenNode) own(podUID, point string) bool {
	return podUID == string(w.Pod.UID) || strings.HasPrefix(point, w.Root)
}

// joined are the codes, each once.
func joined(codes []string) string {
	slices.Sort(codes)
	return strings.Join(slices.Compact(codes), "+")
}

// scanAnswer is that of scan -o json.
func (w *brokenNode) scanAnswer(t *testing.T) answer {
	t.Helper()
	r := w.run(t, "scan", "--pods="+w.pods, "-o", "json")
	var report scanned
	r.read(t, &report)
	var codes, heals []string
	for _, f := range report.Faults {
		if w.own(f.Pod.UID, f.Mount.Point) {
			codes, heals = append(codes, string(f.Code)), append(heals, string(f.Heal))
		}
	}
	if wantStatus := map[bool]int{true: 0, false: 2}[report.Verdict.Clean]; len(report.Faults) == 0 && r.status != wantStatus {
		t.Errorf("scan: %s, want status %d", r, wantStatus)
	}
	return answer{Code: joined(codes), Heal: joined(heals), Judged: report.Verdict.NotJudged == 0}
}

// agrees checks a verb that has no more than a text and a status.
func (r *result) agrees(t *testing.T, want answer) {
	t.Helper()
	switch {
	case want.Code != "" && (r.status != 1 || !strings.Contains(r.out, want.Code)),
		want.Code == "" && !want.Judged && r.status != 2, want.Code == "" && want.Judged && r.status != 0:
		t.Errorf("%s, want %+v", r, want)
	}
}

// diagnosisAnswer is that of a Diagnosis, which changes nothing.
func (w *brokenNode) diagnosisAnswer(t *testing.T, args ...string) answer {
	t.Helper()
	r := w.run(t, "diagnose", append([]string{"--pods=" + w.pods, "--data-root=" + w.data, "-o", "yaml"}, args...)...)
	d := &v1.Diagnosis{}
	if err := yaml.Unmarshal([]byte(r.out), d); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	a := answer{Judged: d.Status.Outcome != v1.OutcomeError}
	var codes []string
	for _, f := range d.Status.Faults {
		var uid, point string
		if f.Pod != nil {
			uid = string(f.Pod.UID)
		}
		if f.Mount != nil {
			point = f.Mount.Point
		}
		if w.own(uid, point) {
			codes = append(codes, f.Code)
		}
	}
	if a.Code = joined(codes); d.Status.Outcome == v1.OutcomePlanned {
		a.Heal = string(fault.HealSafe)
	}
	return a
}

// recoverAnswer is that of recover --dry-run. It plans each safe repair, and nothing else.
func (w *brokenNode) recoverAnswer(t *testing.T) answer {
	t.Helper()
	r := w.recover(t, "--dry-run", "-o", "json")
	var report struct {
		Repairs []struct {
			Result string
			Faults []scannedFault
		}
		Looked struct{ Unproven []struct{ Point string } }
	}
	r.read(t, &report)
	a := answer{Judged: len(report.Looked.Unproven) == 0}
	var codes, heals []string
	for _, one := range report.Repairs {
		for _, f := range one.Faults {
			if !w.own(f.Pod.UID, f.Mount.Point) {
				continue
			}
			codes, heals = append(codes, string(f.Code)), append(heals, string(f.Heal))
			if (one.Result == "Planned") != (f.Heal == fault.HealSafe) {
				t.Errorf("recover --dry-run: %s, and the heal of %s is %s", one.Result, f.Code, f.Heal)
			}
		}
	}
	a.Code, a.Heal = joined(codes), joined(heals)
	return a
}

// specs are those of the pod of a node.
type specs struct{ *brokenNode }

func (s specs) Listed() []*corev1.Pod { return []*corev1.Pod{s.Pod} }
func (s specs) PodsNow(context.Context) ([]metav1.ObjectMeta, error) {
	return []metav1.ObjectMeta{s.Pod.ObjectMeta}, nil
}

// looks are the searches that the sentinel makes from time to time, as far as they find a code: the first of them comes late.
func (w *brokenNode) looks(code fault.Code) map[fault.Search]sentinel.Look {
	all := map[fault.Search]sentinel.Look{}
	for _, s := range searches.All() {
		if s.Kind != fault.SearchSources && s.Kind != fault.SearchLeaving || !slices.Contains(fault.Known().FoundBy(s.Kind), code) {
			continue
		}
		look := s.On(searches.Node{Kubelet: w.Node, Specs: specs{w}, PodUIDs: w.Node.PodUIDs, Prober: w.Inspector.Prober})
		all[s.Kind] = sentinel.Look{Inspector: look, Every: s.Every}
	}
	return all
}

// checkSentinel has the sentinel watch the node until its first looks have ended.
func (w *brokenNode) checkSentinel(t *testing.T, want answer) {
	t.Helper()
	s := &sentinel.Sentinel{
		Kubelet: w.Node, Pods: w, Binds: subpath.Sources{Prober: w.Inspector.Prober}, Volumes: w.Inspector, Looks: w.looks(fault.Code(want.Code)),
	}
	sentineltest.Watch(t, s)
	kerneltest.Await(t, fmt.Sprintf("the sentinel to say %+v", want), func() bool {
		faults, unknown := s.Faults()
		var codes, heals []string
		for _, f := range faults {
			if w.own(f.Pod.UID, f.Mount.Point) {
				codes = append(codes, string(f.Code))
				heals = append(heals, string(fault.Known().Advise(f.Finding, fault.Caller{}).Heal))
			}
		}
		return len(unknown) == 0 && joined(codes) == want.Code && joined(heals) == want.Heal
	})
}
