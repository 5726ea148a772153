// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestRefused has a survey that was refused processes which have ended since.
func TestRefused(t *testing.T) {
	for _, surveyed := range []int{0, 5} {
		if n, pids := searches.HidingMounts(surveyed); n != 0 {
			t.Errorf("of %d, processes %v refuse to be looked into by root, want none", surveyed, pids)
		}
	}
}

// TestRootIsShownWhatDoesNotAnswer: root, who sees every process, is not told to be root.
func TestRootIsShownWhatDoesNotAnswer(t *testing.T) {
	const of, why = "processes, and what only they have mounted", "the system keeps them even from root, or they do not answer"
	const shows = "see what these processes wait for: ps -o pid,stat,wchan:32,args -p 2,3,4,5,6,7,8,9"
	for _, c := range []struct {
		denied, partial int
		pids            []int
		want            []mountstate.Gap
	}{
		{9, 1, []int{2, 3, 4, 5, 6, 7, 8, 9, 10}, []mountstate.Gap{
			{What: "9 " + of, Subject: of, Why: why, Do: shows},
			{What: "parts of 1 mount namespace", Subject: "parts of mount namespaces", Why: "they could not be read"},
		}},
		{9, 0, nil, []mountstate.Gap{{What: "9 " + of, Subject: of, Why: why}}},
	} {
		if diff := cmp.Diff(c.want, hiddenProcessGaps(c.denied, c.pids, c.partial)); diff != "" {
			t.Errorf("%d denied, known %v, %d partial: %s", c.denied, c.pids, c.partial, diff)
		}
	}
}

func TestABindThatWasNotTried(t *testing.T) {
	for a, want := range map[asking.Tristate]bool{asking.Unknown: true, asking.Yes: false, asking.No: false} {
		if got := bindUntried(asking.Answer{State: asking.Alive, Bindable: a}); got != want {
			t.Errorf("bindable %q: %t", a, got)
		}
	}
	if bindUntried(asking.Answer{State: asking.Hung}) {
		t.Error("of what does not answer it is asked whether it can be bound")
	}
}

// TestScanListsDirectoriesThatOnlySourcesAreMissingFor has neither a file of pods nor a runtime.
func TestScanListsDirectoriesThatOnlySourcesAreMissingFor(t *testing.T) {
	scene, pods := newStage(t, 1, 1)
	for age, want := range map[time.Duration]int{time.Nanosecond: 1, time.Hour: 0} {
		s := &scan{node: scene.Node, orphanAge: age}
		must(t, s.search(t.Context(), searchesFor([]string{string(fault.OrphanedPodVolumes)})))
		if len(s.sum.Findings) != 0 || len(s.sum.Unknown.Places) != want {
			t.Errorf("with an age of %s: %d faults, not judged %+v, want %d places", age, len(s.sum.Findings), s.sum.Unknown.Places, want)
			continue
		}
		for _, u := range s.sum.Unknown.Places {
			if u.Point != scene.Node.PodDir(string(pods[0].UID)) || !strings.Contains(u.Reason, "the API server could not be asked") ||
				!strings.Contains(u.Reason, "the container runtime could not be asked") {
				t.Errorf("not judged: %+v", u)
			}
		}
	}
}
