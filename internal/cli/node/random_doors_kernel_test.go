// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/internal/sentinel/sentineltest"
)

// TestRandomRealNodes makes random nodes of real mounts, and asks each front door about each: scan, its bundle, the Diagnosis of the node, probe
// and the sentinel. Each mount is counted in the class that it was made for. Each fault is found under its code, once, and no other. On an emulated
// machine, which makes very many nodes, the doors beside scan take turns: each of their processes takes a tenth of a second to start there.
func TestRandomRealNodes(t *testing.T) {
	var seeds []uint64
	if *randomSeed == 0 {
		seeds = slices.Clone(alwaysMade)
	}
	for seed := *randomSeed; seed < *randomSeed+*realRounds; seed++ {
		if !slices.Contains(seeds, seed) {
			seeds = append(seeds, seed)
		}
	}
	began := time.Now()
	for made, seed := range seeds {
		if time.Since(began) > roundsTime {
			t.Logf("%d of %d nodes were made: this machine has much else to do", made, len(seeds))
			break
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := makeRealNode(t, seed)
			for _, list := range [][]string{r.faults, r.unknown} {
				slices.Sort(list)
			}
			r.checkScan()
			others := []func(){r.checkDiagnosis, r.checkProbe, r.checkSentinel}
			for i, check := range others {
				if turn := int(seed) % len(others); i == turn || !kerneltest.Emulated() {
					check()
				}
			}
		})
	}
}

// roundsTime is for how long nodes are made at most: the test does not fail because the machine has much else to do.
const roundsTime = 8 * time.Minute

// alwaysMade are a seed by which the doors once disagreed, as records of the container runtime were taken for the whole spec of a pod, and that
// of a pod with very many volumes.
var alwaysMade = []uint64{7, crowdedEach / 2}

// tries is how often a door is asked whose answer is wrong: a machine with much to do answers late, and a question that has run out of time is no
// answer. An emulated machine is asked more often.
const tries = 3

// ask asks a door until its answer is right.
func (r *realNode) ask(door string, ask func() (diff string)) {
	r.t.Helper()
	diff := ask()
	for n := 1; n < int(kerneltest.Patience(tries)) && diff != ""; n++ {
		diff = ask()
	}
	if diff != "" {
		r.t.Errorf("%s (-want +got):\n%s", door, diff)
	}
}

// differ compares an answer with the node.
func differ(want, got []string) string {
	slices.Sort(got)
	return cmp.Diff(want, got)
}

// checkScan scans, and judges the evidence of that once more, as from a bundle.
func (r *realNode) checkScan() {
	var has nodeRecording
	r.ask("scan", func() string {
		s := &scan{node: r.node.Live(), specs: r.specs(), orphanAge: time.Nanosecond, start: time.Now()}
		recorder := &nodeRecorder{recorded: nodeRecording{evidence: map[string]any{}}}
		must(r.t, s.useNode(recorder))
		report, err := s.newScanReport(r.t.Context(), scanOptions{})
		must(r.t, err)
		has = recorder.finish(r.t.Context(), s)
		return r.compareReport(report)
	})
	r.ask("bundle", func() string {
		c := &bundleCollection{Bundle: &bundle.Bundle{}}
		c.addEvidence(has)
		c.addPods(r.specs(), has.node, false)
		must(r.t, c.failed)
		again, err := scanOfBundle(c.Bundle)
		must(r.t, err)
		report, err := again.newScanReport(r.t.Context(), scanOptions{})
		must(r.t, err)
		return r.compareReport(report)
	})
}

func (r *realNode) compareReport(report *scanReport) (diff string) {
	r.t.Helper()
	faults, unknown := report.listed(r.own)
	r.foreign = len(report.Looked.Gaps.NotLookedAt) > 0 || len(faults) < len(report.Faults) || len(unknown) < len(report.Looked.Unproven)
	diff = differ(r.faults, faults) + differ(r.unknown, unknown) + cmp.Diff(&r.classes, report.Looked.Classes)
	if clean := len(r.faults)+len(r.unknown) == 0; report.Verdict.Clean != clean && !r.foreign {
		diff += fmt.Sprintf("clean is %t, with %d faults and %d unknown places", report.Verdict.Clean, len(r.faults), len(r.unknown))
	}
	if diff == "" {
		return ""
	}
	for _, u := range report.Looked.Unproven {
		diff += u.String() + "\n"
	}
	return diff + fmt.Sprintf("notes %q, gaps %+v", report.Looked.Notes, report.Looked.Gaps.NotLookedAt)
}

// checkDiagnosis runs the Diagnosis of the node.
func (r *realNode) checkDiagnosis() {
	r.ask("Diagnosis", func() (diff string) {
		ctx := r.t.Context()
		engine, err := newEngine(ctx, r.node.Live(), r.specs(), time.Nanosecond)
		must(r.t, err)
		gaps, err := engine.listPods(ctx)
		must(r.t, err)
		o := diagnoseOptions{set: v1.DefaultOperationSet, output: verb.JSON}
		d, err := o.diagnose(ctx, engine, o.story(io.Discard))
		must(r.t, err)
		var faults []string
		for _, f := range d.Status.Faults {
			var uid, point string
			if f.Pod != nil {
				uid = string(f.Pod.UID)
			}
			if f.Mount != nil {
				point = f.Mount.Point
			}
			if r.own(uid, point) {
				faults = append(faults, fmt.Sprint(f.Code, " ", uid, " ", f.Container, " ", f.Volume, " ", point))
			}
		}
		if clean := len(r.unknown) == 0; len(r.faults) == 0 && clean != (d.Status.Outcome == v1.OutcomeNoFault) && !(clean && r.foreign) {
			diff = fmt.Sprintf("%s, and this cannot be judged: %q", d.Status.Outcome, r.unknown)
		}
		if diff += differ(r.faults, faults); diff != "" {
			diff += fmt.Sprintf("%s, gaps %+v", d.Status.Summary, gaps)
		}
		return diff
	})
}

// probedPlaces is how many places of a node probe is asked about.
const probedPlaces = 10

// checkProbe asks about places of volumes and binds.
func (r *realNode) checkProbe() {
	want := map[string]string{}
	for _, v := range r.csi {
		if !v.missing {
			want[v.point] = ""
		}
	}
	for _, v := range r.secrets {
		if want[v.point] = ""; v.bind != "" {
			want[v.bind] = ""
		}
	}
	for _, f := range r.faults {
		code, rest, _ := strings.Cut(f, " ")
		for point := range want {
			if strings.HasSuffix(rest, " "+point) {
				want[point] = code
			}
		}
	}
	points := slices.Sorted(maps.Keys(want))
	r.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	for _, point := range points[:min(len(points), kerneltest.Fewer(probedPlaces))] {
		code := want[point]
		r.ask("probe of "+point, func() string {
			report, err := probePath(r.t.Context(), point, asking.DefaultDeadline)
			unknown := slices.ContainsFunc(r.unknown, func(u string) bool { return strings.HasSuffix(u, " "+point) })
			switch {
			case unknown && r.servers[point] == nil: // a Secret that is not there
			case err != nil && !unknown, err == nil && (unknown || string(report.Code) != code):
				return fmt.Sprintf("%+v, %v, want %q", report, err, code)
			}
			return ""
		})
	}
}

// checkSentinel has the sentinel watch the binds and volumes of the node. It reports the faults of pods that the API server has. The searches that it
// makes beside, from time to time, are those of a scan.
func (r *realNode) checkSentinel() {
	specs := r.specs()
	reported := func(uid string) bool { return uid == "" || specs[uid] != nil }
	watched := fault.Known().FoundBy(fault.SearchSubPaths, fault.SearchVolumes)
	watched = slices.DeleteFunc(watched, func(c fault.Code) bool { // the pods that stay on the node are those of such a search
		return slices.Contains(fault.Known().FoundBy(fault.SearchLeaving), c)
	})
	var want []string
	for _, f := range r.faults {
		if words := strings.Split(f, " "); slices.Contains(watched, fault.Code(words[0])) && reported(words[1]) {
			want = append(want, f)
		}
	}
	runner := &subprocess.Runner{}
	runtime := &cri.Client{Socket: r.node.RuntimeSocket}
	prober := &asking.Prober{Runner: runner}
	s := &sentinel.Sentinel{
		Kubelet: r.node, Pods: specs, Binds: subpath.Sources{Prober: prober, Runtime: runtime},
		Volumes: &volume.Inspector{Kubelet: r.node, Prober: prober, Runtime: runtime, Pods: specs, Runner: runner},
	}
	sentineltest.Watch(r.t, s)
	r.ask("sentinel", func() string {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			faults, unknown := s.Faults()
			var got []string
			for _, f := range faults {
				if r.own(f.Pod.UID, f.Mount.Point) && reported(f.Pod.UID) {
					got = append(got, fmt.Sprint(f.Code, " ", f.Pod.UID, " ", f.Container, " ", f.Volume, " ", f.Mount.Point))
				}
			}
			switch slices.Sort(got); {
			case len(unknown) == 0 && slices.Equal(want, got):
				return ""
			case time.Now().After(deadline):
				return differ(want, got) + fmt.Sprint(unknown)
			}
		}
	})
}
