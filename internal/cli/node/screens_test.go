// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline"
)

// heldBy is a device with this many holders, each of a workload of its own.
func heldBy(t *testing.T, n int) *holdersReport {
	t.Helper()
	u := holdersReports(t)["held"].(*holdersReport).deviceUse
	one := u.Holders[0]
	u.Holders = nil
	for i := range n {
		one.Container.Workload, one.Origin.Patch = fmt.Sprint("DaemonSet exporter-", i), fmt.Sprintf("metadata: {name: exporter-%d}\n%s", i, exporterHolder().Origin.Patch)
		u.Holders = append(u.Holders, one)
	}
	return &holdersReport{schemaVersion, u}
}

// releaseOf is the release of such a device, with its plan.
func releaseOf(t *testing.T, n int, s terminal.Screen) string {
	t.Helper()
	r := &deviceRelease{view: scanView{Screen: s}, before: heldBy(t, n), target: &repairTarget{}}
	r.before.release = ""
	var actions []v1.Action
	for range n {
		a := unmountOf(v1.ActionPlanned)
		a.Safety = "it is a copy of the kubelet's former mount"
		actions = append(actions, a)
	}
	r.target.plan = diagnosisOf(actions...)
	plan, details := r.planText()
	if (details == nil) != (n <= 3) {
		t.Errorf("%d actions: there are details: %t", n, details != nil)
	}
	return r.before.reportTextAbove(s, planLines) + plan
}

// leftDevices is the report of holders without an argument.
func leftDevices(t *testing.T, n int, s terminal.Screen) string {
	t.Helper()
	r := &abandonedReport{SchemaVersion: schemaVersion}
	for range n {
		r.Devices = append(r.Devices, heldBy(t, 2).deviceUse)
	}
	return r.reportText(s)
}

// diagnosed is the output of diagnose, while it repairs and at its end.
func diagnosed(n int, s terminal.Screen) string {
	var out strings.Builder
	p := &diagnosisPrinter{view: scanView{Screen: s}, out: &out}
	d := diagnosisOf()
	for i := range n {
		d.Status.Faults = append(d.Status.Faults, v1.Fault{
			Code: "StaleSubPath", State: v1.FaultHealed, Pod: &v1.FaultPod{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: "5f0e"}, Container: "nginx", Volume: "conf",
			Evidence: []string{"the root of the mount is deleted: its link count is 0"},
		})
		p.ActionEnded(d, "", pipeline.ActionEnd{Action: v1.Action{Kind: "Unmount", Target: fmt.Sprint("/k/", i), Phase: v1.ActionDone, Message: "replaced"}})
	}
	d.Status.Outcome, d.Status.Summary = v1.OutcomeHealed, fmt.Sprintf("Repaired %d faults", n)
	p.OperationEnded(d, v1.OperationRun{Operation: "auto-recover", Phase: v1.OperationSucceeded})
	return out.String() + p.conclusionText(d, "")
}

// lintedText is the result of lint with this many risks.
func lintedText(n int, s terminal.Screen) string {
	r := &lintReport{Looked: lintLooked{Files: n, Workloads: n + 7, PassedOver: map[string]int{"Service": 2}}}
	for i := range n {
		r.Findings = append(r.Findings, lint.Located{File: fmt.Sprintf("deploy/web-%d.yaml", i), Line: 12, Finding: lint.Finding{
			Rule: lint.HostPropagation, Kind: "DaemonSet", Namespace: "mon", Name: fmt.Sprint("exporter-", i), Summary: "container exporter mounts a directory of the host in which the kubelet mounts volumes",
			Cure: "Mount it with mountPropagation HostToContainer", Patch: exporterHolder().Origin.Patch,
		}})
	}
	return r.reportText(s)
}

// featuresWithoutAny renders the features of a kernel that lacks them all.
func featuresWithoutAny(s terminal.Screen) string {
	r := featureReport{Kernel: "5.10.0", OldestKernel: sys.OldestKernel}
	for _, f := range sys.Features() {
		r.Features = append(r.Features, featureAnswer{Name: f.Name, Answer: "no", MinimumKernel: f.Kernel, Without: f.Without})
	}
	r.Backends = chosenBackends(func(*sys.Feature) error { return errors.ErrUnsupported })
	return r.writeText(s)
}

// bundled is the output of bundle.
func bundled(_ int, _ terminal.Screen) string {
	b := &bundle.Bundle{}
	b.Omit("lines of the kubelet's log", "no file has any")
	return describeBundle(b, "kubediag-worker-7-20261127.tar.gz", 14<<10)
}

// TestScreens: each verb about the faults of a node is one screen, for one fault and for 300, and no line is too wide but those to paste.
func TestScreens(t *testing.T) {
	t.Parallel()
	show := func(n int, s terminal.Screen) string {
		r := reportOf(faultsOfOneCause(n, false), scanCoverage{})
		text := (&faultReview{places: placesInOrder(r.Faults)}).reviewText(scanView{Screen: s, report: r}, r.Time.Add(90*time.Second))
		return text[strings.Index(text, "\n\n")+2:] // the heading has the time of the reader's zone
	}
	recoverOf := func(n int, s terminal.Screen) *recovery {
		r := recoveryOf(n)
		r.view.Screen = s
		return r
	}
	for verb, text := range map[string]func(n int, s terminal.Screen) string{
		"scan": func(n int, s terminal.Screen) string {
			return shownAs(reportOf(faultsOfOneCause(n, false), scanCoverage{}), s)
		},
		"show":     show,
		"recover":  func(n int, s terminal.Screen) string { return recoverOf(n, s).planText(false) },
		"holders":  func(n int, s terminal.Screen) string { return heldBy(t, n).reportText(s) },
		"left":     func(n int, s terminal.Screen) string { return leftDevices(t, n, s) },
		"release":  func(n int, s terminal.Screen) string { return releaseOf(t, n, s) },
		"diagnose": diagnosed,
		"lint":     lintedText,
		"features": func(_ int, s terminal.Screen) string { return featuresWithoutAny(s) },
		"bundle":   bundled,
		"probe": func(_ int, s terminal.Screen) string {
			return (&probeReport{Path: "/mnt/shared", Code: fault.HungMount, Evidence: []string{"it has not answered for 5 s", "its server is 10.0.0.7:/shared"},
				Mount: scanMount{Point: "/mnt/shared", FSType: "nfs4", Device: "0:52", Root: "/"}}).reportText(s)
		},
		"decode": func(int, terminal.Screen) string {
			return nextSteps("kubediag", kubelog.Mentions("stat /mnt: transport endpoint is not connected"))
		},
		"recovered": func(n int, s terminal.Screen) string {
			r := recoverOf(n, s)
			for _, target := range r.targets {
				target.progress, target.reason = progressHealed, "its containers have started"
			}
			return r.resultText()
		},
	} {
		for _, n := range []int{1, 300} {
			for _, width := range []int{80, 120} {
				got := text(n, terminal.Screen{Width: width, Terminal: true})
				lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
				if len(lines) > terminal.ScreenLines {
					t.Errorf("%s of %d: %d lines, at most %d", verb, n, len(lines), terminal.ScreenLines)
				}
				for _, line := range lines {
					if terminal.Columns(line) > width && len(strings.Fields(line)) > 2 && !strings.HasPrefix(line, "  kubediag ") && !strings.HasPrefix(line, "  umount ") {
						t.Errorf("%s of %d: %d columns: %q", verb, n, terminal.Columns(line), line)
					}
				}
				verbtest.Golden(t, fmt.Sprintf("screen-%s.%d.%d", verb, n, width), got)
			}
		}
	}
}
