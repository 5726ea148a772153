// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"slices"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// percentile is the time that p of a hundred did not exceed; of 100 it is the longest.
func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

func median(all []time.Duration) time.Duration { return percentile(all, 50) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func TestPercentile(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for i := range time.Duration(1000) {
		all = append(all, 1000-i)
	}
	for p, want := range map[int]time.Duration{0: 1, 50: 501, 99: 991, 100: 1000} {
		if got := percentile(all, p); got != want {
			t.Errorf("percentile %d is %d, want %d", p, got, want)
		}
	}
	if got := median(all[:1]); got != 1000 {
		t.Errorf("the median of one is %d", got)
	}
}

var must = kerneltest.Must
