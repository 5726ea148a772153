// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
)

// objectPolicy is a policy of NVSentinel's kubernetes-object-monitor, with the fields that its documents name.
type objectPolicy struct {
	Name            string                  `json:"name"`
	Enabled         bool                    `json:"enabled"`
	Resource        metav1.GroupVersionKind `json:"resource"`
	Predicate       expression              `json:"predicate"`
	NodeAssociation expression              `json:"nodeAssociation"`
	HealthEvent     struct {
		ComponentClass    string   `json:"componentClass"`
		IsFatal           bool     `json:"isFatal"`
		Message           string   `json:"message"`
		RecommendedAction string   `json:"recommendedAction"`
		ErrorCode         []string `json:"errorCode"`
	} `json:"healthEvent"`
}

type expression struct {
	Expression string `json:"expression"`
}

// value is that of the expression for an object, with the variables that NVSentinel has.
func (e expression) value(t *testing.T, object any, now time.Time) any {
	t.Helper()
	text, err := json.Marshal(object)
	must(t, err)
	var resource map[string]any
	must(t, json.Unmarshal(text, &resource))
	env, err := cel.NewEnv(cel.Variable("resource", cel.DynType), cel.Variable("now", cel.TimestampType))
	must(t, err)
	ast, issues := env.Compile(e.Expression)
	must(t, issues.Err())
	program, err := env.Program(ast)
	must(t, err)
	answer, _, err := program.Eval(map[string]any{"resource": resource, "now": now})
	must(t, err)
	return answer.Value()
}

// TestPolicyOfNVSentinel evaluates the policy with MountFaults, in cel-go.
func TestPolicyOfNVSentinel(t *testing.T) {
	t.Parallel()
	var values struct {
		Global map[string]map[string]bool `json:"global"`
		Chart  struct {
			ResyncPeriod string         `json:"resyncPeriod"`
			Policies     []objectPolicy `json:"policies"`
		} `json:"kubernetes-object-monitor"`
	}
	must(t, yaml.UnmarshalStrict(readFile(t, "nvsentinel.yaml"), &values))
	if len(values.Chart.Policies) != 1 {
		t.Fatalf("the file has %d policies", len(values.Chart.Policies))
	}
	policy := values.Chart.Policies[0]
	if kind := (metav1.GroupVersionKind{Group: v1.GroupVersion.Group, Version: v1.GroupVersion.Version, Kind: "MountFault"}); policy.Resource != kind {
		t.Errorf("the policy is of %v", policy.Resource)
	}
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	lasting := metav1.NewTime(now.Add(-11 * time.Minute))
	fresh := metav1.NewTime(now.Add(-9 * time.Minute))
	for name, c := range map[string]struct {
		status v1.MountFaultStatus
		want   bool
	}{
		"needs a person":       {v1.MountFaultStatus{Impact: v1.ImpactNow, Heal: v1.HealPerson, Since: lasting}, true},
		"needs the driver":     {v1.MountFaultStatus{Impact: v1.ImpactNow, Heal: v1.HealDriver, Since: lasting}, true},
		"keeps a pod":          {v1.MountFaultStatus{Impact: v1.ImpactTerminating, Heal: v1.HealPerson, Since: lasting}, true},
		"has begun":            {v1.MountFaultStatus{Impact: v1.ImpactNow, Heal: v1.HealPerson, Since: fresh}, false},
		"can be healed":        {v1.MountFaultStatus{Impact: v1.ImpactNow, Heal: v1.HealSafe, Since: lasting}, false},
		"is healed by itself":  {v1.MountFaultStatus{Impact: v1.ImpactNow, Heal: v1.HealAutomatic, Since: lasting}, false},
		"hurts at next start":  {v1.MountFaultStatus{Impact: v1.ImpactNextStart, Heal: v1.HealPerson, Since: lasting}, false},
		"of a directory alone": {v1.MountFaultStatus{Impact: v1.ImpactCleanup, Heal: v1.HealPerson, Since: lasting}, false},
	} {
		c.status.Node = "worker-7"
		object := v1.MountFault{Status: c.status}
		if got := policy.Predicate.value(t, object, now); got != c.want {
			t.Errorf("a fault that %s: %v, want %v", name, got, c.want)
		}
		if got := policy.NodeAssociation.value(t, object, now); got != "worker-7" {
			t.Errorf("a fault that %s is of node %v", name, got)
		}
	}
}
