// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	all := faultsOfManyCauses()
	at := func(faults []fault.Finding, l scanCoverage) *scanReport { return reportOf(faults, l) }
	for name, c := range map[string]struct {
		before, now *scanReport
		want        string
	}{
		"the first":         {nil, at(all[5:6], scanCoverage{}), "new DisconnectedFUSE"},
		"the same":          {at(all, scanCoverage{}), at(all, scanCoverage{}), ""},
		"one more":          {at(all[5:6], scanCoverage{}), at(all[5:7], scanCoverage{}), "new HungMount"},
		"one less":          {at(all[5:7], scanCoverage{}), at(all[6:7], scanCoverage{}), "gone DisconnectedFUSE"},
		"one for another":   {at(all[5:6], scanCoverage{}), at(all[6:7], scanCoverage{}), "new HungMount, gone DisconnectedFUSE"},
		"interrupted":       {at(all[5:7], scanCoverage{}), at(all[6:7], scanCoverage{Gaps: scanGaps{Interrupted: true}}), ""},
		"a place has moved": {at(all[4:6], scanCoverage{}), at(all[4:7], scanCoverage{}), "new HungMount"},
	} {
		var got []string
		for _, change := range compareScans(c.before, c.now) {
			got = append(got, change.Change+" "+string(change.Fault.Code))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

func TestChangesAreOneObjectALine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := scanWatcher{out: &out}
	bad := fault.Finding{Code: fault.HungMount, Pod: fault.Pod{Name: "x\u202e\x1b[2J\n", UID: "u"}}
	must(t, w.writeLines(compareScans(reportOf(nil, scanCoverage{}), reportOf([]fault.Finding{bad}, scanCoverage{}))))
	var got faultChange
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Change != changeNew || got.Fault.Pod.Name != bad.Pod.Name ||
		got.SchemaVersion != 1 || strings.Count(out.String(), "\n") != 1 || strings.ContainsAny(out.String(), "\x1b\u202e") {
		t.Errorf("%+v, %v from %q", got, err, out.String())
	}
}

func TestAWatchedTerminalIsFilledAgain(t *testing.T) {
	t.Parallel()
	before, now := reportOf(faultsOfManyCauses()[5:6], scanCoverage{}), reportOf(faultsOfManyCauses()[5:7], scanCoverage{})
	v := scanView{Screen: terminal.Screen{Width: 80, Terminal: true}, report: now}
	w := scanWatcher{every: 5 * time.Second}
	text := ""
	for range 2 * maxChanges {
		text = w.scanText(v, false, compareScans(before, now))
	}
	if !strings.HasPrefix(text, "\x1b[H\x1b[2J✗ worker-7: 2 faults in 2 places.") || !strings.HasSuffix(text, ", every 5s. Ctrl-C ends.\n") ||
		strings.Count(text, " + HungMount ml/trainer-1: pvc-h") != maxChanges {
		t.Errorf("%s", text)
	}
}
