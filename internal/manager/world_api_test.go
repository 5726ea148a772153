// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	apitest.Main(m)
}

// onServers runs a test against both API servers, with a manager that has its own Role and no other rights.
func onServers(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run(apitest.Version(), func(t *testing.T) { test(t, newWorld(t, apitest.Start(t))) })
	t.Run("1.18", func(t *testing.T) { test(t, newWorld(t, apitest.StartOld(t))) })
}

// world is an API server, a namespace in it for everything, and the manager's options.
type world struct {
	*apitest.Env
	ns      string
	options options
	config  *rest.Config
	sent    *apitest.Requests
}

func newWorld(t testing.TB, env *apitest.Env) *world {
	t.Helper()
	w := &world{Env: env, ns: env.Namespace(t), options: defaultOptions()}
	w.options.Namespace = w.ns
	w.options.MetricsBindAddress, w.options.HealthProbeBindAddress = "0", "0"
	w.options.AgentCheckInterval = 500 * time.Millisecond
	w.options.TriggerInterval = 200 * time.Millisecond
	w.config = env.Limited(t, "manager", w.ns)
	w.sent = apitest.Record(w.config)
	return w
}

// run runs a manager until stop is called, or the test has ended.
func (w *world) run(t testing.TB) (m manager.Manager, stop func()) {
	t.Helper()
	m, err := newManager(w.config, w.options)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- kubeclient.Run(ctx, m) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

// writes lists the paths to which the manager has written, as far as they have this part.
func (w *world) writes(part string) (paths []string) {
	for _, r := range w.sent.To(part) {
		if r.Method != http.MethodGet {
			paths = append(paths, r.Path)
		}
	}
	return paths
}

func (w *world) node(t testing.TB) string {
	t.Helper()
	n := &corev1.Node{}
	n.GenerateName = "node-"
	w.MustCreate(t, n)
	return n.Name
}

// pod makes a pod that has a node already, or none where node is empty.
func (w *world) pod(t testing.TB, node string) *v1.PodReference {
	t.Helper()
	p := w.newPod(node)
	w.MustCreate(t, p)
	return &v1.PodReference{Namespace: p.Namespace, Name: p.Name, Container: "web"}
}

// newPod is one that is not created yet.
func (w *world) newPod(node string) *corev1.Pod {
	p := &corev1.Pod{}
	p.GenerateName, p.Namespace = "pod-", w.ns
	no := int64(0)
	p.Spec = corev1.PodSpec{
		NodeName: node, TerminationGracePeriodSeconds: &no, Containers: []corev1.Container{{Name: "web", Image: "none"}},
	}
	return p
}

func (w *world) diagnose(t testing.TB, spec v1.DiagnosisSpec) *v1.Diagnosis {
	t.Helper()
	d := &v1.Diagnosis{}
	d.GenerateName, d.Namespace, d.Spec = "d-", w.ns, spec
	if d.Spec.OperationSet == "" {
		d.Spec.OperationSet = "set"
	}
	w.MustCreate(t, d)
	return d
}

func condition(conditions []metav1.Condition, kind, reason string) bool {
	c := meta.FindStatusCondition(conditions, kind)
	return c != nil && c.Reason == reason
}

// renew is what an agent does to its Lease.
func (w *world) renew(t testing.TB, node string, seconds int32) {
	t.Helper()
	l := &coordinationv1.Lease{}
	l.Namespace, l.Name = w.ns, v1.AgentLeaseName(node)
	ctx := context.WithoutCancel(t.Context()) // an agent renews until it is stopped
	_ = w.Client.Get(ctx, client.ObjectKeyFromObject(l), l)
	now := metav1.NowMicro()
	l.Labels = map[string]string{v1.LabelAgent: v1.NodeLabelValue(node)}
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now}
	if l.ResourceVersion == "" {
		w.MustCreate(t, l)
	} else if err := w.Client.Update(ctx, l); err != nil {
		t.Fatal(err)
	}
}

// agent is alive until the test ends or stop is called.
func (w *world) agent(t testing.TB, node string) (stop func()) {
	t.Helper()
	w.renew(t, node, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() {
		defer close(done)
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				w.renew(t, node, 1)
			}
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (w *world) warned(t testing.TB, o client.Object, reason string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		var events corev1.EventList
		if err := w.Client.List(t.Context(), &events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.UID == o.GetUID() && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("no Event %s on %s among %d", reason, o.GetName(), len(events.Items))
	})
}

// accept is what an agent writes when it takes a Diagnosis.
func (w *world) accept(t testing.TB, d *v1.Diagnosis) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		before := d.DeepCopy()
		now := metav1.Now()
		d.Status.Phase, d.Status.StartTime = v1.DiagnosisRunning, &now
		d.Status.OperationResults = map[string]string{"collector.system.mountinfo": "much"}
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
			Type: v1.ConditionAccepted, Status: "True", Reason: v1.ReasonAccepted, Message: "Diagnosis is accepted by agent on node x",
		})
		return w.Client.Status().Patch(t.Context(), d, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// verdict waits until the object has been refused for the reason, and gives the message.
func (w *world) verdict(t testing.TB, kind string, key client.ObjectKey, reason string) (message string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		conditions, name, err := w.conditions(t.Context(), kind, key)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(conditions, name)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return fmt.Errorf("condition = %+v, want reason %s", c, reason)
		}
		message = c.Message
		return nil
	})
	return message
}

func (w *world) conditions(ctx context.Context, kind string, key client.ObjectKey) ([]metav1.Condition, string, error) {
	switch kind {
	case "Operation":
		var o v1.Operation
		err := w.Client.Get(ctx, key, &o)
		return o.Status.Conditions, v1.ConditionReady, err
	case "OperationSet":
		var o v1.OperationSet
		err := w.Client.Get(ctx, key, &o)
		return o.Status.Conditions, v1.ConditionReady, err
	case "Trigger":
		var o v1.Trigger
		err := w.Client.Get(ctx, key, &o)
		return o.Status.Conditions, v1.ConditionReady, err
	}
	var o v1.Diagnosis
	err := w.Client.Get(ctx, key, &o)
	if err == nil && (o.Status.Phase != v1.DiagnosisFailed || o.Status.Outcome != v1.OutcomeError || o.Status.CompletionTime == nil) {
		err = fmt.Errorf("status = %+v", o.Status)
	}
	return o.Status.Conditions, v1.ConditionComplete, err
}
