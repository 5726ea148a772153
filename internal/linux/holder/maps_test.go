// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package holder

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"kubediag.org/kubediag/internal/linux/sys"
)

// TestOneThreadForEachMapThatHangs has search after search meet processes whose map does not answer.
func TestOneThreadForEachMapThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, asked := make(chan struct{}), map[string]int{}
		var mu sync.Mutex
		hang := func(name string, _ []byte) ([]byte, error) {
			mu.Lock()
			asked[name]++
			mu.Unlock()
			<-answer
			return nil, nil
		}
		const processes = 100
		for range 40 {
			r := mapReader{file: hang}
			for i := range processes {
				if _, err := r.read(t.Context(), 10_000_000+i); !errors.Is(err, sys.ETIMEDOUT) { // numbers that no process has
					t.Fatalf("%v, want ETIMEDOUT", err)
				}
			}
			if r.stuck > maxStuck {
				t.Errorf("one search has waited for %d", r.stuck)
			}
		}
		mu.Lock()
		for name, n := range asked {
			if n != 1 {
				t.Errorf("%s was read %d times", name, n)
			}
		}
		mu.Unlock()
		if len(asked) != maxLeft || len(left.of) != maxLeft {
			t.Errorf("%d were read and %d wait, want %d", len(asked), len(left.of), maxLeft)
		}
		close(answer)
		synctest.Wait()
		if len(left.of) != 0 {
			t.Errorf("%d wait after all have answered", len(left.of))
		}
		if _, err := (&mapReader{file: hang}).read(t.Context(), 10_000_000); err != nil {
			t.Errorf("after all have answered: %v", err)
		}
	})
}

// TestMapLeftWhenTheSearchEnds: what a search that was stopped leaves behind counts, too, until it ends.
func TestMapLeftWhenTheSearchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		r := mapReader{file: func(string, []byte) ([]byte, error) { <-answer; return nil, nil }}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		pid := os.Getpid()
		if _, err := r.read(ctx, pid); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		if !stuckOn(pid) || stuckOn(pid+1) {
			t.Errorf("waits for %d: %v", pid, left.of)
		}
		for again := range left.of { // the number now is that of another process
			delete(left.of, again)
			left.of[reading{pid, again.started + "0"}] = true
		}
		if stuckOn(pid) {
			t.Errorf("another process of number %s is taken for it", strconv.Itoa(pid))
		}
		clear(left.of)
		close(answer)
		synctest.Wait()
	})
}
