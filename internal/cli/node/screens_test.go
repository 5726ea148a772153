// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
)

// mostScreenLines is the height of a screen.
const mostScreenLines = 40

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
		"show":    show,
		"recover": func(n int, s terminal.Screen) string { return recoverOf(n, s).planText(false) },
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
				if len(lines) > mostScreenLines {
					t.Errorf("%s of %d: %d lines, at most %d", verb, n, len(lines), mostScreenLines)
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
