// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
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

// scanWatcher shows the changes of scans that are made again and again.
type scanWatcher struct {
	out     io.Writer
	every   time.Duration
	changes []string // for people, the oldest first
}

// watchNode scans until ctx ends, and then ends as the last scan ended that was whole. A later scan that fails is shown, and the next
// one may succeed.
func (o scanOptions) watchNode(cmd *cobra.Command) error {
	w := scanWatcher{out: cmd.OutOrStdout(), every: o.watch}
	ctx := cmd.Context()
	tick := time.NewTicker(o.watch)
	defer tick.Stop()
	var last *scanReport
	for {
		report, err := o.scanNode(ctx, nil)
		switch {
		case err == nil:
			changes, view := compareScans(last, report), o.newView(w.out, report)
			switch {
			case *o.out == verb.JSON:
				err = w.writeLines(changes)
			case !o.brief:
				if last == nil || view.Terminal {
					saveLastScan(report, o.keptFlags())
				}
				err = verb.Write(w.out, w.scanText(view, last == nil, changes))
			case last == nil || len(changes) > 0 || report.Verdict.NotJudged != last.Verdict.NotJudged:
				err = verb.Write(w.out, report.briefLine())
			}
			last = report
		case last != nil && ctx.Err() != nil:
			err = nil // the person has ended the watch, and the findings are printed
		case last != nil:
			err = verb.Write(w.out, fmt.Sprintf("%s ! %s\n", clockTime(time.Now()), printable.Quoted(err.Error())))
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return last.finalError()
		case <-tick.C:
		}
	}
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

// scanText fills a terminal again with each scan: the report, and the last changes below it. To anything else it adds lines. All
// changes of the first scan are in the report.
func (w *scanWatcher) scanText(v scanView, first bool, changes []faultChange) string {
	if first {
		changes = nil
	}
	var b strings.Builder
	if !v.Terminal {
		if first {
			b.WriteString(v.reportText())
		}
		for _, c := range changes {
			b.WriteString(v.Text(c.String()) + "\n")
		}
		return b.String()
	}
	for _, c := range changes {
		w.changes = append(w.changes, v.Text(v.Cut(c.String(), v.Width)))
	}
	w.changes = w.changes[max(0, len(w.changes)-maxChanges):]
	b.WriteString("\x1b[H\x1b[2J" + v.reportText() + "\n")
	for _, line := range w.changes {
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "%s, every %s. Ctrl-C ends.\n", clockTime(v.report.Time), w.every)
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
