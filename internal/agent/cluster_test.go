// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// TestCacheSeesOneNode holds that no watch grows with the cluster: whatever is not small by nature has a selector.
func TestCacheSeesOneNode(t *testing.T) {
	t.Parallel()
	scheme, err := kubeclient.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 60) + "." + strings.Repeat("n", 60)
	for _, node := range []string{"n1", long} {
		o := cacheOptions(node)
		selectors := map[string]string{}
		for object, by := range o.ByObject {
			gvk, err := apiutil.GVKForObject(object, scheme)
			if err != nil {
				t.Fatal(err)
			}
			if by.Label != nil {
				selectors[gvk.Kind] = by.Label.String()
			}
			if by.Field != nil {
				selectors[gvk.Kind] = by.Field.String()
			}
		}
		if want := v1.LabelNode + "=" + v1.NodeLabelValue(node); selectors["Diagnosis"] != want {
			t.Errorf("Diagnoses by %q, want %q", selectors["Diagnosis"], want)
		}
		if want := "spec.nodeName=" + node; selectors["Pod"] != want {
			t.Errorf("Pods by %q, want %q", selectors["Pod"], want)
		}
	}
}
