// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// directories is how many pods leave one behind in TestFlood. A disk takes a minute to remove a hundred thousand.
var directories = flag.Int("flood.directories", 19_900, "how many directories of pods are left behind")

// TestFlood has pods beyond measure leave their directories behind, while a process has mounts beyond measure. Each
// directory has its turn, those that wait are reported, and it takes less memory than the agent has.
func TestFlood(t *testing.T) {
	s := orphantest.New(t)
	pods, mounts := *directories, 50_000
	if sys.HasNamespaceWalk.Probe() != nil { // a kernel that the tests run emulated
		pods, mounts = 4_900, 5_000
	}
	began := time.Now()
	uids := []string{goneUID, orphantest.Live}
	for n := range pods {
		uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", n*7919, n)
		s.Must(os.Mkdir(s.Node.PodDir(uid), 0o755))
		uids = append(uids, uid)
	}
	s.Leave(goneUID)
	kerneltest.Flood(t, s.Node.PodDir(uids[2]), mounts, 1)
	slices.Sort(uids)
	at, _ := slices.BinarySearch(uids, goneUID)
	turns := (len(uids) + 999) / 1000
	now := time.Now().Add(time.Hour) // they are old enough then
	for int(now.Unix()/3600)%turns != at/1000 {
		now = now.Add(time.Hour)
	}
	s.Inspector.Now = func() time.Time { return now }
	t.Logf("%d directories, after %s", len(uids), time.Since(began))
	began = time.Now()
	var (
		found *orphan.Survey
		err   error
	)
	most := kerneltest.Within(t, func() { found, err = s.Inspector.Survey(t.Context()) })
	s.Must(err)
	t.Logf("looked into %d in %s, %d MiB: %q, %+v", len(found.Pods), time.Since(began), most>>20, found.Skipped, found.Coverage)
	i := slices.IndexFunc(found.Pods, func(p *orphan.Pod) bool { return p.UID == goneUID })
	if i < 0 {
		t.Fatal("the directory whose turn it is was not looked into")
	}
	if p := found.Pods[i]; !p.Orphaned || found.Coverage.Backend == "kernel" && len(p.Actions) != len(wholePlan) {
		t.Errorf("pod = %+v, want one that is orphaned, and a plan", p)
	}
	if found.Directories != len(uids) || len(found.Pods) > 1000 || len(found.Skipped) != 1 {
		t.Errorf("looked into %d of %d directories; skipped %q", len(found.Pods), found.Directories, found.Skipped)
	}
}
