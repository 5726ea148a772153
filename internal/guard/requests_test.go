// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
)

// TestRequestsTakeTurns has a namespace wait with many requests when another comes with one.
func TestRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	const many = 20
	r, asked := newRequests(), []string(nil)
	ask := func(key, namespace string) {
		r.add(key, namespace, func(context.Context) error { asked = append(asked, namespace); return nil })
	}
	for n := range many {
		ask(strconv.Itoa(n), "tenant")
	}
	ask("0", "shop")
	ask("0", "shop") // waits already
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.run(ctx, logr.Discard(), func() {
		if len(asked) == many+1 {
			cancel()
		}
	})
	if at := slices.Index(asked, "shop"); at < 0 || at > 1 || len(asked) != many+1 {
		t.Errorf("%d requests, that of shop at place %d, want %d and one of the first two", len(asked), at, many+1)
	}
}
