// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
)

// fuzzTries is how often a fuzz test is run whose time was taken for a failure.
const fuzzTries = 3

// goFuzz runs one fuzz test and passes its result to the report.
func goFuzz(ctx context.Context, r *report, args []string) error {
	for try := 1; ; try++ {
		var said bytes.Buffer
		one := newReport(&said)
		err := goTest(ctx, one, args)
		if err == nil && try < fuzzTries && one.counts.failed == 1 && ranOut(said.String()) {
			continue
		}
		r.add(one, said.Bytes())
		return err
	}
}

// ranOut reports whether a fuzz test failed only because its time is over. CoordinateFuzzing of Go's internal/fuzz
// takes that for a failure if it learns of it before the context below the one that has the deadline does. A real
// failure names the file of its input.
func ranOut(said string) bool {
	over := false
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		switch {
		case line == "context deadline exceeded":
			over = true
		case line != "" && !strings.HasPrefix(line, "fuzz: elapsed: ") && !strings.HasPrefix(line, "FAIL  "):
			return false
		}
	}
	return over
}
