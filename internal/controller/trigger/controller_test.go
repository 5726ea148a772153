// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
)

func cronTrigger(schedule string) *v1.Trigger {
	t := &v1.Trigger{}
	t.Name = "nightly"
	t.Spec = v1.TriggerSpec{
		OperationSet: "set", NodeName: "node",
		SourceTemplate: v1.SourceTemplate{CronTemplate: &v1.CronTemplate{Schedule: schedule}},
	}
	return t
}

func TestValidateSchedule(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		schedule string
		ok       bool
	}{
		"five fields":            {"*/5 0-6 1,15 * MON", true},
		"descriptor":             {"@hourly", true},
		"every":                  {"@every 90m", true},
		"time zone":              {"CRON_TZ=UTC 0 3 * * *", true},
		"empty":                  {"", false},
		"six fields":             {"0 0 3 * * *", false},
		"out of range":           {"61 * * * *", false},
		"words":                  {"every night", false},
		"zone only":              {"TZ=UTC", false},
		"zone without its end":   {"CRON_TZ=", false},
		"zone that there is not": {"TZ=Nowhere/Land 0 3 * * *", false},
		"descriptor unknown":     {"@sometimes", false},
		"every nonsense":         {"@every x", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := validate(&cronTrigger(tc.schedule).Spec)
			if (len(errs) == 0) != tc.ok {
				t.Fatalf("errors = %v, want none: %t", errs.ToAggregate(), tc.ok)
			}
			if text := v1.Message(errs); !tc.ok && !strings.Contains(text, `spec.sourceTemplate.cronTemplate.schedule: Invalid value: "`+tc.schedule+`"`) {
				t.Errorf("message = %q", text)
			}
		})
	}
}

// FuzzSchedule: no schedule brings the manager down.
func FuzzSchedule(f *testing.F) {
	for _, seed := range []string{"* * * * *", "TZ=", "CRON_TZ=UTC * * * * *", "@every 1s", "1-2/3,4 * ? L W"} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, schedule string) { _ = checkSchedule(schedule) })
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ schedule, reason string }{
		"valid":   {"@daily", v1.ReasonSourceNotSupported},
		"invalid": {"@never", v1.ReasonInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := cronTrigger(tc.schedule)
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tr).WithStatusSubresource(tr).Build()
			key := types.NamespacedName{Name: tr.Name}
			result, err := (&Reconciler{Client: c}).Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			if err != nil || result.RequeueAfter != 0 {
				t.Fatalf("result = %v, error = %v", result, err)
			}
			var got v1.Trigger
			if err := c.Get(t.Context(), key, &got); err != nil {
				t.Fatal(err)
			}
			if ready := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionReady); ready == nil || ready.Reason != tc.reason || ready.Status != "False" {
				t.Errorf("condition = %+v", ready)
			}
		})
	}
}
