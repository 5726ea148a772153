// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/ui"
)

func statusPage(t *testing.T, r *statusReport, l ui.Language) string {
	t.Helper()
	return verbtest.Page(t, statusView{faultsView{api: &client{}, brief: true, now: noon, problems: r.Unwatched}, r}.page(l, false))
}

func TestStatusPages(t *testing.T) {
	t.Parallel()
	reports := statusReports()
	pages := map[string]string{"300.zh": statusPage(t, reports["300"], ui.Chinese)}
	for name, r := range reports {
		pages[name] = statusPage(t, r, ui.English)
	}
	for name, got := range pages {
		verbtest.Golden(t, "status."+name+".html", got)
	}
}

// TestStatusPagesAreSmall: 5,000 faults of as many causes are a page of 300 kB, which says how many rows are left out.
func TestStatusPagesAreSmall(t *testing.T) {
	t.Parallel()
	var faults []v1.MountFault
	for i := range 5000 {
		f := faultOf("HungMount", v1.ImpactNow, v1.HealPerson, fmt.Sprintf("%s-%d", strings.Repeat("n", 240), i))
		f.Status.Driver = fmt.Sprintf("%s-%d", strings.Repeat("d", 240), i)
		f.Status.Summary = strings.Repeat("s", 200)
		faults = append(faults, *f)
	}
	page := statusPage(t, statusOf(faults, nil, nil), ui.English)
	if len(page) > 300_000 || !strings.Contains(page, "5000 faults in all namespaces") || !strings.Contains(page, "and 4800 more: kubectl kubediag faults -A") {
		t.Errorf("%d bytes, or without a count:\n%.3000s", len(page), page)
	}
}
