// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// floodSize is how many mounts a flood has in one namespace: nearly as many as a
// kernel lets anybody have there. Where the machine is emulated, and the namespaces
// are found by way of /proc, it is a tenth.
func floodSize() int {
	if sys.HasNamespaceWalk.Probe() != nil {
		return 9_500
	}
	return 95_000
}

// TestFlood has somebody make mounts beyond measure, half of them of a file system
// that may hang, in one namespace and in twenty: another's mount of such a file
// system is found all the same, and what was left out is said.
func TestFlood(t *testing.T) {
	dir, victim := t.TempDir(), t.TempDir()
	kerneltest.FUSE(t, dir)
	kerneltest.FUSE(t, victim)
	inode := parseInode(t, kerneltest.Start(t, "hold").Answer) // has both, too
	for name, namespaces := range map[string]int{"one namespace": 1, "twenty namespaces": 20} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			made := kerneltest.Flood(t, dir, floodSize(), namespaces)
			t.Logf("%d mounts in each, after %v", made, time.Since(began))
			onEveryBackend(t, func(t *testing.T, s *Scanner) {
				for range 2 { // the second pass remembers
					began := time.Now()
					var (
						found  []Mount
						survey Survey
						err    error
					)
					most := kerneltest.Within(t, func() {
						found, survey, err = s.Matching(func(b *Brief) bool { return b.MayHang })
					})
					must(t, err)
					t.Logf("%d of %d mounts in %d namespaces, %v, %d MiB: %q", len(found), survey.Mounts, survey.Namespaces,
						time.Since(began), most>>20, survey.Skipped)
					seen := false
					for _, m := range found {
						seen = seen || m.Namespace.Inode == inode && m.Point == victim && m.FSType == "fuse"
					}
					if !seen {
						t.Error("the mount of somebody else was not found")
					}
					if survey.Namespaces < namespaces || !strings.Contains(strings.Join(survey.Skipped, ";"), "more of the kind") {
						t.Errorf("survey %+v, want that it says what was left out", survey)
					}
				}
			})
		})
	}
}

// TestFloodBeyondTheBounds passes over the mounts, or the text, that are too many,
// and over the namespace that has the most.
func TestFloodBeyondTheBounds(t *testing.T) {
	dir, victim := t.TempDir(), t.TempDir()
	kerneltest.FUSE(t, dir)
	must(t, sys.NewMount("victim", victim, "tmpfs", ""))
	t.Cleanup(func() { sys.UnmountPath(victim, true) })
	inode := parseInode(t, kerneltest.Start(t, "hold").Answer)
	kerneltest.Flood(t, dir, 4_000, 1)
	onEveryBackend(t, func(t *testing.T, s *Scanner) {
		_, whole, err := s.Matching(func(*Brief) bool { return false })
		must(t, err)
		switch back := s.choose().(type) {
		case *kernelScan:
			back.limits.mounts = whole.Mounts - 2_000
		case *procScan:
			back.limits.tables = 10 << 20 // others have less, and the flood more
			back.limits.table = 1 << 20
		}
		seen := false
		survey, err := s.Each(func(b *Brief) bool { return b.Namespace.Inode == inode }, func(m *Mount) { seen = seen || m.Point == victim })
		must(t, err)
		if !seen || survey.Whole() == nil || survey.Mounts >= whole.Mounts {
			t.Errorf("seen: %v; of %d mounts, looked at %d: %v", seen, whole.Mounts, survey.Mounts, survey.Whole())
		}
	})
}
