// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
)

// TestRequestsOfNamespacesTakeTurns: a tenant has many requests waiting, as one whose repairs ask for slots of many budgets. The request of
// another namespace comes last, and is the second to be made.
func TestRequestsOfNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	const many = 100
	r := newRequests()
	var made []string
	add := func(key, namespace string) {
		r.add(key, namespace, func(context.Context) error {
			made = append(made, namespace+"/"+key)
			return nil
		})
	}
	for i := range many {
		add(fmt.Sprint(i), "tenant")
	}
	add("0", "shop")
	add("0", "shop") // waits already
	ctx, cancel := context.WithCancel(t.Context())
	answers := 0
	r.run(ctx, logr.Discard(), func() {
		if answers++; answers == many+1 {
			cancel()
			r.queue.ShutDown()
		}
	})
	if len(made) != many+1 || made[1] != "shop/0" {
		t.Errorf("%d requests were made: %q…, want that of shop to be the second of %d", len(made), made[:min(3, len(made))], many+1)
	}
}
