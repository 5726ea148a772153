// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestBundlesPrintNoLineOfTheirs holds that a bundle is evidence and no advice: each of its texts may be one that a shell would run, and so may fields
// that it should not have. Each line to paste has such a text in quotes only.
func TestBundlesPrintNoLineOfTheirs(t *testing.T) {
	t.Parallel()
	entries := wholeRecording(t)
	for _, entry := range slices.Sorted(maps.Keys(entries)) {
		if entry != sourcesEntry {
			forge(t, entries, entry)
		}
	}
	r := readWhole(t, bundleOf(t, entries))
	lines := 0
	for _, f := range r.Faults {
		for _, c := range f.Commands {
			if lines++; strings.Contains(c.Line, evil) {
				t.Errorf("%s: %s", f.Code, c.Line)
			}
		}
	}
	if lines == 0 {
		t.Error("no line was printed")
	}
	for _, g := range r.Looked.Gaps.NotLookedAt {
		if g.Do != "" {
			t.Errorf("the bundle advises: %s", g.Do)
		}
	}
	if !slices.ContainsFunc(r.Looked.Gaps.NotLookedAt, func(g mountstate.Gap) bool { return strings.Contains(g.What+g.Why, evil) }) {
		t.Errorf("the bundle's own gaps are gone: %v", r.Looked.Gaps.NotLookedAt)
	}
}

// TestLinesOfABundleRepairNothing holds that a report from a bundle has no line that changes the machine on which it is read, and that the number of a
// fault is one of the bundle.
func TestLinesOfABundleRepairNothing(t *testing.T) {
	t.Parallel()
	r := readWhole(t, bundleOf(t, wholeRecording(t)))
	for _, from := range []string{"ticket.tar.gz", "-"} {
		all := scanView{report: r, from: from, flags: " --from=" + from}.nextCommands(r.groupPlaces())
		for _, c := range all {
			if verb := strings.Fields(c.Line)[1]; verb != "explain" && (verb != "show" || !strings.Contains(c.Line, "--from="+from)) {
				t.Errorf("%s: %q means this machine", from, c.Line)
			}
		}
		for _, f := range r.Faults {
			all = append(all, f.Commands...)
		}
		if len(all) < 2 {
			t.Fatalf("%s: %d lines", from, len(all))
		}
		for _, c := range all {
			if c.Effect == fault.EffectRepair || c.Effect == fault.EffectLoss {
				t.Errorf("%s: %q changes another machine than that of the bundle", from, c.Line)
			}
		}
	}
}

// evil ends quotes, and has a command for a shell.
const evil = "x'; touch pwned; #"

// forge adds evil to each text of an entry, and gives each of its objects the fields of a caller and of a gap. It leaves out changes for which the bundle would be
// refused, and the words by which judges decide.
func forge(t testing.TB, entries map[string][]byte, entry string) {
	t.Helper()
	root := decoded(t, entries[entry])
	try := func(change, undo func()) {
		before := entries[entry]
		change()
		text, err := json.Marshal(root)
		must(t, err)
		entries[entry] = text
		if _, err := scanOfBundle(bundleOf(t, entries)); err != nil {
			undo()
			entries[entry] = before
		}
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for i := range v {
				if text, ok := v[i].(string); ok {
					try(func() { v[i] = text + evil }, func() { v[i] = text })
				}
				walk(v[i])
			}
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				decides := slices.Contains([]string{"kind", "state", "fstype", "plugin", "kubeletroot", "podsdir"}, strings.ToLower(key))
				if text, ok := v[key].(string); ok && !decides {
					try(func() { v[key] = text + evil }, func() { v[key] = text })
				}
				walk(v[key])
			}
			if !isMap(v) {
				caller := map[string]any{"Automatic": true, "Enter": 1, "Flags": " " + evil, "Pods": " " + evil}
				try(func() { v["caller"] = caller }, func() { delete(v, "caller") })
				try(func() { v["do"] = evil }, func() { delete(v, "do") })
			}
		}
	}
	walk(root)
}
