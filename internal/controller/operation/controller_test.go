// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operation

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

func operationOf(t *testing.T, processor string) *v1.Operation {
	t.Helper()
	op := &v1.Operation{}
	op.Name, op.Generation = "op", 3
	if err := yaml.UnmarshalStrict([]byte(processor), &op.Spec.Processor); err != nil {
		t.Fatalf("reading %s: %v", processor, err)
	}
	return op
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		processor      string
		kind           v1.ProcessorKind
		target, reason string
		message        []string
	}{
		"built in": {"{path: /processor/mountInfoCollector, scheme: http}", v1.ProcessorBuiltIn, "mountInfoCollector", v1.ReasonReady, nil},
		"HTTP":     {"{httpServer: {address: a.b, port: 8443, path: /x, scheme: https}}", v1.ProcessorHTTP, "https://a.b:8443/x", v1.ReasonReady, nil},
		"script":   {"{scriptRunner: {script: id}}", v1.ProcessorScript, "", v1.ReasonReady, nil},
		"function": {"{function: {runtime: python3}}", v1.ProcessorFunction, "", v1.ReasonFunctionNotSupported, []string{"spec.processor.function"}},
		"unknown": {
			"{path: /processor/commandExecutor}", v1.ProcessorBuiltIn, "commandExecutor", v1.ReasonBuiltInUnknown,
			[]string{"spec.processor.path", `"/processor/commandExecutor"`, "mountInfoCollector"},
		},
		"lower case": {"{path: /processor/subpathremountdiagnoser}", v1.ProcessorBuiltIn, "subpathremountdiagnoser", v1.ReasonBuiltInUnknown, []string{`"subpathremountdiagnoser"`}},
		"two forms":  {"{path: /x, httpServer: {}}", "", "", v1.ReasonInvalidSpec, []string{"spec.processor", `"path,httpServer"`}},
		"port":       {"{externalIP: 10.0.0.1, externalPort: 70000}", v1.ProcessorHTTP, "", v1.ReasonInvalidSpec, []string{"spec.processor.externalPort", "70000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op := operationOf(t, tc.processor)
			setReady(op)
			s := op.Status
			if s.Kind != tc.kind || s.Target != tc.target || s.ObservedGeneration != 3 {
				t.Errorf("status = %+v", s)
			}
			ready := meta.FindStatusCondition(s.Conditions, v1.ConditionReady)
			if ready.Reason != tc.reason || (ready.Status == "True") != (tc.reason == v1.ReasonReady) || ready.ObservedGeneration != 3 {
				t.Errorf("condition = %+v", ready)
			}
			for _, part := range tc.message {
				if !strings.Contains(ready.Message, part) {
					t.Errorf("message %q does not contain %q", ready.Message, part)
				}
			}
		})
	}
}

// newClient is a client in memory whose status patches return err and are counted.
func newClient(t *testing.T, err error, objects ...client.Object) (client.Client, *int) {
	t.Helper()
	patches := 0
	c := kubeclienttest.Builder(t).WithObjects(objects...).WithStatusSubresource(objects...).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				patches++
				if err != nil {
					return err
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	return c, &patches
}

func TestReconcileWritesOnce(t *testing.T) {
	t.Parallel()
	c, patches := newClient(t, nil, operationOf(t, "{path: /processor/nonsense}"))
	r := &Reconciler{Client: c}
	for range 3 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "op"}})
		if err != nil || result.RequeueAfter != 0 {
			t.Fatalf("an invalid Operation is tried again: %v, %v", result, err)
		}
	}
	if *patches != 1 {
		t.Errorf("%d patches, want 1", *patches)
	}
}

// The error of a write comes back. An Operation that is gone is none.
func TestReconcileMeetsErrors(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	c, _ := newClient(t, refused, operationOf(t, "{path: /processor/mountInfoCollector}"))
	for name, want := range map[string]error{"op": refused, "gone": nil} {
		_, err := (&Reconciler{Client: c}).Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if !errors.Is(err, want) {
			t.Errorf("%s: error = %v, want %v", name, err, want)
		}
	}
}

// ofKubeDiag are the processors that KubeDiag v0.2.0 to v0.3.1 brought with it, and whether they are built in here.
var ofKubeDiag = map[string]bool{
	"commandExecutor": false, "containerCollector": false, "containerdGoroutineCollector": false, "coreFileProfiler": false,
	"dockerInfoCollector": false, "dockerdGoroutineCollector": false, "elasticsearchCollector": false, "goProfiler": false,
	"mountInfoCollector": true, "nodeCordon": false, "podDetailCollector": true, "podListCollector": false, "processCollector": false,
	"sonobuoyResultDiagnoser": false, "statefulsetDetailCollector": false, "statefulsetStuck": false, "subpathRemountDiagnoser": true,
	"subpathRemountRecover": true, "tcpdumpProfiler": false,
}

// TestOperationsOfKubeDiag holds which of KubeDiag's Operations become Ready, and that docs/install.md says so.
func TestOperationsOfKubeDiag(t *testing.T) {
	t.Parallel()
	reason := func(processor string) string {
		op := operationOf(t, processor)
		setReady(op)
		return meta.FindStatusCondition(op.Status.Conditions, v1.ConditionReady).Reason
	}
	got := map[string]bool{}
	for name := range ofKubeDiag {
		flat := reason("{path: /processor/" + name + ", scheme: http, timeoutSeconds: 30}")
		nested := reason("{httpServer: {path: /processor/" + name + ", scheme: http}, timeoutSeconds: 30}")
		if got[name] = flat == v1.ReasonReady; flat != nested || !got[name] && flat != v1.ReasonBuiltInUnknown {
			t.Errorf("%s: %s in the form of v0.2.0, %s in that of v0.3.1", name, flat, nested)
		}
	}
	if diff := cmp.Diff(ofKubeDiag, got); diff != "" {
		t.Errorf("Ready (-want +got):\n%s", diff)
	}
	for processor, want := range map[string]string{
		"{externalIP: 10.0.2.15, externalPort: 80, path: /, scheme: http}":           v1.ReasonReady,
		"{httpServer: {address: a.default.svc, port: 80, path: /, scheme: http}}":    v1.ReasonReady,
		"{scriptRunner: {script: du, argKeys: [dir], operationResultKey: du}}":       v1.ReasonReady,
		"{function: {runtime: python3, codeSource: {handler.py: pass}}}":             v1.ReasonFunctionNotSupported,
		"{externalIP: a.default.svc, externalPort: 80, path: /, timeoutSeconds: 30}": v1.ReasonInvalidSpec,
	} {
		if got := reason(processor); got != want {
			t.Errorf("%s: %s, want %s", processor, got, want)
		}
	}
	for _, file := range []string{"docs/install.md", "docs/install.zh-CN.md"} {
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(ofKubeDiag)) {
			if ofKubeDiag[name] && !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("%s does not say that %s becomes Ready", file, name)
			}
		}
		for _, reason := range []string{v1.ReasonBuiltInUnknown, v1.ReasonFunctionNotSupported} {
			if !strings.Contains(string(text), "`"+reason+"`") {
				t.Errorf("%s does not name the reason %s", file, reason)
			}
		}
	}
}
