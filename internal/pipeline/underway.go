// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// Repair is a plan that is not carried out yet, or not to its end.
type Repair struct {
	// UID is that of the run.
	UID     string
	Actions []fault.Action
}

// Underway reads from the journals below a data root, of which another process may be the owner, which repairs are under
// way. It changes nothing. A journal that cannot be read says nothing. No directory means no journals.
func Underway(dataRoot string) ([]Repair, error) {
	root, err := os.OpenRoot(dataRoot)
	if notExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading journals: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), journalDir)
	if err != nil && !notExist(err) {
		return nil, fmt.Errorf("reading journals: %w", err)
	}
	var all []Repair
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), journalEnd)
		if !ok {
			continue
		}
		if actions := unfinished(root, journalName(uid)); len(actions) > 0 {
			all = append(all, Repair{UID: uid, Actions: actions})
		}
	}
	return all, nil
}

// unfinished are the actions of plans in a journal whose operations have not ended.
func unfinished(root *os.Root, name string) (all []fault.Action) {
	file, err := root.Open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxJournalBytes))
	if err != nil {
		return nil
	}
	plans, seq := map[int32][]fault.Action{}, 0
	for line := range strings.Lines(string(content)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		seq++
		r, err := decode([]byte(line), seq)
		switch {
		case err != nil:
			return nil
		case r.Kind == kindPlan && r.Plan != nil:
			plans[r.Node] = r.Plan.Actions
		case r.Kind == kindDone:
			delete(plans, r.Node)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(plans)) {
		all = append(all, plans[node]...)
	}
	return all
}
