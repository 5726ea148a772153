// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// AwaitDiagnosis waits until a Diagnosis in the namespace default is as wanted, and says how long that took.
func (e *Env) AwaitDiagnosis(t testing.TB, name string, wanted func(*v1.Diagnosis) bool) *v1.Diagnosis {
	t.Helper()
	began, d := time.Now(), &v1.Diagnosis{}
	e.Wait(t, "Diagnosis "+name, func(ctx context.Context) bool {
		return e.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, d) == nil && wanted(d)
	})
	t.Logf("Diagnosis %s after %.1f s: phase %q, outcome %q", name, time.Since(began).Seconds(), d.Status.Phase, d.Status.Outcome)
	return d
}
