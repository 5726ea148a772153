// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// noon is a Monday.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// named makes a policy. change may be nil.
func named(name string, mode v1.RecoveryMode, change func(*v1.RecoveryPolicy)) *Policy {
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.RecoveryPolicySpec{Mode: mode}}
	if change != nil {
		change(p)
	}
	return Compile(p, fault.Known())
}

func selecting(label string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"is": label}}
}

func labelled(label string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Labels: map[string]string{"is": label}}
}

// stale is a fault of a pod, everything about which is known.
func stale() Fault {
	return Fault{Code: "StaleSubPath", Pod: labelled("pod"), Namespace: labelled("namespace"), Node: labelled("node")}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	automatic := named("automatic", v1.RecoveryAutomatic, nil)
	optOut := func(o *metav1.ObjectMeta) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Labels: o.Labels, Annotations: map[string]string{v1.AnnotationRecovery: "Off"}}
	}
	openBreaker := func(code, pool string) *Policy {
		return named("b", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			n := int32(3)
			p.Spec.Breaker = &v1.RecoveryBreaker{FailedRepairs: &n, NodePoolLabel: "is"}
			p.Status.Breakers = []v1.BreakerStatus{{Code: code, Pool: pool, State: v1.BreakerOpen, Message: "3 repairs"}}
		})
	}
	window := func(schedule string, seconds int32, zone string) *Policy {
		return named("w", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.Windows = []v1.RecoveryWindow{{Schedule: schedule, DurationSeconds: seconds, TimeZone: zone}}
		})
	}
	for name, tc := range map[string]struct {
		fault     func(*Fault)
		policies  []*Policy
		otherwise v1.RecoveryMode
		want      v1.RecoveryMode
		why       string // is in the reason
		policyNum int
	}{
		"no policy":              {want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"no policy, by the flag": {otherwise: v1.RecoveryAutomatic, want: v1.RecoveryAutomatic, why: "no RecoveryPolicy"},
		"a policy of lowest rank": {
			policies: []*Policy{named("a", v1.RecoveryObserve, nil)}, otherwise: v1.RecoveryAutomatic,
			want: v1.RecoveryObserve, why: "policy a has mode Observe", policyNum: 1,
		},
		"one":               {policies: []*Policy{automatic}, want: v1.RecoveryAutomatic, why: "allowed by policy automatic", policyNum: 1},
		"plan":              {policies: []*Policy{named("a", v1.RecoveryPlan, nil), named("b", v1.RecoveryApprove, nil)}, want: v1.RecoveryPlan, why: "policy a has mode Plan", policyNum: 2},
		"approval":          {policies: []*Policy{named("a", v1.RecoveryApprove, nil)}, want: v1.RecoveryApprove, why: "policy a wants approval", policyNum: 1},
		"off":               {policies: []*Policy{automatic, named("a", v1.RecoveryOff, nil)}, want: v1.RecoveryOff, why: "policy a has mode Off", policyNum: 2},
		"contradiction":     {policies: []*Policy{automatic, named("z", v1.RecoveryObserve, nil), named("a", v1.RecoveryApprove, nil)}, want: v1.RecoveryObserve, why: "policy z", policyNum: 3},
		"paused":            {policies: []*Policy{automatic, named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.Paused = true })}, want: v1.RecoveryObserve, why: "policy a is paused", policyNum: 2},
		"another code":      {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.FaultCodes = []string{"HungMount"} })}, want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"this code":         {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.FaultCodes = []string{"StaleSubPath"} })}, want: v1.RecoveryAutomatic, policyNum: 1},
		"another pod":       {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.PodSelector = selecting("x") })}, want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"another namespace": {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.NamespaceSelector = selecting("x") })}, want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"another node":      {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) { p.Spec.NodeSelector = selecting("x") })}, want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"all selectors": {policies: []*Policy{named("a", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.PodSelector, p.Spec.NamespaceSelector, p.Spec.NodeSelector = selecting("pod"), selecting("namespace"), selecting("node")
		})}, want: v1.RecoveryAutomatic, policyNum: 1},
		"no pod, a selector":  {fault: func(f *Fault) { f.Pod, f.Namespace = nil, nil }, policies: []*Policy{named("a", v1.RecoveryOff, func(p *v1.RecoveryPolicy) { p.Spec.PodSelector = &metav1.LabelSelector{} })}, want: v1.RecoveryObserve, why: "no RecoveryPolicy"},
		"no pod, no selector": {fault: func(f *Fault) { f.Pod, f.Namespace = nil, nil }, policies: []*Policy{named("a", v1.RecoveryOff, nil)}, want: v1.RecoveryOff, policyNum: 1},
		"pod opts out":        {fault: func(f *Fault) { f.Pod = optOut(f.Pod) }, policies: []*Policy{automatic}, want: v1.RecoveryObserve, why: "the pod has the annotation", policyNum: 1},
		"namespace opts out":  {fault: func(f *Fault) { f.Namespace = optOut(f.Namespace) }, policies: []*Policy{automatic}, want: v1.RecoveryObserve, why: "the namespace has the annotation", policyNum: 1},
		"opts out of a flag":  {fault: func(f *Fault) { f.Pod = optOut(f.Pod) }, otherwise: v1.RecoveryAutomatic, want: v1.RecoveryObserve, why: "the pod"},
		"namespace unknown":   {fault: func(f *Fault) { f.Namespace = nil }, policies: []*Policy{automatic}, want: v1.RecoveryObserve, why: "namespace are not known", policyNum: 1},
		"node unknown":        {fault: func(f *Fault) { f.Node = nil }, policies: []*Policy{automatic, named("a", v1.RecoveryObserve, func(p *v1.RecoveryPolicy) { p.Spec.NodeSelector = selecting("x") })}, want: v1.RecoveryObserve, why: "node are not known", policyNum: 1},
		"a bad policy": {policies: []*Policy{automatic, named("bad", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.Windows = []v1.RecoveryWindow{{Schedule: "nonsense", DurationSeconds: 60}}
		})}, want: v1.RecoveryObserve, why: "policy bad is invalid", policyNum: 2},
		"a bad policy of others": {policies: []*Policy{automatic, named("bad", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.Windows, p.Spec.PodSelector = []v1.RecoveryWindow{{Schedule: "nonsense", DurationSeconds: 60}}, selecting("x")
		})}, want: v1.RecoveryAutomatic, policyNum: 1},
		"a selector that cannot be read": {policies: []*Policy{automatic, named("bad", v1.RecoveryOff, func(p *v1.RecoveryPolicy) {
			p.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		})}, want: v1.RecoveryAutomatic, policyNum: 1},
		"breaker open":              {policies: []*Policy{openBreaker("StaleSubPath", "node")}, want: v1.RecoveryObserve, why: "3 repairs", policyNum: 1},
		"breaker of another pool":   {policies: []*Policy{openBreaker("StaleSubPath", "")}, want: v1.RecoveryAutomatic, policyNum: 1},
		"breaker of another fault":  {policies: []*Policy{openBreaker("HungMount", "node")}, want: v1.RecoveryAutomatic, policyNum: 1},
		"in a window":               {policies: []*Policy{window("30 11 * * MON", 3600, "")}, want: v1.RecoveryAutomatic, policyNum: 1},
		"a window begins":           {policies: []*Policy{window("0 12 * * *", 60, "")}, want: v1.RecoveryAutomatic, policyNum: 1},
		"a window has ended":        {policies: []*Policy{window("0 11 * * *", 3600, "")}, want: v1.RecoveryObserve, why: "windows", policyNum: 1},
		"a window of another zone":  {policies: []*Policy{window("0 13 * * *", 60, "Europe/Berlin")}, want: v1.RecoveryAutomatic, policyNum: 1},
		"a day that there is not":   {policies: []*Policy{window("0 0 31 2 *", 604800, "")}, want: v1.RecoveryObserve, why: "windows", policyNum: 1},
		"off is stronger than wish": {fault: func(f *Fault) { f.Pod = optOut(f.Pod) }, policies: []*Policy{named("a", v1.RecoveryOff, nil)}, want: v1.RecoveryOff, policyNum: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := stale()
			if tc.fault != nil {
				tc.fault(&f)
			}
			if tc.otherwise == "" {
				tc.otherwise = v1.RecoveryObserve
			}
			d := Decide(f, tc.policies, tc.otherwise, noon)
			if d.Mode != tc.want || !strings.Contains(d.Why, tc.why) || d.Why == "" || len(d.Policies) != tc.policyNum {
				t.Errorf("%s, %q, policies %v, want %s, %q, %d", d.Mode, d.Why, d.Names(), tc.want, tc.why, tc.policyNum)
			}
		})
	}
}

func TestDecisionNeedsWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	f := stale()
	f.Namespace, f.Node = nil, nil
	if d := Decide(f, nil, v1.RecoveryObserve, noon); d.NeedsNamespace || d.NeedsNode {
		t.Errorf("nothing can be repaired, and is wanted: %+v", d)
	}
	if d := Decide(f, nil, v1.RecoveryAutomatic, noon); !d.NeedsNamespace || d.Mode != v1.RecoveryObserve {
		t.Errorf("the namespace may opt out: %+v", d)
	}
}

func TestSamplesAreValid(t *testing.T) {
	t.Parallel()
	const dir = "../../config/samples/"
	names, err := filepath.Glob(dir + "recoverypolicies/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("list samples: %q, %v", names, err)
	}
	for _, name := range append(names, dir+"recovery-pause.yaml") {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(content), "\nkind: ") != 1 {
			t.Errorf("%s turns on more than one thing", name)
		}
		p := &v1.RecoveryPolicy{}
		if err := yaml.UnmarshalStrict(content, p); err != nil || len(Compile(p, fault.Known()).Problems) > 0 {
			t.Errorf("%s: %v, %v", name, err, Compile(p, fault.Known()).Problems)
		}
	}
}

func TestPausedAndOptOut(t *testing.T) {
	t.Parallel()
	f := stale()
	f.Pod.Annotations = map[string]string{v1.AnnotationRecovery: "off"}
	paused := named("p", v1.RecoveryOff, func(p *v1.RecoveryPolicy) { p.Spec.Paused = true })
	if d := Decide(f, []*Policy{paused}, v1.RecoveryObserve, noon); d.Paused != "p" || d.OptOut.Why == "" {
		t.Errorf("%+v", d)
	}
}

func TestOverrules(t *testing.T) {
	t.Parallel()
	all := named("all", v1.RecoveryObserve, nil)
	some := named("some", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
		p.Spec.FaultCodes, p.Spec.PodSelector = []string{"StaleSubPath"}, selecting("pod")
	})
	same := named("same", v1.RecoveryObserve, func(p *v1.RecoveryPolicy) { p.Spec.PodSelector = selecting("pod") })
	other := named("other", v1.RecoveryObserve, func(p *v1.RecoveryPolicy) { p.Spec.PodSelector = selecting("x") })
	code := named("code", v1.RecoveryObserve, func(p *v1.RecoveryPolicy) { p.Spec.FaultCodes = []string{"HungMount"} })
	for _, p := range []*Policy{all, same} {
		if !p.Overrules(some) || some.Overrules(p) {
			t.Errorf("%s", p.Object.Name)
		}
	}
	for _, p := range []*Policy{other, code, some} {
		if p.Overrules(some) {
			t.Errorf("%s overrules it", p.Object.Name)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	n, zero := int32(1), int32(0)
	for name, tc := range map[string]struct {
		spec v1.RecoveryPolicySpec
		want string // empty: valid
	}{
		"valid":    {v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, Breaker: &v1.RecoveryBreaker{FailedRepairs: &n}}, ""},
		"mode":     {v1.RecoveryPolicySpec{Mode: "Sometimes"}, "spec.mode"},
		"code":     {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, FaultCodes: []string{"Broken"}}, "spec.faultCodes[0]"},
		"breaker":  {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Breaker: &v1.RecoveryBreaker{}}, "spec.breaker"},
		"label":    {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Breaker: &v1.RecoveryBreaker{FailedRepairs: &n, NodePoolLabel: "a b"}}, "nodePoolLabel"},
		"budget":   {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Budgets: &v1.RecoveryBudgets{Workload: &v1.RepairBudget{AtOnce: 1}}}, "spec.budgets.workload.perHour"},
		"share":    {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Budgets: &v1.RecoveryBudgets{Namespace: &v1.RepairBudget{AtOnce: 1, PerHour: 1}}}, "spec.budgets.node: Required"},
		"age":      {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, MaximumStalenessSeconds: &zero}, "maximumStalenessSeconds"},
		"schedule": {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Windows: []v1.RecoveryWindow{{Schedule: "TZ=UTC", DurationSeconds: 60}}}, "spec.windows[0].schedule"},
		"evict":    {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Escalation: &v1.RecoveryEscalation{Evict: &v1.EvictEscalation{AfterSeconds: 59}}}, "spec.escalation.evict.afterSeconds: Invalid value: 59"},
		"cordon":   {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Escalation: &v1.RecoveryEscalation{Cordon: &v1.CordonEscalation{AfterSeconds: 604801}}}, "spec.escalation.cordon.afterSeconds: Invalid value: 604801"},
		"pods":     {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Escalation: &v1.RecoveryEscalation{Cordon: &v1.CordonEscalation{AfterSeconds: 60, MinimumPods: &zero}}}, "spec.escalation.cordon.minimumPods: Invalid value: 0"},
		"nodes":    {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Escalation: &v1.RecoveryEscalation{Cordon: &v1.CordonEscalation{AfterSeconds: 60, MaximumNodes: &zero}}}, "spec.escalation.cordon.maximumNodes: Invalid value: 0"},
		"duration": {v1.RecoveryPolicySpec{Mode: v1.RecoveryOff, Windows: []v1.RecoveryWindow{{Schedule: "@daily"}}}, "durationSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems := Compile(&v1.RecoveryPolicy{Spec: tc.spec}, fault.Known()).Problems
			if (len(problems) == 0) != (tc.want == "") || !strings.Contains(v1.Message(problems), tc.want) {
				t.Errorf("%v, want %q", problems, tc.want)
			}
		})
	}
	never := named("n", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
		p.Spec.Windows = []v1.RecoveryWindow{{Schedule: "0 0 31 2 *", DurationSeconds: 60}}
	})
	if !never.NeverOpens(noon) || named("a", v1.RecoveryAutomatic, nil).NeverOpens(noon) {
		t.Error("a window that never opens")
	}
}

// TestAddedFaultIsSelected: a code that the catalogue has is no problem, and a policy without codes selects it.
func TestAddedFaultIsSelected(t *testing.T) {
	t.Parallel()
	known := append(slices.Clone(fault.Known()), fault.Entry{Code: "AddedFault"})
	named := &v1.RecoveryPolicy{Spec: v1.RecoveryPolicySpec{Mode: v1.RecoveryObserve, FaultCodes: []string{"AddedFault"}}}
	if problems := Compile(named, known).Problems; len(problems) > 0 {
		t.Errorf("problems %v", problems)
	}
	if len(Compile(named, fault.Known()).Problems) == 0 {
		t.Error("a code that the catalogue does not have is no problem")
	}
	if codes := Compile(&v1.RecoveryPolicy{}, known).codes(); !slices.Contains(codes, "AddedFault") {
		t.Errorf("a policy without codes selects %q", codes)
	}
}

// escalating is a policy that escalates after so many seconds, 0: not.
func escalating(name string, evict, cordon int32, pods *int32) *Policy {
	return named(name, v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
		p.Spec.Escalation = &v1.RecoveryEscalation{}
		if evict > 0 {
			p.Spec.Escalation.Evict = &v1.EvictEscalation{AfterSeconds: evict}
		}
		if cordon > 0 {
			p.Spec.Escalation.Cordon = &v1.CordonEscalation{AfterSeconds: cordon, MinimumPods: pods}
		}
	})
}

// TestMostCarefulEscalation: all policies that select a fault want it, and the greatest of their bounds holds.
func TestMostCarefulEscalation(t *testing.T) {
	t.Parallel()
	five := int32(5)
	none := named("none", v1.RecoveryAutomatic, nil)
	for name, tc := range map[string]struct {
		policies []*Policy
		evict    time.Duration // 0: not
		by       string
		cordon   Cordon // no time: not
	}{
		"no policy":    {},
		"both":         {policies: []*Policy{escalating("a", 60, 120, nil)}, evict: time.Minute, cordon: Cordon{2 * time.Minute, 3}},
		"the greatest": {policies: []*Policy{escalating("a", 60, 300, nil), escalating("b", 120, 120, &five)}, evict: 2 * time.Minute, cordon: Cordon{5 * time.Minute, 5}},
		"one does not": {policies: []*Policy{escalating("a", 60, 60, nil), none}, by: "none"},
		"one in part":  {policies: []*Policy{escalating("a", 60, 60, nil), escalating("b", 60, 0, nil)}, evict: time.Minute},
		"of the other": {policies: []*Policy{escalating("a", 60, 60, nil), escalating("b", 0, 60, nil)}, by: "b", cordon: Cordon{time.Minute, 3}},
		"an empty one": {policies: []*Policy{escalating("a", 0, 0, nil)}, by: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, ok, by := EvictAfter(tc.policies)
			if after != tc.evict || ok != (tc.evict > 0) || by != tc.by {
				t.Errorf("evict after %s, %t, by %q", after, ok, by)
			}
			if c, ok := CordonOf(tc.policies); c != tc.cordon || ok != (tc.cordon.After > 0) {
				t.Errorf("cordon %+v, %t", c, ok)
			}
		})
	}
}
