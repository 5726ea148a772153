// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/fakenode"
)

func TestMain(m *testing.M) { fakenode.Main(m, attackers) }

// BenchmarkWalkthrough measures the four operations of the walkthrough, a real unmount included, from the creation of
// the Diagnosis to Succeeded, against three bare patches of the status of the same object.
func BenchmarkWalkthrough(b *testing.B) {
	s := fakenode.New(b)
	programs := map[string]*exec.Cmd{}
	for _, name := range []string{"manager", "agent"} {
		s.Build(b, name, "")
		programs[name] = s.Launch(b, name)
	}
	s.Break(b, 0)
	s.Run(b, "warm-up", func() {}) // the programs have started, and their caches are filled
	var walks, patches []time.Duration
	for i := 1; b.Loop(); i++ {
		s.Break(b, i)
		var begin time.Time
		d := s.Run(b, fmt.Sprint("walk-", i), func() { begin = time.Now() })
		walks = append(walks, time.Since(begin))
		if d.Status.Phase != v1.DiagnosisSucceeded {
			b.Fatalf("the Diagnosis ended with %+v", d.Status)
		}
		patches = append(patches, patch(b, s, d))
	}
	walk, three := median(walks), median(patches)
	b.ReportMetric(float64(walk.Microseconds())/1000, "ms-walkthrough")
	b.ReportMetric(float64(three.Microseconds())/1000, "ms-3-patches")
	b.ReportMetric(float64(walk)/float64(three), "ratio")
	for name, cmd := range programs {
		b.ReportMetric(resident(b, cmd.Process.Pid), "MiB-resident-"+name)
	}
}

// resident is the resident memory of a process in MiB, mostResident the most that it has had.
func resident(b *testing.B, pid int) float64 {
	return float64(kerneltest.MemoryOf(b, pid, "VmRSS")) / (1 << 20)
}

func mostResident(b *testing.B, pid int) float64 {
	return float64(kerneltest.MemoryOf(b, pid, "VmHWM")) / (1 << 20)
}

// patch patches the status of the Diagnosis three times, one after the other.
func patch(b *testing.B, s *fakenode.Node, d *v1.Diagnosis) time.Duration {
	begin := time.Now()
	for i := range 3 {
		body := fmt.Sprintf(`{"status":{"checkpoint":{"pathIndex":0,"nodeIndex":%d}}}`, i)
		if err := s.Status().Patch(b.Context(), d.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(begin)
}
