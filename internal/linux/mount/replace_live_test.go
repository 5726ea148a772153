// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// readCounts counts the results of a reader in a loop.
type readCounts struct {
	Failed int // the dead file system, or the old content
	Fresh  int
	Empty  int // nothing was mounted
	Worse  int // none of these
	Late   int // of those that failed: after the first fresh one
}

// loopReader reads a file in a loop on a goroutine of its own.
type loopReader struct {
	stop chan struct{}
	done chan readCounts
	now  atomic.Int64 // reads so far
}

func readInLoop(name string) *loopReader {
	return readInLoopFor(name, func(_ []byte, err error) bool { return errors.Is(err, sys.ENOTCONN) })
}

// readInLoopFor gets, in was, the content before the replacement.
func readInLoopFor(name string, was func(text []byte, err error) bool) *loopReader {
	r := &loopReader{stop: make(chan struct{}), done: make(chan readCounts)}
	go func() {
		var got readCounts
		for {
			select {
			case <-r.stop:
				r.done <- got
				return
			default:
			}
			text, err := os.ReadFile(name)
			got.addRead(text, err, was(text, err))
			r.now.Add(1)
		}
	}()
	return r
}

func (got *readCounts) addRead(text []byte, err error, was bool) {
	switch {
	case err == nil && string(text) == "fresh":
		got.Fresh++
	case was:
		got.Failed++
		if got.Fresh > 0 {
			got.Late++
		}
	case errors.Is(err, os.ErrNotExist) || string(text) == "empty":
		got.Empty++
	default:
		got.Worse++
	}
}

// awaitReads waits for a number of reads more.
func (r *loopReader) awaitReads(n int64) {
	for end := r.now.Load() + n; r.now.Load() < end; {
		time.Sleep(10 * time.Microsecond)
	}
}

func (r *loopReader) stopReading() readCounts {
	close(r.stop)
	return <-r.done
}

// deadFUSE is a file system whose server was killed.
func deadFUSE(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	kerneltest.FUSE(t, dir).Kill()
	if _, err := os.Stat(dir); !errors.Is(err, sys.ENOTCONN) {
		t.Fatalf("server killed: %v, want ENOTCONN", err)
	}
	return dir
}

// TestReplaceDeadFUSEUnderReader: who reads in a loop meets the dead file system
// and then the fresh one, and nothing else, in another namespace too.
func TestReplaceDeadFUSEUnderReader(t *testing.T) { forEachMethod(t, replaceDeadFUSEUnderReader) }

func replaceDeadFUSEUnderReader(t *testing.T) {
	f := newReplacementFiles(t)
	for name, inUse := range map[string]bool{"idle but for the reader": false, "in use": true} {
		t.Run(name, func(t *testing.T) {
			point := t.TempDir()
			must(t, Bind(deadFUSE(t), point))
			t.Cleanup(func() { systest.UnmountPath(point, true) })
			holder := kerneltest.Start(t, "hold")
			ns, err := mountns.Of(holder.PID)
			must(t, err)
			root := fmt.Sprintf("/proc/%d/root", holder.PID)
			if inUse {
				fd, err := mountns.Lookup(holder.PID, point)
				must(t, err)
				defer fd.Close()
			}
			id := inspectIn(t, holder.PID, point).ID
			r := readInLoop(filepath.Join(root+point, "name"))
			r.awaitReads(20)
			tree := clone(t, f.dir)
			err = ns.Do(func() error { return Replace(t.Context(), id, ReplaceOptions{Tree: tree}) })
			r.awaitReads(20)
			got := r.stopReading()
			must(t, err)
			if got.Empty+got.Worse+got.Late != 0 || got.Failed == 0 || got.Fresh == 0 {
				t.Errorf("reads: %+v", got)
			}
			if now := inspectIn(t, holder.PID, point); now.FSType != "tmpfs" {
				t.Errorf("there is %+v", now)
			}
		})
	}
}

// TestReplaceRacesReader swaps again and again under a reader in a loop.
func TestReplaceRacesReader(t *testing.T) { forEachMethod(t, replaceRacesReader) }

func replaceRacesReader(t *testing.T) {
	s := newReplacePoint(t)
	var sum readCounts
	rounds := 0
	for end := time.Now().Add(*raceTime); rounds < *raceRounds && time.Now().Before(end); rounds++ {
		got := s.replaceOnce(t, rounds%2 == 0)
		sum.Failed, sum.Fresh = sum.Failed+got.Failed, sum.Fresh+got.Fresh
		sum.Empty, sum.Worse = sum.Empty+got.Empty, sum.Worse+got.Worse+got.Late
	}
	t.Logf("%d rounds, reads %+v", rounds, sum)
	if sum.Empty+sum.Worse != 0 {
		t.Errorf("%d empty reads, %d that went wrong", sum.Empty, sum.Worse)
	}
}

// replacePoint is a point at which a dead file system is replaced again and again.
type replacePoint struct {
	dead, point string
	fresh       replacementFiles
}

func newReplacePoint(t testing.TB) replacePoint {
	t.Helper()
	return replacePoint{dead: deadFUSE(t), point: t.TempDir(), fresh: newReplacementFiles(t)}
}

// replaceOnce mounts the dead file system, replaces it under a reader, and unmounts the replacement.
func (s replacePoint) replaceOnce(t *testing.T, inUse bool) readCounts {
	must(t, Bind(s.dead, s.point))
	defer systest.UnmountPath(s.point, true)
	if inUse {
		held := openFile(t, s.point)
		defer held.Close()
	}
	id := inspect(t, s.point).ID
	tree := clone(t, s.fresh.dir)
	r := readInLoop(filepath.Join(s.point, "name"))
	r.awaitReads(2)
	err := Replace(t.Context(), id, ReplaceOptions{Tree: tree})
	r.awaitReads(2)
	got := r.stopReading()
	must(t, err)
	return got
}

// readRole reads a file in a loop until the test ends it, and writes its counts to another file.
func readRole(args []string, ready func(string)) error {
	r := readInLoop(args[0])
	r.awaitReads(1)
	ready("")
	kerneltest.WaitForEnd()
	text, err := json.Marshal(r.stopReading())
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], text, 0o600)
}

// BenchmarkReplace measures how long a swap takes while another process reads at the point in a loop, and the results
// of that process.
func BenchmarkReplace(b *testing.B) {
	onlyKernel(b)
	for name, inUse := range map[string]bool{"idle but for the reader": false, "in use": true} {
		b.Run(name, func(b *testing.B) {
			s := newReplacePoint(b)
			base := newReplacementFiles(b) // shows between two rounds
			must(b, Bind(base.dir, s.point))
			result := filepath.Join(b.TempDir(), "reads")
			reader := kerneltest.StartWith(b, nil, "read", filepath.Join(s.point, "name"), result)
			var took []time.Duration
			for range b.N {
				took = append(took, s.mountOnTop(b, inUse))
				must(b, systest.UnmountPath(s.point, true))
			}
			slices.Sort(took)
			reader.End()
			for systest.UnmountPath(s.point, true) == nil {
			}
			var got readCounts
			text, err := os.ReadFile(result)
			must(b, err)
			must(b, json.Unmarshal(text, &got))
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/op") // the median
			b.ReportMetric(float64(took[len(took)*9/10].Nanoseconds()), "p90-ns/op")
			b.ReportMetric(float64(got.Failed)/float64(b.N), "failed-reads/op")
			b.ReportMetric(float64(got.Empty+got.Worse), "empty-reads")
			b.ReportMetric(float64(got.Fresh), "fresh-reads")
		})
	}
}

// mountOnTop mounts the dead file system on the present mount, and replaces it.
func (s replacePoint) mountOnTop(b *testing.B, inUse bool) time.Duration {
	must(b, Bind(s.dead, s.point))
	if inUse {
		held := openFile(b, s.point)
		defer held.Close()
	}
	id := inspect(b, s.point).ID
	tree := clone(b, s.fresh.dir)
	start := time.Now()
	must(b, Replace(b.Context(), id, ReplaceOptions{Tree: tree}))
	return time.Since(start)
}
