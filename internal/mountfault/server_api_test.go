// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package mountfault

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	apitest.Main(m)
}

// servers are the two API servers.
var servers = map[string]func(testing.TB) *apitest.Env{apitest.Version(): apitest.Start, "1.18": apitest.StartOld}

// realNode is a node with a real API server, whose agent has the rights of the manifests.
type realNode struct {
	*testNode
	env    *apitest.Env
	config *rest.Config
	ns     string
	sent   *apitest.Requests
}

// shortInterval is the interval between two writes in these tests.
const shortInterval = time.Second

func newRealNode(t *testing.T, env *apitest.Env) *realNode {
	t.Helper()
	ns := env.Namespace(t)
	n := &realNode{testNode: &testNode{pods: map[string]*corev1.Pod{}}, env: env, ns: ns, config: env.Limited(t, "agent", ns)}
	apitest.Eventually(t, func() error { // its role is new to the API server
		return clientOf(t, n.config).List(t.Context(), &v1.MountFaultList{})
	})
	n.sent = apitest.Record(n.config)
	n.Writer = n.realWriter(t, "n-"+ns)
	return n
}

func clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme, err := kubeclient.NewScheme()
	must(t, err)
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	return client.WithFieldValidation(c, metav1.FieldValidationStrict)
}

func (n *realNode) realWriter(t *testing.T, node string) *Writer {
	t.Helper()
	c := clientOf(t, n.config)
	return New(Options{
		Node: node, Namespace: n.ns, Client: c, Reader: c, Diagnoses: c, Pods: n, Events: n, Log: logr.Discard(), Faults: n.faults,
		Interval: shortInterval,
	})
}

// run has the Writer run until the test ends or stop is called.
func (n *realNode) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	w := n.Writer
	go func() { done <- w.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// realPod makes a pod of the node.
func (n *realNode) realPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.ns, Name: name},
		Spec:       corev1.PodSpec{NodeName: n.Node, Containers: []corev1.Container{{Name: "app", Image: "i"}}},
	}
	must(t, n.env.Client.Create(t.Context(), p))
	n.testNode.mu.Lock()
	defer n.testNode.mu.Unlock()
	n.pods[string(p.UID)] = p
	return p
}

// all lists the MountFaults of the namespace.
func (n *realNode) all(t *testing.T) []v1.MountFault {
	t.Helper()
	var list v1.MountFaultList
	must(t, n.env.Client.List(context.WithoutCancel(t.Context()), &list, client.InNamespace(n.ns)))
	return list.Items
}

func (n *realNode) awaitCount(t *testing.T, want int) []v1.MountFault {
	t.Helper()
	var all []v1.MountFault
	apitest.Eventually(t, func() error {
		if all = n.all(t); len(all) != want {
			return fmt.Errorf("%d MountFaults, want %d", len(all), want)
		}
		return nil
	})
	return all
}

// requested counts the requests by their verb.
func (n *realNode) requested() map[string]int {
	counts := map[string]int{}
	for _, r := range n.sent.To("/mountfaults") {
		counts[r.Method]++
	}
	return counts
}

// during calls do again and again for a time.
func during(long time.Duration, do func()) {
	for until := time.Now().Add(long); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		do()
	}
}

// TestOnAServer: a healthy node costs one list; a fault comes, changes and goes; the next agent finds what is left.
func TestOnAServer(t *testing.T) {
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			n := newRealNode(t, start(t))
			stop := n.run(t)
			during(3*shortInterval, n.Changed)
			if diff := cmp.Diff(map[string]int{"GET": 1}, n.requested()); diff != "" {
				t.Errorf("requests of a healthy node (-want +got):\n%s", diff)
			}
			f := stale(n.realPod(t, "web"), "app")
			n.set(f)
			first := n.awaitCount(t, 1)[0]
			if s := first.Status; s.Impact != v1.ImpactNextStart || s.Summary == "" || len(s.Commands) == 0 || s.Since.IsZero() || s.Pod.Name != "web" {
				t.Errorf("status %+v", s)
			}
			worse, turn := down(f), 0
			during(4*shortInterval, func() {
				turn++
				n.set([]*sentinel.Fault{f, worse}[turn/20%2])
			})
			n.checkIntervals(t)
			n.set(worse)
			apitest.Eventually(t, func() error {
				if s := n.all(t)[0].Status; s.Impact != v1.ImpactNow {
					return fmt.Errorf("impact %s", s.Impact)
				}
				return nil
			})
			stop()

			n.looking(fault.StaleSubPath)
			n.set()
			n.Writer = n.realWriter(t, n.Node)
			stop = n.run(t)
			before := n.requested()
			during(3*shortInterval, n.Changed) // it is not known yet if the fault is there
			if after := n.requested(); after["DELETE"]+after["PATCH"]+after["POST"] != before["DELETE"]+before["PATCH"]+before["POST"] {
				t.Errorf("requests of an agent that does not know: %v, before: %v", after, before)
			}
			n.looking()
			n.Changed()
			n.awaitCount(t, 0)
			stop()
		})
	}
}

// checkIntervals: no two writes of the one object are closer than the interval.
func (n *realNode) checkIntervals(t *testing.T) {
	t.Helper()
	var last time.Time
	patches := 0
	for _, r := range n.sent.To("/mountfaults") {
		if r.Method == http.MethodGet {
			continue
		}
		if after := r.At.Sub(last); after < shortInterval-100*time.Millisecond {
			t.Errorf("%s %s after the write before it", r.Method, after)
		}
		last = r.At
		if r.Method == http.MethodPatch {
			patches++
		}
	}
	if patches < 2 {
		t.Errorf("requests: %v", n.requested())
	}
}

// TestThreeHundredFaults have 200 objects and one that counts the rest.
func TestThreeHundredFaults(t *testing.T) {
	n := newRealNode(t, apitest.Start(t))
	var all []*sentinel.Fault
	for i := range 300 {
		all = append(all, stale(n.realPod(t, fmt.Sprint("web-", i)), "app"))
	}
	n.run(t)
	n.set(all...)
	objects := n.awaitCount(t, 201)
	i := slices.IndexFunc(objects, func(f v1.MountFault) bool { return f.Status.Code == v1.UnlistedFaults })
	if i < 0 || objects[i].Status.Unlisted != 100 {
		t.Errorf("no object counts the 100 others")
	}
	n.set()
	n.awaitCount(t, 0)
}

// TestTwoNodes: the agent of one node changes nothing of another's, also where the label is forged.
func TestTwoNodes(t *testing.T) {
	n := newRealNode(t, apitest.Start(t))
	other := newRealNode(t, n.env)
	other.ns, other.Writer = n.ns, other.realWriter(t, "other-"+n.ns)
	other.Namespace = n.ns
	other.run(t)
	other.set(stale(other.realPod(t, "theirs"), "app"))
	theirs := n.awaitCount(t, 1)[0]
	theirs.Labels[v1.LabelNode] = n.Node
	must(t, n.env.Client.Update(t.Context(), &theirs))
	n.run(t)
	n.set(stale(n.realPod(t, "ours"), "app"))
	n.awaitCount(t, 2)
	n.set()
	left := n.awaitCount(t, 1)
	if left[0].Status.Node != other.Node {
		t.Errorf("left: %+v", left)
	}
}
