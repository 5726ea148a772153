// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/render"
)

// diagnosisOf has one operation, which has these actions.
func diagnosisOf(actions ...v1.Action) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Status.Plan = &v1.Plan{Hash: "sha256:9f2c"}
	d.Status.Operations = []v1.OperationRun{{Operation: "subpath-remount-recover", Actions: actions}}
	return d
}

// unmountOf is an action in a phase.
func unmountOf(phase v1.ActionPhase) v1.Action {
	return v1.Action{
		Kind: string(fault.Unmount), Target: "/var/lib/kubelet/pods/5f0e/volume-subpaths/configmap/app/0", Fault: string(fault.StaleSubPath),
		Mount:  &v1.Mount{MountInfoID: 216, Namespace: 4026531841, Point: "/var/lib/kubelet/pods/5f0e/volume-subpaths/configmap/app/0"},
		Safety: "the root of the mount is deleted\x1b", Loss: "nothing", Phase: phase,
	}
}

// changeReports are reports of recover and release in JSON, by the verb and the course of the repair.
func changeReports(t *testing.T) map[string]any {
	t.Helper()
	recovered := func(scan *scanReport, gone []*scanFault, each ...*repairTarget) *recoverReport {
		r := &recovery{view: scanView{report: scan}, targets: each, gone: gone, next: "kubediag recover --yes --output=json"}
		return r.recoverReportOf()
	}
	faults := func() (all []*scanFault) {
		for i := range reports["faults"].Faults {
			all = append(all, &reports["faults"].Faults[i])
		}
		return all
	}()
	at := func(p repairProgress, why string, plan, done *v1.Diagnosis) *repairTarget {
		return &repairTarget{faults: faults[:1], progress: p, reason: why, plan: plan, done: done}
	}
	planOf, doneOf := diagnosisOf(unmountOf(v1.ActionPlanned)), diagnosisOf(unmountOf(v1.ActionDone))
	held := holdersReports(t)["held"].(*holdersReport)
	released := func(p repairProgress, why string, plan, done *v1.Diagnosis, r deviceRelease) *releaseReport {
		r.before, r.target, r.next = held, at(p, why, plan, done), "kubediag release --yes --output=json rbd3"
		return r.releaseReportOf()
	}
	return map[string]any{
		"recover-clean": recovered(reports["clean"], nil),
		"recover-planned": recovered(reports["faults"], nil, at(progressPlanned, "", planOf, nil), at(progressRefused, "its pod is not known\x1b", nil, nil),
			at(progressPlanned, "", nil, nil)),
		"recover-ended": recovered(reports["faults"], faults[2:3], at(progressHealed, "a second scan no longer finds it", planOf, doneOf),
			at(progressGone, "it was gone before this command has changed anything", planOf, diagnosisOf()), at(progressFailed, "busy", planOf, diagnosisOf(unmountOf(v1.ActionFailed)))),
		"release-planned":  released(progressPlanned, "", planOf, nil, deviceRelease{}),
		"release-refused":  released(progressRefused, "the device is in normal use", nil, nil, deviceRelease{}),
		"release-released": released(progressHealed, "", planOf, doneOf, deviceRelease{after: holdersReports(t)["free"].(*holdersReport)}),
		"release-detached": released(progressHealed, "", planOf, doneOf, deviceRelease{detached: true}),
	}
}

func TestChangeReports(t *testing.T) {
	t.Parallel()
	for name, r := range changeReports(t) {
		var b bytes.Buffer
		must(t, render.WriteJSON(&b, r))
		verbtest.Golden(t, name+".json", b.String())
	}
}

// TestJSONAsksNothing: JSON is for programs, so no question is asked, on a terminal neither.
func TestJSONAsksNothing(t *testing.T) {
	t.Parallel()
	out := verb.JSON
	cmd := &cobra.Command{}
	cmd.SetIn(strings.NewReader("y\n"))
	err := changeOptions{out: &out}.confirmOnTerminal(cmd, "?", "kubediag recover --yes", nil)
	if !errors.Is(err, verb.ErrRefused) || !strings.HasSuffix(err.Error(), "To carry out the plan, type: kubediag recover --yes") {
		t.Errorf("error %v", err)
	}
}
