// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operation

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
)

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
