// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// faultChange is a fault that has come or gone between two scans.
type faultChange struct {
	SchemaVersion int       `json:"schemaVersion"`
	Time          time.Time `json:"time"`
	// Change is "new" or "gone".
	Change string    `json:"change"`
	Fault  scanFault `json:"fault"`
}

const (
	changeNew  = "new"
	changeGone = "gone"
)

// maxChanges bounds how many of the last changes are shown below the table.
const maxChanges = 10

// scanWatcher scans again and again, and shows the changes.
type scanWatcher struct {
	options scanOptions
	out     io.Writer
	last    *scanReport
	changes []string // for people, the oldest first
}

// watchNode ends with ctx, and then as the last scan ended that was whole.
func (o scanOptions) watchNode(cmd *cobra.Command) error {
	w := scanWatcher{options: o, out: cmd.OutOrStdout()}
	ctx := cmd.Context()
	tick := time.NewTicker(o.watch)
	defer tick.Stop()
	for {
		if err := w.scanOnce(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return w.last.finalError()
		case <-tick.C:
		}
	}
}

// scanOnce scans once. A later scan that fails is shown, and the next one may succeed.
func (w *scanWatcher) scanOnce(ctx context.Context) error {
	report, err := w.options.scanNode(ctx, nil)
	switch {
	case w.last != nil && err != nil:
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the person has ended the watch, and the findings are printed
		}
		return verb.Write(w.out, fmt.Sprintf("%s ! %s\n", clockTime(time.Now()), printable.Quoted(err.Error())))
	case err != nil:
		return err
	}
	changes := compareScans(w.last, report)
	first, notJudged := w.last == nil, 0
	if !first {
		notJudged = w.last.Verdict.NotJudged
	}
	w.last = report
	switch {
	case *w.options.out == verb.JSON:
		return w.writeLines(changes)
	case w.options.brief:
		if first || len(changes) > 0 || report.Verdict.NotJudged != notJudged {
			return verb.Write(w.out, report.briefLine())
		}
		return nil
	}
	return w.drawScreen(first, changes)
}

// writeLines are the changes as JSON, one object a line.
func (w *scanWatcher) writeLines(changes []faultChange) error {
	for _, c := range changes {
		text, err := render.JSON(c, "")
		if err != nil {
			return err
		}
		if err := verb.Write(w.out, text); err != nil {
			return err
		}
	}
	return nil
}

// drawScreen fills a terminal again with each scan, and adds lines to anything else.
func (w *scanWatcher) drawScreen(first bool, changes []faultChange) error {
	v := w.options.newView(w.out, w.last)
	if first {
		changes = nil // all of them are in the report
	}
	if v.Terminal {
		saveLastScan(w.last, w.options.keptFlags())
		return verb.Write(w.out, w.screenText(v, changes))
	}
	var b strings.Builder
	if first {
		saveLastScan(w.last, w.options.keptFlags())
		b.WriteString(v.reportText())
	}
	for _, c := range changes {
		b.WriteString(v.Text(c.String()) + "\n")
	}
	return verb.Write(w.out, b.String())
}

// screenText fills a terminal: the report, and the last changes below it.
func (w *scanWatcher) screenText(v scanView, changes []faultChange) string {
	for _, c := range changes {
		w.changes = append(w.changes, v.Text(v.Cut(c.String(), v.Width)))
	}
	w.changes = w.changes[max(0, len(w.changes)-maxChanges):]
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[2J" + v.reportText() + "\n")
	for _, line := range w.changes {
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "%s, every %s. Ctrl-C ends.\n", clockTime(v.report.Time), w.options.watch)
	return b.String()
}

func clockTime(t time.Time) string { return t.Local().Format(time.TimeOnly) }

// String is the change for people.
func (c faultChange) String() string {
	sign := "+"
	if c.Change == changeGone {
		sign = "-"
	}
	p := faultPlace{faults: []*scanFault{&c.Fault}}
	return fmt.Sprintf("%s %s %s %s: %s", clockTime(c.Time), sign, c.Fault.Code, p.subjectText(), p.reasonText(true))
}

// compareScans lists the faults that only one of two scans has. A fault that the later scan could not look for is not gone,
// and counts as a fault of it.
func compareScans(before, now *scanReport) (changes []faultChange) {
	had, has := map[fault.Key]bool{}, map[fault.Key]bool{}
	var faults []scanFault
	if before != nil {
		faults = append(slices.Clone(before.Faults), before.unjudged...)
	}
	for i := range faults {
		had[faults[i].key()] = true
	}
	for i := range now.Faults {
		f := &now.Faults[i]
		has[f.key()] = true
		if !had[f.key()] {
			changes = append(changes, faultChange{now.SchemaVersion, now.Time, changeNew, *f})
		}
	}
	for i := range faults {
		switch f := &faults[i]; {
		case has[f.key()]:
		case now.whyUnjudged(f, before.Looked.PodSpecs.Given) != "":
			now.unjudged = append(now.unjudged, *f)
		default:
			changes = append(changes, faultChange{now.SchemaVersion, now.Time, changeGone, *f})
		}
	}
	return changes
}
