// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/ui"
)

func TestPages(t *testing.T) {
	t.Parallel()
	for name, report := range reports {
		verbtest.Golden(t, name+".html", verbtest.Page(t, scanView{report: report}.asPages(ui.English).reportPage()))
	}
	verbtest.Golden(t, "many.zh.html", verbtest.Page(t, scanView{report: reports["many"]}.asPages(ui.Chinese).reportPage()))
}

// manyFaults has as many faults as there are, of all codes that are given in turn.
func manyFaults(n int, codes ...fault.Code) *scanReport {
	var found []fault.Finding
	for i := range n {
		found = append(found, fault.Finding{
			Code: codes[i%len(codes)], Pod: fault.Pod{UID: fmt.Sprintf("37993802-2c4b-4f52-9d5e-%012d", i), Namespace: fmt.Sprintf("team-%d", i%400), Name: fmt.Sprintf("web-%d", i)},
			Volume: strings.Repeat("v", 60), Container: strings.Repeat("c", 60), Evidence: []string{strings.Repeat("e", 500)},
			Mount:   fault.Mount{MountInfoID: i + 1, Point: strings.Repeat("/p", 200) + fmt.Sprint(i)},
			Details: fault.Details{Driver: fmt.Sprintf("driver-%d.example.com", i%900), Place: fault.PlaceVolume},
		})
	}
	return reportOf(found, scanCoverage{Counts: scanCounts{Pods: n, Mounts: n}, PodSpecs: podSpecs{Given: true, Pods: n}})
}

// TestPagesAreSmall: the size of a page is bounded, and it names the number of faults that it leaves out.
func TestPagesAreSmall(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 300, 5000} {
		v := scanView{report: manyFaults(n, fault.HungMount, fault.DisconnectedFUSE, fault.StaleFileHandle)}
		page := verbtest.Page(t, v.asPages(ui.English).reportPage())
		if len(page) > 300_000 {
			t.Errorf("%d faults: %d bytes", n, len(page))
		}
		want := map[int]string{0: "nothing broken", 1: "1 fault.", 300: "300 faults in", 5000: "5000 faults in"}[n]
		if !strings.Contains(page, want) || (n > 40) != strings.Contains(page, "more places: ") {
			t.Errorf("%d faults: the page does not say %q, or not how many places are left out:\n%.2000s", n, want, page)
		}
	}
}

// TestReviewPage: a page of show names the faults that are gone, and offers no command with an effect for a fault that may be gone.
func TestReviewPage(t *testing.T) {
	t.Parallel()
	report := manyFaults(2, fault.HungMount)
	a, b := &report.Faults[0], &report.Faults[1]
	a.Commands = []fault.Command{{Purpose: "ends it", Line: "echo abort", Effect: fault.EffectLoss}, {Purpose: "shows it", Line: "echo see", Effect: fault.EffectNone}}
	r := &faultReview{report: report, gone: []*scanFault{b}, unsure: map[*scanFault]string{a: "the scan was interrupted"}, places: []faultPlace{{number: 1, faults: []*scanFault{a}}}}
	page := verbtest.Page(t, scanView{report: report}.asPages(ui.English).reviewPage(r, time.Now()))
	for text, want := range map[string]bool{
		"gone since that scan": true, "Whether it is still there is not known: the scan was interrupted": true, "echo see": true, "echo abort": false,
	} {
		if strings.Contains(page, text) != want {
			t.Errorf("the page has %q: %t, want %t:\n%s", text, !want, want, page)
		}
	}
}
