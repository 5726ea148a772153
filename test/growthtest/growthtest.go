// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package growthtest holds for tests that the work of a function grows with its input, and not with the square of it. It compares the time of a
// processor that one input takes with that of another which is four times as large: no machine is too slow for it, and programs beside it count
// for nothing. No other test of the process may run meanwhile. It rests on getrusage(2).
package growthtest

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// times is by how much the larger input is larger, and most how many times as long it may take. A square takes 16 times as long.
	times, most = 4, 10
	// tries is how often it may take longer than that, as the collector of garbage runs now and then.
	tries = 6
	// short is so little time that no user waits, even if it grows with the square.
	short = 50 * time.Millisecond
)

// Check has work done on n things and on four times as many. of makes things, and returns the work on them.
func Check(t *testing.T, n int, of func(n int) (work func())) {
	t.Helper()
	large := of(times * n)
	if took(t, large) < short {
		return
	}
	small, ratio := of(n), 0.0
	for range tries {
		if ratio = float64(took(t, large)) / float64(max(took(t, small), time.Microsecond)); ratio < most {
			return
		}
	}
	t.Errorf("%d times as much takes %.0f times as long", times, ratio)
}

// took is how long the processors worked.
func took(t *testing.T, work func()) time.Duration {
	t.Helper()
	before := used(t)
	work()
	return used(t) - before
}

// used is the time that the process has had of processors.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Text is Check for a function that reads texts: one in which a part is repeated until it has n bytes. In the part, # is another number each time.
func Text(t *testing.T, n int, part string, read func(text string)) {
	t.Helper()
	if part == "" {
		return
	}
	Check(t, n, func(n int) func() {
		var text strings.Builder
		for i := 0; text.Len() < n; i++ {
			text.WriteString(strings.ReplaceAll(part, "#", strconv.Itoa(i)))
		}
		return func() { read(text.String()) }
	})
}
