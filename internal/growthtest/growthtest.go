// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package growthtest holds for tests that the work of a function grows with its input, and not with the square of it. It compares the times of
// one input and of another that is four times as large, so that no machine is too slow for it. It rests on nothing.
package growthtest

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// times is by how much the larger input is larger, and most how many times as long it may take. A square takes 16 times as long.
	times, most = 4, 10
	// tries is how often it may take longer than that, as other programs may have the processor just then.
	tries = 6
	// short is so little time that no user waits, even if it grows with the square.
	short = 50 * time.Millisecond
)

// Check has work done on n things and on four times as many. of makes things, and returns the work on them.
func Check(t *testing.T, n int, of func(n int) (work func())) {
	t.Helper()
	large := of(times * n)
	if took(large) < short {
		return
	}
	small, ratio := of(n), 0.0
	for range tries {
		if ratio = float64(took(large)) / float64(took(small)); ratio < most {
			return
		}
	}
	t.Errorf("%d times as much takes %.0f times as long", times, ratio)
}

func took(work func()) time.Duration {
	begin := time.Now()
	work()
	return time.Since(begin)
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
