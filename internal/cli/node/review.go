// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// faultReview compares faults of an earlier scan, of a bundle or of a new scan with the newest look.
type faultReview struct {
	options scanOptions // of the look
	report  *scanReport // that gave the numbers
	// places have the faults as the new look sees them. gone are those that it no longer finds.
	places []faultPlace
	gone   []*scanFault
	// unsure is why the new look could not say whether a fault is still there. Without a reason it is there.
	unsure map[*scanFault]string
}

// reviewFaults finds the faults with a name in the last scan and looks again, or finds them in a bundle or a new scan.
func (o scanOptions) reviewFaults(ctx context.Context, stdin io.Reader, name string) (*faultReview, error) {
	kept, err := o.usableScan()
	if err != nil {
		return nil, err
	}
	if kept == nil {
		now, err := o.scanNode(ctx, stdin)
		if err != nil {
			return nil, err
		}
		if o.from == "" {
			saveLastScan(now, o.keptFlags())
		}
		places, err := now.placesNamed(name)
		return &faultReview{options: o, report: now, places: places}, err
	}
	places, err := kept.Report.placesNamed(name)
	if err != nil {
		return nil, err
	}
	r := &faultReview{options: o.sameLook(kept.Flags), report: kept.Report, unsure: map[*scanFault]string{}}
	now, err := r.options.scanNode(ctx, stdin)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	why := ""
	switch {
	case err != nil:
		now, why = &scanReport{}, "a new look failed: "+err.Error()
	case now.Node != kept.Report.Node:
		why = fmt.Sprintf("the scan was of %s, and this is %s", kept.Report.Node, now.Node)
	}
	r.compare(places, now, why)
	return r, nil
}

// usableScan is the last scan if it has faults and the kubelet root of the flags; nil: there is no such scan.
func (o scanOptions) usableScan() (*keptScan, error) {
	if o.from != "" {
		return nil, nil
	}
	kept, err := lastScan()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case len(kept.Report.Faults) == 0 || o.root != "" && o.root != kept.Report.Looked.Kubelet.Root:
		return nil, nil
	}
	return kept, nil
}

// sameLook are the options of the last scan, with the flags of this one before them.
func (o scanOptions) sameLook(flags keptFlags) scanOptions {
	again := scanOptions{
		nodeOptions: nodeOptions{root: flags.Root, pid: flags.PID, proc: o.proc}, orphanAge: flags.OrphanAge, only: flags.Only, pod: flags.Pod,
		verbose: o.verbose, out: o.out,
	}
	if o.pid != 0 {
		again.pid = o.pid
	}
	switch {
	case o.pods != "":
		again.pods = o.pods
	case flags.Pods != "-": // standard input is read once
		again.pods = flags.Pods
	}
	return again
}

// compare sorts the faults of places by the findings of a new look. why is set if the look proves nothing about them.
func (r *faultReview) compare(places []faultPlace, now *scanReport, why string) {
	found := now.byKey()
	for _, p := range places {
		seen := faultPlace{number: p.number}
		for _, f := range p.faults {
			again, unsure := found[f.key()], why
			if again == nil && unsure == "" {
				unsure = now.whyUnjudged(f, r.report.Looked.PodSpecs.Given)
			}
			switch {
			case unsure != "":
				r.unsure[f] = unsure
				seen.faults = append(seen.faults, f)
				f.Commands = commandsWithoutEffect(f.Commands)
			case again != nil:
				again.Place = p.number
				seen.faults = append(seen.faults, again)
			default:
				r.gone = append(r.gone, f)
			}
		}
		if len(seen.faults) > 0 {
			slices.SortStableFunc(seen.faults, func(a, b *scanFault) int { return len(r.unsure[a]) - len(r.unsure[b]) })
			r.places = append(r.places, seen)
		}
	}
}
