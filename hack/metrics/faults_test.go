// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

// doors is a catalogue of one fault.
func doors() fault.Catalogue {
	return fault.Catalogue{{
		Code: "StuckDoor", Title: "A door is stuck", Repair: "oil it", Chinese: fault.Translation{Title: "门卡住了", Repair: "上油"},
		Searches: []fault.Search{fault.SearchDevices}, Operation: "oil", At: map[fault.Place]fault.Remedy{fault.PlaceVolume: {NewPod: true}},
		Alerts: []string{"Doors"},
	}}
}

func TestLists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{
			"README.md", "<!-- faults: what heals them -->\n| a | b | c |\n|---|---|---|\n| old |\n<!-- /faults -->",
			"<!-- faults: what heals them -->\n| a | b | c |\n|---|---|---|\n| [StuckDoor](docs/runbook/StuckDoor.md) | A door is stuck | oil it |\n<!-- /faults -->",
		},
		{
			"docs/README.zh-CN.md", "<!-- faults: titles -->\n| a | b |\n|---|---|\n<!-- /faults -->",
			"<!-- faults: titles -->\n| a | b |\n|---|---|\n| [StuckDoor](runbook/StuckDoor.zh-CN.md) | 门卡住了 |\n<!-- /faults -->",
		},
		{
			"docs/spec/node.md", "| x | <!-- faults: found in devices -->old<!-- /faults -->, y |",
			"| x | <!-- faults: found in devices -->[StuckDoor](../runbook/StuckDoor.md)<!-- /faults -->, y |",
		},
		{
			"docs/spec/node.md", "<!-- faults: an eviction helps --><!-- /faults -->", "<!-- faults: an eviction helps -->`StuckDoor`<!-- /faults -->",
		},
	} {
		got, err := fillLists(doors(), c.name, c.text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if _, err := fillLists(doors(), "README.md", "<!-- faults: no such list -->x<!-- /faults -->"); err == nil {
		t.Error("a list that is none is no error")
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	text := "- alert: Doors\n  expr: >-\n    kubediag_faults{code=~\"A|B\"} > 0\n- alert: Windows\n  expr: >-\n    kubediag_lost > 0\n"
	want := strings.Replace(text, `=~"A|B"`, `="StuckDoor"`, 1)
	if got := fillRules(doors(), text); got != want {
		t.Errorf("rules %s", got)
	}
}

// TestEveryListNamesAddedCode: a code of its own is in each list of the tree, before any file is written.
func TestEveryListNamesAddedCode(t *testing.T) {
	t.Parallel()
	example := fault.Known()[0]
	example.Code = "AddedFault"
	example.Searches = fault.Searches()
	known, err := faultFiles(root, fault.Known())
	if err != nil {
		t.Fatal(err)
	}
	added, err := faultFiles(root, append(slices.Clone(fault.Known()), example))
	if err != nil {
		t.Fatal(err)
	}
	var changed []string
	for name, text := range added {
		if text != known[name] {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	want := []string{
		"README.md", "README.zh-CN.md", rules, "docs/README.md", "docs/README.zh-CN.md", "docs/spec/node.md", "docs/spec/operation.md",
		"docs/spec/recoverypolicy.md", "docs/spec/sentinel.md",
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Errorf("files with lists of faults (-want +got):\n%s", diff)
	}
}
