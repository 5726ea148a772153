// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/metric/metrictest"
)

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*options)
		want   []string // none: valid
	}{
		"defaults":           {func(*options) {}, nil},
		"everything off":     {func(o *options) { o.MetricsBindAddress, o.HealthProbeBindAddress = "0", "0" }, nil},
		"kept for ever":      {func(o *options) { o.DiagnosisTTL, o.DiagnosesPerNode, o.DiagnosisMinimumTTL = 0, 0, 0 }, nil},
		"no namespace":       {func(o *options) { o.Namespace = "" }, []string{"--namespace", "POD_NAMESPACE"}},
		"namespace":          {func(o *options) { o.Namespace = "a.b" }, []string{"--namespace=a.b"}},
		"metrics":            {func(o *options) { o.MetricsBindAddress = "8080" }, []string{"--metrics-bind-address=8080"}},
		"health":             {func(o *options) { o.HealthProbeBindAddress = "" }, []string{"--health-probe-bind-address="}},
		"port":               {func(o *options) { o.MetricsBindAddress = ":70000" }, []string{"--metrics-bind-address=:70000"}},
		"lease":              {func(o *options) { o.AgentLeaseDuration = 0 }, []string{"--agent-lease-duration=0s", "at least 1s"}},
		"check":              {func(o *options) { o.AgentCheckInterval = time.Millisecond }, []string{"--agent-check-interval=1ms"}},
		"negative ages":      {func(o *options) { o.DiagnosisTTL, o.DiagnosisMinimumTTL = -1, -1 }, []string{"--diagnosis-ttl=-1ns", "--minimum-diagnosis-ttl-duration=-1ns"}},
		"negative number":    {func(o *options) { o.DiagnosesPerNode = -1 }, []string{"--maximum-diagnoses-per-node=-1"}},
		"alerts":             {func(o *options) { o.AlertBindAddress = "8443" }, []string{"--alert-bind-address=8443"}},
		"no audience":        {func(o *options) { o.AlertAudiences = nil }, []string{"--alert-token-audiences=", "at least one"}},
		"an empty audience":  {func(o *options) { o.AlertAudiences = []string{"a", ""} }, []string{"--alert-token-audiences=a,"}},
		"half of a pair":     {func(o *options) { o.AlertKeyFile = "k" }, []string{"--alert-tls-cert-file=", "--alert-tls-key-file"}},
		"retention all time": {func(o *options) { o.RetentionInterval = 0 }, []string{"--retention-interval=0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := defaultOptions()
			o.Namespace = "kubediag"
			tc.change(&o)
			err := o.validate()
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("error = %v", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
		})
	}
}

// The flags that KubeDiag had for the same keep their names and defaults.
func TestFlags(t *testing.T) {
	t.Parallel()
	flags := NewCommand().Flags()
	for name, want := range map[string]string{
		"namespace": "", "leader-elect": "true", "metrics-bind-address": ":8080", "health-probe-bind-address": ":8081", "fault-info-metric": "false",
		"diagnosis-ttl": "240h0m0s", "minimum-diagnosis-ttl-duration": "30m0s", "maximum-diagnoses-per-node": "50",
		"agent-lease-duration": "40s", "agent-check-interval": "10s", "retention-interval": "1m0s", "alert-bind-address": "0",
		"alert-tls-cert-file": "", "alert-tls-key-file": "", "alert-secret-file": "", "alert-token-audiences": "[kubediag,api-server]", "kubeconfig": "", "verbosity": "0",
	} {
		if f := flags.Lookup(name); f == nil || f.DefValue != want {
			t.Errorf("--%s = %+v, want default %q", name, f, want)
		}
	}
}

func TestCommandRefuses(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	cmd := NewCommand()
	cmd.SetArgs([]string{"--retention-interval=0"})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--namespace") || !strings.Contains(err.Error(), "--retention-interval") {
		t.Errorf("error = %v", err)
	}
}

// A bad value in the environment is refused as that of a flag would be, with the name of the variable.
func TestCommandReadsTheEnvironment(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "kubediag")
	for name, tc := range map[string]struct{ variable, value string }{
		"a value that is not valid":      {"KUBEDIAG_DIAGNOSIS_TTL", "-1h"},
		"a value that cannot be read":    {"KUBEDIAG_MAXIMUM_DIAGNOSES_PER_NODE", "many"},
		"more than can be logged":        {"KUBEDIAG_VERBOSITY", "11"},
		"the pod's variable is read too": {"POD_NAMESPACE", "a.b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tc.variable, tc.value)
			cmd := NewCommand()
			cmd.SetArgs([]string{})
			ended, stop := context.WithCancel(t.Context())
			stop() // should it run after all
			want := fmt.Sprintf("%s=%q", tc.variable, tc.value)
			if err := cmd.ExecuteContext(ended); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, want %s in it", err, want)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{"--version": "unversioned", "--help": "KUBEDIAG_<FLAG>"} {
		cmd := NewCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs([]string{arg})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q, %v, want %q in it", arg, out.String(), err, want)
		}
	}
}

// The cache holds no results: they are what makes a Diagnosis large.
func TestStripDiagnosis(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	full := func(phase v1.DiagnosisPhase) *v1.Diagnosis {
		d := &v1.Diagnosis{}
		d.Name, d.Labels = "d", map[string]string{v1.LabelNode: "n1"}
		d.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "much", v1.AnnotationApproval: "yes"}
		d.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		d.Spec = v1.DiagnosisSpec{OperationSet: "s", NodeName: "n1", Parameters: map[string]string{"k": "v"}}
		d.Status = v1.DiagnosisStatus{
			Phase: phase, Outcome: v1.OutcomeHealed, StartTime: &now, CompletionTime: &now,
			Conditions:       []metav1.Condition{{Type: v1.ConditionAccepted}},
			OperationResults: map[string]string{"k": "v"}, Operations: []v1.OperationRun{{ID: 1}}, Faults: []v1.Fault{{Code: "x"}},
			Approval:  &v1.ApprovalStatus{PlanHash: "h"},
			Artifacts: []v1.Artifact{{Key: "k"}}, SucceededPath: v1.Path{{ID: 1}}, FailedPaths: []v1.Path{{{ID: 1}}},
		}
		return d
	}
	want := &v1.Diagnosis{}
	want.Name, want.Labels = "d", map[string]string{v1.LabelNode: "n1"}
	want.Spec = v1.DiagnosisSpec{OperationSet: "s", NodeName: "n1"}
	want.Annotations = map[string]string{v1.AnnotationApproval: "yes"}
	want.Status = v1.DiagnosisStatus{
		Phase: v1.DiagnosisFailed, Outcome: v1.OutcomeHealed, StartTime: &now, CompletionTime: &now, Approval: &v1.ApprovalStatus{PlanHash: "h"},
		Conditions: []metav1.Condition{{Type: v1.ConditionAccepted}},
	}
	got, err := strip(full(v1.DiagnosisFailed))
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("ended (-want +got):\n%s%v", diff, err)
	}
	want.Status.Phase, want.Status.Conditions = v1.DiagnosisRunning, []metav1.Condition{{Type: v1.ConditionAccepted}}
	got, err = strip(full(v1.DiagnosisRunning))
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("running (-want +got):\n%s%v", diff, err)
	}
	plan := full(v1.DiagnosisSucceeded)
	plan.Status.Plan = &v1.Plan{Hash: "h", Changes: []string{"much"}}
	for _, label := range []string{v1.LabelOrigin, v1.LabelPlan} {
		d := plan.DeepCopy()
		d.Labels[label] = ""
		_, err := strip(d)
		if diff := cmp.Diff(map[string]*v1.Plan{v1.LabelPlan: {Hash: "h"}}[label], d.Status.Plan); diff != "" || err != nil {
			t.Errorf("plan with label %s (-want +got):\n%s%v", label, diff, err)
		}
	}
	if got, err := strip("something else"); got != "something else" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// Making a manager asks the API server for nothing, and a test may make two.
func TestNewNeedsNoServer(t *testing.T) {
	o := defaultOptions()
	o.Namespace, o.MetricsBindAddress, o.HealthProbeBindAddress = "kubediag", "0", "0"
	for range 2 {
		if _, err := newManager(&rest.Config{Host: "https://192.0.2.1"}, o); err != nil {
			t.Fatalf("making manager: %v", err)
		}
	}
}

// The metrics that are registered are declared, and keep the conventions of Prometheus.
func TestMetrics(t *testing.T) {
	t.Parallel()
	exposed, err := metrics.Registry.Gather()
	must(t, err)
	for _, problem := range metrictest.Problems(exposed, Metrics()) {
		t.Error(problem)
	}
}

// The alerts of the manager are on metrics that it has. A count whose increase is an alert is there from the start.
func TestAlerts(t *testing.T) {
	t.Parallel()
	exposed, err := metrics.Registry.Gather()
	must(t, err)
	rules := metrictest.Alerts(t, "../../config/alerts/kubediag.yaml", "kubediag-manager")
	for _, r := range rules {
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a severity or a text", r.Alert)
		}
		for _, name := range r.Metrics() {
			if !slices.ContainsFunc(Metrics(), func(d metric.Declaration) bool { return d.Name == name }) {
				t.Errorf("%s is on %s, which the manager does not have", r.Alert, name)
			}
			there := slices.ContainsFunc(exposed, func(f *dto.MetricFamily) bool { return f.GetName() == name })
			if strings.Contains(r.Expr, "increase(") && !there {
				t.Errorf("%s does not see the first increase of %s", r.Alert, name)
			}
		}
	}
	if len(rules) < 2 {
		t.Errorf("%d rules", len(rules))
	}
}

var must = kerneltest.Must
