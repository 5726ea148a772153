// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// infoOf is the metric of these faults.
func infoOf(t *testing.T, fails error, faults ...client.Object) Info {
	t.Helper()
	return Info{kubeclienttest.Builder(t).WithObjects(faults...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if fails != nil {
				return fails
			}
			return c.List(ctx, list, o...)
		},
	}).Build()}
}

// TestInfo: each pod, volume and code has one series, the worst faults come first, and their number is bounded.
func TestInfo(t *testing.T) {
	t.Parallel()
	one := faultOf("node", 1)
	one.Status.Impact, one.Status.Volume, one.Status.Pod = v1.ImpactNow, "conf", &v1.FaultPod{Namespace: "shop", Name: "web-0"}
	again := one.DeepCopy()
	again.Name, again.Status.Container = "other", "sidecar"
	const want = `# HELP kubediag_fault_info Always 1, for each pod, volume and code that a MountFault names.
# TYPE kubediag_fault_info gauge
kubediag_fault_info{code="StaleSubPath",driver="",impact="Now",target_namespace="shop",target_node="node",target_pod="web-0",volume="conf"} 1
`
	if err := testutil.CollectAndCompare(infoOf(t, nil, one, again), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	var many []client.Object
	for i := range maxInfos {
		f := faultOf(fmt.Sprint("n", i), i)
		f.Status.Impact = v1.ImpactCleanup
		many = append(many, f)
	}
	bounded := infoOf(t, nil, append(many, one)...)
	if n := testutil.CollectAndCount(bounded); n != maxInfos {
		t.Errorf("%d series", n)
	}
	registry, worst := prometheus.NewPedanticRegistry(), 0
	registry.MustRegister(bounded)
	families, err := registry.Gather()
	must(t, err)
	for _, m := range families[0].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == string(v1.ImpactNow) {
				worst++
			}
		}
	}
	if worst != 1 {
		t.Errorf("%d series of the worst fault", worst)
	}
	if n := testutil.CollectAndCount(infoOf(t, errors.New("the cache is not filled"))); n != 0 {
		t.Errorf("%d series of no cache", n)
	}
}

// TestNamespacesShareInfos: a namespace with as many of the worst faults as there are series leaves one to the small fault of another.
func TestNamespacesShareInfos(t *testing.T) {
	t.Parallel()
	small := faultOf("node", 1)
	small.Namespace, small.Name, small.Status.Impact = "shop", "small", v1.ImpactCleanup
	small.Status.Pod = &v1.FaultPod{Namespace: "shop", Name: "web-0"}
	faults := []client.Object{small}
	for i := range maxInfos {
		f := faultOf(fmt.Sprint("n", i), i)
		f.Namespace, f.Status.Impact, f.Status.Pod = "tenant", v1.ImpactNow, &v1.FaultPod{Namespace: "tenant", Name: fmt.Sprint("pod-", i)}
		faults = append(faults, f)
	}
	registry, found := prometheus.NewPedanticRegistry(), 0
	registry.MustRegister(infoOf(t, nil, faults...))
	families, err := registry.Gather()
	must(t, err)
	for _, m := range families[0].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == "shop" {
				found++
			}
		}
	}
	if n := len(families[0].GetMetric()); found != 1 || n != maxInfos {
		t.Errorf("%d series of shop, of %d", found, n)
	}
}

var must = kerneltest.Must
