// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
)

// An answer does not set what later operations obey.
func TestNoResultIsAParameter(t *testing.T) {
	t.Parallel()
	for _, forged := range [][2]string{
		{"param.x", "2"}, {"param.x", ""}, {"param.y", "true"}, {"param.recover.system.held_device.detach", "true"},
		{processor.ParamPrefix, "x"}, {processor.KeyNode, "node-2"}, {processor.KeyPodName, "other"}, {processor.KeyPodNamespace, "kube-system"},
		{processor.KeyContainer, "other"}, {processor.KeyDiagnosisUID, "other"}, {processor.KeyDiagnosisName, "other"},
		{processor.KeyDiagnosisNamespace, "other"},
	} {
		after := gives("b", "2")
		answer := returns(processor.Result{Values: map[string]string{"a": "1", forged[0]: forged[1]}}, nil)
		report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, answer, after))
		o := report.Operations[0]
		if o.Phase != v1.OperationFailed || o.Reason != reasonStalled || !strings.Contains(o.Message, `"`+forged[0]+`"`) ||
			!strings.Contains(o.Message, `"`+forged[1]+`"`) || answer.calls != 1 {
			t.Errorf("%q: operation %+v, %d calls", forged, o, answer.calls)
		}
		if after.calls != 0 || len(report.Results) != 0 {
			t.Errorf("%q: %d later calls, results %q", forged, after.calls, report.Results)
		}
	}
}

// A server that answers with all that it was sent has said nothing but what is its own.
func TestEchoes(t *testing.T) {
	t.Parallel()
	echo := &fakeProcessor{run: func(_ context.Context, r processor.Request) (processor.Result, error) {
		values := r.Data()
		maps.Copy(values, map[string]string{"a": "changed", "b": "2", processor.KeyContainer: r.Pod.Container})
		return processor.Result{Values: values}, nil
	}}
	dir, last := t.TempDir(), returns(processor.Result{}, nil)
	j := newJob(t, nil, gives("a", "1"), echo, last)
	j.Request.Values = map[string]string{"param.x": "1", "mine": "kept", processor.KeyPodName: "forged"}
	j.Request.Pod.Container = ""
	report := mustRun(t, newRunner(t, dir), j)
	want := map[string]string{"a": "changed", "b": "2", "mine": "kept"}
	if diff := cmp.Diff(want, report.Results); diff != "" || !report.Succeeded {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	want["param.x"], want[processor.KeyPodName] = "1", "forged" // Data overrules it
	if diff := cmp.Diff(want, last.seen); diff != "" {
		t.Errorf("what the last operation saw (-want +got):\n%s", diff)
	}
	if diff := sameEnd(report, mustRun(t, newRunner(t, dir), j)); diff != "" {
		t.Errorf("from the journal (-first +second):\n%s", diff)
	}
}

// knows is a processor that reads one parameter, careful a recoverer that does.
type (
	knows   struct{ *fakeProcessor }
	careful struct{ *unmounter }
)

func (knows) Parameters() []string   { return []string{"param.a.b.only"} }
func (careful) Parameters() []string { return []string{"param.a.b.only"} }

// With a typing error in what narrows a repair, nothing is done at all.
func TestUnknownParametersAreRefused(t *testing.T) {
	t.Parallel()
	for key, refused := range map[string]bool{
		"param.a.b.only": false, "param.a.c.onyl": false, "param.a.bc": false, "param.a.b": false, "a.b.onyl": false,
		"param.a.b.onyl": true, "param.a.b.only.": true, "param.a.b.": true, "param.a.b.Only": true,
	} {
		l, r := gives("a", "1"), &unmounter{kernel: newKernel(7)}
		for name, step := range map[string]any{"processor": knows{l}, "recoverer": careful{r}} {
			j := newJob(t, nil, step)
			j.Request.Values = map[string]string{key: "v"}
			o := mustRun(t, newRunner(t, t.TempDir()), j).Operations[0]
			if (o.Phase == v1.OperationFailed) != refused {
				t.Errorf("%s, %s: %s %q", name, key, o.Phase, o.Message)
			}
			want := `unknown parameter ` + key + `: the parameters of `
			if refused && (o.Reason != reasonStalled || !strings.HasPrefix(o.Message, want) || !strings.HasSuffix(o.Message, "param.a.b.only")) {
				t.Errorf("%s, %s: %s %q", name, key, o.Reason, o.Message)
			}
		}
		if refused && l.calls+r.plans+r.applies > 0 {
			t.Errorf("%s: %d calls, %d plans, %d actions", key, l.calls, r.plans, r.applies)
		}
	}
}
