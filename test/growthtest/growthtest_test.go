// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package growthtest

import (
	"strings"
	"testing"
)

// TestSquareIsSeen compares a function that looks at each thing once for each other one.
func TestSquareIsSeen(t *testing.T) {
	var ratio float64
	const n = 1 << 12
	work := func(n int) func() { return func() { square(n) } }
	for range tries {
		ratio = max(ratio, float64(took(t, work(times*n)))/float64(max(took(t, work(n)), 1)))
	}
	if ratio < most {
		t.Errorf("a square of %d times as much takes %.1f times as long: it would not be seen", times, ratio)
	}
}

var sum int

func square(n int) {
	for range n {
		for range n {
			sum++
		}
	}
}

// TestTextsAreRead holds that a text has the length that was asked for, and its parts differ.
func TestTextsAreRead(t *testing.T) {
	var lengths []int
	Text(t, 1000, "part #\n", func(text string) {
		lengths = append(lengths, len(text))
		if strings.Count(text, "part 7\n") != 1 {
			t.Errorf("parts are alike: %.100q", text)
		}
	})
	if len(lengths) == 0 || lengths[0] < times*1000 {
		t.Errorf("texts of %d bytes were read", lengths)
	}
}
