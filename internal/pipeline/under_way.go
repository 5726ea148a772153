// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// Repair is a plan whose first action has begun, and which is not carried out to its end.
type Repair struct {
	// UID is that of the run.
	UID     string
	Actions []fault.Action
	// Unknown is set if the journal cannot be read, such as that of another release: then Actions is empty, and nothing
	// is known about the plan.
	Unknown bool
}

// Underway reads from the journals below a data root, of which another process may be the owner, which repairs are under
// way. A plan that waits, such as a week for its approval, is none: its owner plans again before it changes something, and only one
// program of a node repairs at a time. It changes nothing. A journal that cannot be read is a Repair of which nothing is known, unless its last record is
// that of the end. No directory means no journals.
func Underway(dataRoot string) ([]Repair, error) {
	root, err := os.OpenRoot(dataRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading journals: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), journalDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading journals: %w", err)
	}
	var all []Repair
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), journalEnd)
		if !ok {
			continue
		}
		plans, err := readPlans(root, journalName(uid))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
		case err != nil:
			all = append(all, Repair{UID: uid, Unknown: true})
		case len(plans.underway()) > 0:
			all = append(all, Repair{UID: uid, Actions: plans.underway()})
		}
	}
	return all, nil
}

// Planned reads from the journal of a run below a data root all actions that it has planned.
func Planned(dataRoot, uid string) ([]fault.Action, error) {
	root, err := os.OpenRoot(dataRoot)
	if err != nil {
		return nil, fmt.Errorf("reading journal: %w", err)
	}
	defer root.Close()
	plans, err := readPlans(root, journalName(uid))
	return plans.actions(func(int32) bool { return true }), err
}

// journalPlans are the actions of the plans in a journal, and whether one has begun and the operations have ended, by node.
type journalPlans struct {
	planned      map[int32][]fault.Action
	begun, ended map[int32]bool
}

// underway are the actions of plans of which one has begun, and whose operations have not ended.
func (p journalPlans) underway() []fault.Action {
	return p.actions(func(node int32) bool { return p.begun[node] && !p.ended[node] })
}

func (p journalPlans) actions(of func(node int32) bool) (all []fault.Action) {
	for _, node := range slices.Sorted(maps.Keys(p.planned)) {
		if of(node) {
			all = append(all, p.planned[node]...)
		}
	}
	return all
}

// readPlans reads the plans in a journal. A journal that cannot be read and has ended has none.
func readPlans(root *os.Root, name string) (journalPlans, error) {
	plans := journalPlans{map[int32][]fault.Action{}, map[int32]bool{}, map[int32]bool{}}
	file, err := root.Open(name)
	if err != nil {
		return plans, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxJournalBytes))
	if err != nil {
		return plans, fmt.Errorf("reading journal: %w", err)
	}
	seq := 0
	for line := range strings.Lines(string(content)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		seq++
		r, err := decode([]byte(line), seq)
		switch {
		case err != nil && hasEnded(string(content)):
			return journalPlans{}, nil
		case err != nil:
			return journalPlans{}, err
		case r.Kind == kindPlan && r.Plan != nil:
			plans.planned[r.Node], plans.begun[r.Node] = r.Plan.Actions(), false
		case r.Kind == kindApply:
			plans.begun[r.Node] = true
		case r.Kind == kindDone:
			plans.ended[r.Node] = true
		}
	}
	return plans, nil
}

// hasEnded reports whether the last record of a journal in any format is that of the end.
func hasEnded(content string) bool {
	last := strings.TrimSuffix(content, "\n")
	last = last[strings.LastIndexByte(last, '\n')+1:]
	var r struct {
		Kind kind `json:"kind"`
	}
	start := strings.IndexByte(last, '{') // a checksum stands before it
	return start >= 0 && json.Unmarshal([]byte(last[start:]), &r) == nil && r.Kind == kindEnd
}
