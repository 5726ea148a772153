// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// lacks fails the test if the program has written one of the texts.
func (r *result) lacks(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(r.out+r.errors, text) {
			t.Errorf("%q is said:\n%s", text, r)
		}
	}
}

// TestShowLooksAgain: no command is printed that would change a mount that is healthy by now.
func TestShowLooksAgain(t *testing.T) {
	w := newBrokenNode(t)
	root := callers[0]
	w.run(t, "scan", "--pods="+w.pods).says(t, 1, "StaleSubPath", "DisconnectedFUSE")
	root.run(t, w.s.program, "", "show", "StaleSubPath").says(t, 0, "umount -- ", " --pods="+w.pods+" default/web", ", and looked at again now.")
	w.recover(t, "--yes", "StaleSubPath").says(t, 0, ": healed: ")
	r := root.run(t, w.s.program, "", "show", "StaleSubPath")
	r.says(t, 0, ": gone since that scan.")
	r.lacks(t, "umount", "By hand")
	root.run(t, w.s.program, "", "show", "DisconnectedFUSE").says(t, 0, "recover", " --pods="+w.pods+" default/web")
	empty := t.TempDir()
	root.run(t, w.s.program, "", "show", "--kubelet-root="+empty, "1").says(t, 2, filepath.Join(empty, "pods"))
	w.recover(t, "--yes").says(t, 0, "faults healed.")
	r = w.run(t, "show", "1") // the numbers went with the last fault
	r.says(t, 2, "found no fault")
	r.lacks(t, "gone since that scan")
	w.run(t, "scan", "--pods="+w.pods).says(t, 0, "nothing broken")
	r = w.run(t, "show", "1")
	r.says(t, 2, "found no fault")
	r.lacks(t, "umount")
}

// TestAFaultThatCannotBeLookedForIsNotGone: a scan with the specs of pods has found it, and recover has none.
func TestAFaultThatCannotBeLookedForIsNotGone(t *testing.T) {
	s := newScenery(t)
	pods, root := s.breakMore(t), "--kubelet-root="+s.Root
	callers[0].run(t, s.program, "", "scan", root, "--pods="+pods).says(t, 1, "MissingBindSource", "SourceTypeMismatch")
	for _, code := range []string{"MissingBindSource", "SourceTypeMismatch"} {
		r := callers[0].run(t, s.program, "", "recover", root, code)
		r.says(t, 2, code+" default/web", ": not judged: the scan that found it had the spec of its pod, and this one has not. ",
			"Next: kubectl get pods -A -o json > pods.json; "+s.program+" recover ", " --pods=pods.json ")
		r.lacks(t, "gone", "✓")
		callers[0].run(t, s.program, "", "recover", root, "-o", "json", code).says(t, 2, `"result": "NotJudged"`, `"gone": []`)
		callers[0].run(t, s.program, "", "recover", root, "--pods="+pods, code).says(t, 3, code+" default/web", "refused because ")
	}
	r := callers[0].run(t, s.program, "", "show", "--kubelet-root="+s.Root, "MissingBindSource")
	r.says(t, 0, "kubectl -n default get pod web -o yaml") // with the pods of that scan
	r = callers[0].run(t, s.program, "", "show", "--pods="+filepath.Join(t.TempDir(), "none"), "StaleSubPath")
	r.says(t, 0, "! Whether it is still there is not known: a new look failed: read pods from", "Commands that change something are left out.")
	r.lacks(t, "umount")
}

// TestABundleChangesNothingHere: the output about another node's bundle has no command with an effect, and no row of this
// machine's own last scan.
func TestABundleChangesNothingHere(t *testing.T) {
	s := newScenery(t)
	file, root := filepath.Join(t.TempDir(), "ticket.tar.gz"), "--kubelet-root="+s.Root
	callers[0].run(t, s.program, "", "bundle", root, "-o", file).says(t, 0)
	from := callers[0].run(t, s.program, "", "scan", "--from="+file)
	from.says(t, 1, "On node ", "Next:", "kubediag show --from="+file+" 1")
	show := callers[0].run(t, s.program, "", "show", "--from="+file, "StaleSubPath")
	show.says(t, 0, "On node ", "StaleSubPath (critical)", "explain StaleSubPath")
	for _, r := range []*result{from, show, callers[0].run(t, s.program, "", "scan", "-o", "json", "--from="+file), {out: entriesOf(t, file)["scan.txt"]}} {
		r.lacks(t, "kubediag recover", "kubediag release", "umount --", "kill -CONT", "kubediag show 1", "/abort'")
	}
}

// TestANodeHasItsName where a container has a host name of its own.
func TestANodeHasItsName(t *testing.T) {
	s := newScenery(t)
	cmd, r := callers[0].command(t, s.program, "", "scan", "--kubelet-root="+s.Root)
	cmd.Env = append(cmd.Env, "NODE_NAME=worker-9")
	_ = cmd.Run() // it finds faults
	r.status = cmd.ProcessState.ExitCode()
	r.says(t, 1, "✗ worker-9: ")
}
