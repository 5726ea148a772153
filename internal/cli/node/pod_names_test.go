// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
)

func TestFillNamesOnlyWhatHasNone(t *testing.T) {
	t.Parallel()
	names := podNames{"a": {Namespace: "default", Name: "web"}, "b": {Namespace: "default", Name: "other"}, "empty": {}}
	faults := []fault.Finding{
		{Pod: fault.Pod{UID: "a"}}, {Pod: fault.Pod{UID: "b", Namespace: "n", Name: "known"}}, {Pod: fault.Pod{UID: "c"}},
		{Pod: fault.Pod{UID: "empty"}},
	}
	if !fillPodNames(faults, names) {
		t.Error("nothing was filled in")
	}
	want := []fault.Finding{
		{Pod: fault.Pod{UID: "a", Namespace: "default", Name: "web"}}, {Pod: fault.Pod{UID: "b", Namespace: "n", Name: "known"}},
		{Pod: fault.Pod{UID: "c"}}, {Pod: fault.Pod{UID: "empty"}},
	}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if fillPodNames(faults, names) {
		t.Error("something was filled in twice")
	}
}

func TestSourceOfNamesThatHangs(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	defer close(released)
	deaf := nameSource{"deaf", func(context.Context) (podNames, error) { <-released; return nil, nil }}
	if _, err := callWithin(t.Context(), 10*time.Millisecond, deaf.askNames); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
	quick := nameSource{"quick", func(context.Context) (podNames, error) { return podNames{"a": {}}, kubelet.ErrNoRuntime }}
	if names, err := callWithin(t.Context(), time.Minute, quick.askNames); len(names) != 1 || !errors.Is(err, kubelet.ErrNoRuntime) {
		t.Errorf("names %v, error %v, want those of the source", names, err)
	}
}

func TestNoSourceIsAskedWithoutNeed(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]fault.Finding{
		"no faults": nil,
		"all named": {{Pod: fault.Pod{UID: "a", Namespace: "default", Name: "web"}}},
	} {
		s := &scan{} // has no node: asking would panic
		s.addPodNames(t.Context(), faults)
		if len(s.looked.PodNames.Errors) > 0 || len(s.looked.PodNames.From) != len(faults) {
			t.Errorf("%s: names from %q, errors %q", name, s.looked.PodNames.From, s.looked.PodNames.Errors)
		}
	}
}
