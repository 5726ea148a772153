// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// floodSize is nearly as many mounts as a kernel allows in a namespace, and a tenth
// of that on a kernel that the tests run emulated.
func floodSize() int {
	if sys.HasNamespaceWalk.Probe() != nil {
		return 9_500
	}
	return 95_000
}

// scannerBackends are the ways through the machine that the kernel has.
func scannerBackends(l scanLimits) map[string]scanner {
	all := map[string]scanner{"procfs": {procScan{limits: l}, l}}
	if sys.HasNamespaceWalk.Probe() == nil && sys.HasNamespaceID.Probe() == nil {
		all["kernel"] = newScanner(l)
	}
	return all
}

// floodedScene is a mount that one process has in a namespace, while others have many.
type floodedScene struct {
	inode uint64
	point string
}

// scan finds the mounts that may hang, and returns the cost of the pass.
func (f floodedScene) scan(t testing.TB, s scanner) (survey Survey) {
	t.Helper()
	var (
		found []Mount
		err   error
	)
	began := time.Now()
	most := kerneltest.Within(t, func() {
		found, survey, err = s.matchingMounts(func(b *MountBrief) bool { return b.MayHang })
	})
	must(t, err)
	t.Logf("%d of %d mounts in %d namespaces, %v, %d MiB: %q", len(found), survey.Mounts, survey.Namespaces, time.Since(began), most>>20,
		survey.Skipped)
	for _, m := range found {
		if m.Namespace.Inode == f.inode && m.Point == f.point && m.FSType == "fuse" {
			return survey
		}
	}
	t.Errorf("the mount at %q of namespace %d was not found", f.point, f.inode)
	return survey
}

// newFlooded has one process have a mount.
func newFlooded(t testing.TB) floodedScene {
	t.Helper()
	point := t.TempDir()
	kerneltest.FUSE(t, point)
	inode, ok := inodeOf(kerneltest.Start(t, "hold").Answer)
	if !ok {
		t.Fatal("the namespace was not told")
	}
	return floodedScene{inode, point}
}

// TestFlood has a process make mounts beyond measure at long paths: another's mount
// is found all the same, with less memory than the agent has.
func TestFlood(t *testing.T) {
	f := newFlooded(t)
	t.Logf("%s mounts", kerneltest.Flood(t, "", floodSize(), 1).Answer)
	for name, s := range scannerBackends(standardLimits) {
		t.Run(name, func(t *testing.T) {
			switch survey := f.scan(t, s); {
			case survey.Backend == "kernel" && survey.Mounts < floodSize():
				t.Errorf("survey %+v, want all mounts", survey)
			case survey.Backend == "procfs" && survey.CheckComplete() == nil:
				t.Errorf("survey %+v, want that it says what was left out", survey)
			}
		})
	}
}

// TestFloodBeyondTheBounds meets each bound of a pass. The flood is so small that
// passes of others do not meet theirs.
func TestFloodBeyondTheBounds(t *testing.T) {
	f, dir := newFlooded(t), t.TempDir()
	kerneltest.FUSE(t, dir)
	kerneltest.Flood(t, dir, 500, 2)
	less := standardLimits
	less.namespaceBytes, less.totalBytes = 256<<10, 300<<10
	for name, s := range scannerBackends(less) {
		t.Run("room of "+name, func(t *testing.T) {
			if survey := f.scan(t, s); !strings.Contains(fmt.Sprint(survey.Skipped), "than there is room for (256 KiB each, 300 KiB in all)") {
				t.Errorf("skipped %q", survey.Skipped)
			}
		})
	}
	less = standardLimits
	less.headBytes, less.tableBytes, less.allTableBytes = 128<<10, 512<<10, 768<<10
	if survey := f.scan(t, scannerBackends(less)["procfs"]); !strings.Contains(fmt.Sprint(survey.Skipped), "the end of the mount tables of ") {
		t.Errorf("skipped %q", survey.Skipped)
	}
	s, ok := scannerBackends(standardLimits)["kernel"]
	if !ok {
		return
	}
	for range 10 { // others may have mounts that come and go
		whole, err := s.backend.scan(func(*MountBrief) bool { return false }, nil)
		must(t, err)
		less = standardLimits
		less.mounts = whole.Mounts - 700
		if survey := f.scan(t, newScanner(less)); strings.Contains(fmt.Sprint(survey.Skipped), "mount namespaces with the most: at most ") {
			return
		}
	}
	t.Error("no namespace was passed over, in which more mounts are than are looked at")
}

// BenchmarkFlood is TestFlood in twenty namespaces, with half of the mounts of the wanted kind. Other passes over the
// machine report their gaps meanwhile.
func BenchmarkFlood(b *testing.B) {
	f, dir := newFlooded(b), b.TempDir()
	kerneltest.FUSE(b, dir)
	kerneltest.Flood(b, dir, floodSize(), 20)
	for name, s := range scannerBackends(standardLimits) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if survey := f.scan(b, s); survey.CheckComplete() == nil {
					b.Errorf("survey %+v, want that it says what was left out", survey)
				}
			}
		})
	}
}
