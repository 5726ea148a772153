// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

// open makes a recorder and does not run it: so is a process that was killed at its start.
func open(t *testing.T, dir, boot string) *Recorder {
	t.Helper()
	s := newServer()
	r, err := New(Options{Node: "n1", Boot: boot, Namespace: "kubediag", DataRoot: dir, Client: s, Reader: s, Log: logr.Discard()})
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestBegunRepairsAreKept: a process knows the repairs that an earlier one of the boot has begun, with their decisions, until they are
// recorded or have changed nothing. Half a line at the end began none.
func TestBegunRepairsAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, journalFile)
	first := open(t, dir, "boot-1")
	for n := range 3 {
		must(t, first.Begin(repair(n, nil), byPolicy))
	}
	first.Left(repair(0, nil))
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, append(text, `{"boot":"boot-1","ended`...), 0o600))
	second := open(t, dir, "boot-1")
	begun := map[string]bool{}
	for _, r := range second.Begun() {
		begun[r.Action.Target] = r.Fault.Pod.Namespace == "team" && cmp.Equal(second.Decision(r), byPolicy)
	}
	if diff := cmp.Diff(map[string]bool{"/kubelet/1": true, "/kubelet/2": true}, begun); diff != "" {
		t.Errorf("begun (-want +got):\n%s", diff)
	}
	second.Add(repair(1, nil), byPolicy)
	if open(t, dir, "boot-1"); len(second.Begun()) != 2 {
		t.Error("a repair is closed before its record is on the disk")
	}
	second.persist()
	if got := open(t, dir, "boot-1").Begun(); len(got) != 1 || got[0].Action.Target != "/kubelet/2" {
		t.Errorf("begun: %+v", got)
	}
	if got := open(t, dir, "boot-2").Begun(); len(got) > 0 {
		t.Errorf("begun in an earlier boot: %+v", got)
	}
}

// TestJournalIsBounded: no repair begins while the journal is full, and it is empty once all are recorded.
func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir, "boot-1")
	n := 0
	for ; r.Begin(repair(n, nil), byPolicy) == nil; n++ {
		r.Add(repair(n, nil), byPolicy)
	}
	if info, err := os.Stat(filepath.Join(dir, journalFile)); err != nil || info.Size() > maxJournalBytes || n < 1000 {
		t.Errorf("%d repairs have begun: %v", n, err)
	}
	r.persist()
	if info, err := os.Stat(filepath.Join(dir, journalFile)); err != nil || info.Size() != 0 {
		t.Errorf("the journal is not empty: %v", err)
	}
	if err := r.Begin(repair(n, nil), byPolicy); err != nil {
		t.Error(err)
	}
}
