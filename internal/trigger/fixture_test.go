// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

const namespace = "kubediag"

// cluster is an API server that is none, and a dispatcher before it.
type cluster struct {
	client.WithWatch
	d *Dispatcher
}

// newCluster has two nodes, a pod on the first, and an OperationSet that declares one parameter.
func newCluster(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *cluster {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "pod-uid"}}
	pod.Spec.NodeName = "n1"
	op := &v1.Operation{ObjectMeta: metav1.ObjectMeta{Name: "op"}}
	path := "/"
	op.Spec.Processor.HTTPServer = &v1.HTTPServer{Address: new("example.org"), Path: &path}
	op.Spec.Parameters = []string{"param.known"}
	set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}}
	set.Spec.AdjacencyList = []v1.Node{{To: []int32{1}}, {ID: 1, Operation: "op"}}
	meta.SetStatusCondition(&set.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue})
	for _, n := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"all": "yes"}}})
	}
	create := funcs.Create
	funcs.Create = func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		o.SetCreationTimestamp(metav1.Now())
		o.SetUID(types.UID("uid of " + o.GetName()))
		if create != nil {
			return create(ctx, c, o, opts...)
		}
		return c.Create(ctx, o, opts...)
	}
	c := kubeclienttest.Builder(t).WithObjects(append(objects, pod, op, set)...).WithInterceptorFuncs(funcs).
		WithIndex(&v1.Diagnosis{}, unfinishedIndex, unfinished).Build()
	return &cluster{c, &Dispatcher{Client: c, Reader: c, Namespace: namespace}}
}

// add stores a Trigger and starts its lane.
func (c *cluster) add(t *testing.T, name string, change func(*v1.TriggerSpec)) *v1.Trigger {
	t.Helper()
	tr := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
	tr.Spec = v1.TriggerSpec{OperationSet: "set", SourceTemplate: v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{}}}
	if change != nil {
		change(&tr.Spec)
	}
	must(t, c.Create(t.Context(), tr))
	c.d.Ensure(tr)
	return tr
}

// start runs the dispatcher to the end of the test, or until the function that it returns stops it.
func (c *cluster) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.d.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func (c *cluster) diagnoses(t *testing.T) []v1.Diagnosis {
	t.Helper()
	var all v1.DiagnosisList
	must(t, c.List(t.Context(), &all, client.InNamespace(namespace)))
	return all.Items
}

// end ends all Diagnoses.
func (c *cluster) end(t *testing.T) {
	t.Helper()
	for _, d := range c.diagnoses(t) {
		d.Status.Phase = v1.DiagnosisSucceeded
		must(t, c.Update(t.Context(), &d))
	}
}

func podCause(key string) Cause {
	return Cause{
		Kind: KindEvent, Key: key, Time: time.Now(), Pod: &v1.PodReference{Namespace: "team", Name: "web"}, PodUID: "pod-uid",
		Annotations: map[string]string{v1.AnnotationKubernetesEvent: "{}"},
	}
}

func nodeCause(key, node string) Cause {
	return Cause{Kind: KindAlert, Key: key, Time: time.Now(), Node: node}
}

var must = kerneltest.Must
