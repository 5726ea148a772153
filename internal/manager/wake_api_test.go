// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

const (
	wokenAt    = "diagnosis.kubediag.org/woken-at"
	annotators = "kubediag-manager-annotator-" // the ClusterRole, before the namespace of a world
)

// repaired is a Diagnosis of a pod that an agent has accepted, and the pod.
func (w *world) repaired(t *testing.T) (*v1.Diagnosis, *corev1.Pod) {
	t.Helper()
	node := w.node(t)
	w.agent(t, node)
	ref := w.pod(t, node)
	d := w.diagnose(t, v1.DiagnosisSpec{PodReference: ref})
	w.until(t, d, func() bool { return d.Labels[v1.LabelNode] == node })
	w.accept(t, d)
	p := &corev1.Pod{}
	if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, p); err != nil {
		t.Fatal(err)
	}
	p.Annotations = map[string]string{"there": "before"}
	if err := w.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return d, p
}

// request is what an agent writes when it asks to wake the kubelet.
func (w *world) request(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		before := d.DeepCopy()
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
			Type: v1.ConditionKubeletWoken, Status: metav1.ConditionUnknown, Reason: v1.ReasonWakeRequested,
			Message: time.Now().Format(time.RFC3339Nano),
		})
		return w.Client.Status().Patch(t.Context(), d, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// answered waits for what the manager says to that.
func (w *world) answered(t *testing.T, d *v1.Diagnosis) *metav1.Condition {
	t.Helper()
	var answer *metav1.Condition
	w.until(t, d, func() bool {
		answer = meta.FindStatusCondition(d.Status.Conditions, v1.ConditionKubeletWoken)
		return answer != nil && answer.Status != metav1.ConditionUnknown
	})
	return answer
}

// TestWakingChangesThePodTwice shows what a kubelet sees: two changes of the annotations, after which the pod is as it was.
// Of the Diagnosis nothing is changed but the answer.
func TestWakingChangesThePodTwice(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		d, p := w.repaired(t)
		seen, err := apitest.Clientset(t, w.Config).CoreV1().Pods(p.Namespace).Watch(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=" + p.Name, ResourceVersion: p.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer seen.Stop()
		for range 2 {
			w.request(t, d)
			if c := w.answered(t, d); c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonWoken {
				t.Errorf("answer %+v", c)
			}
			for _, want := range []bool{true, false} {
				now := next(t, seen)
				if (now.Annotations[wokenAt] != "") != want {
					t.Errorf("annotations %v, want one more: %v", now.Annotations, want)
				}
				delete(now.Annotations, wokenAt)
				if !maps.Equal(now.Annotations, p.Annotations) || now.UID != p.UID {
					t.Errorf("annotations %v, were %v", now.Annotations, p.Annotations)
				}
			}
		}
		if !condition(d.Status.Conditions, v1.ConditionAccepted, v1.ReasonAccepted) || len(d.Status.OperationResults) != 1 {
			t.Errorf("status = %+v", d.Status)
		}
		if got := w.writes.to("/pods/"); len(got) != 4 || !strings.HasSuffix(got[0], "/status") {
			t.Errorf("writes to the pod: %q", got)
		}
	})
}

// next is the pod after its next change.
func next(t *testing.T, changes apiwatch.Interface) *corev1.Pod {
	t.Helper()
	select {
	case e := <-changes.ResultChan():
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type == apiwatch.Modified {
			return p
		}
		t.Fatalf("%+v", e)
	case <-time.After(30 * time.Second):
		t.Fatal("the pod was not changed")
	}
	return nil
}

// TestWakingTakesARole that can be left out. The manager says so, and goes on.
func TestWakingTakesARole(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		bindings := apitest.Clientset(t, w.Config).RbacV1().ClusterRoleBindings()
		if err := bindings.Delete(t.Context(), annotators+w.ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, func() error { // the API server's own view of its roles lags behind
			_, err := apitest.Clientset(t, w.config).CoreV1().Pods(w.ns).Patch(t.Context(), "none", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
			if err == nil || !strings.Contains(err.Error(), "forbidden") {
				return fmt.Errorf("still allowed: %w", err)
			}
			return nil
		})
		w.run(t)
		d, p := w.repaired(t)
		w.request(t, d)
		c := w.answered(t, d)
		if c.Reason != v1.ReasonNotWoken || !strings.Contains(c.Message, "config/overlays/waking") {
			t.Errorf("answer %+v, want what gives the right", c)
		}
		w.unchanged(t, p)
	})
}

// TestNamesakeIsNotWoken: a pod that takes the name of the one that was looked at is left alone.
func TestNamesakeIsNotWoken(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		namesake := &corev1.Pod{}
		w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") && namesake.UID == "" {
					w.replace(t, namesake)
				}
				return next.RoundTrip(r)
			})
		})
		w.run(t)
		d, p := w.repaired(t)
		p.DeepCopyInto(namesake)
		namesake.ObjectMeta = metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}
		w.request(t, d)
		if c := w.answered(t, d); c.Reason != v1.ReasonNotWoken {
			t.Errorf("answer %+v", c)
		}
		if namesake.UID == "" || namesake.UID == p.UID {
			t.Fatalf("the pod was not replaced: UID %q, was %q", namesake.UID, p.UID)
		}
		w.unchanged(t, namesake)
	})
}

// replace deletes the pod with the name of p and makes p.
func (w *world) replace(t *testing.T, p *corev1.Pod) {
	pods := apitest.Clientset(t, w.Config).CoreV1().Pods(p.Namespace)
	err := pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err == nil {
		var made *corev1.Pod
		if made, err = pods.Create(t.Context(), p, metav1.CreateOptions{}); err == nil {
			made.DeepCopyInto(p)
		}
	}
	if err != nil {
		t.Errorf("replacing pod: %v", err)
	}
}

func (w *world) unchanged(t *testing.T, p *corev1.Pod) {
	t.Helper()
	now := &corev1.Pod{}
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(p), now); err != nil || now.ResourceVersion != p.ResourceVersion {
		t.Errorf("the pod was changed: %+v, %v", now, err)
	}
}

// TestStoppedWhileWaking: a manager that is stopped takes its annotation away before it goes.
func TestStoppedWhileWaking(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") {
					defer stop()
				}
				return next.RoundTrip(r)
			})
		})
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, w.config, w.options) }()
		d, p := w.repaired(t)
		w.request(t, d)
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
		now := &corev1.Pod{}
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(p), now); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(now.Annotations, p.Annotations) || now.ResourceVersion == p.ResourceVersion {
			t.Errorf("annotations %v, resourceVersion %s, was %s", now.Annotations, now.ResourceVersion, p.ResourceVersion)
		}
	})
}

// TestPolicyAllowsOneAnnotation applies the policy to a manager as it stands, but for the manager's name: of the right to patch
// the status of pods it takes back all but what waking takes.
func TestPolicyAllowsOneAnnotation(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.applyPolicy(t, "pod-annotation.yaml")
	w.run(t)
	d, p := w.repaired(t)
	patch := func(patch string) error {
		_, err := apitest.Clientset(t, w.config).CoreV1().Pods(p.Namespace).
			Patch(t.Context(), p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
	times := 0
	apitest.Eventually(t, func() error { // until the API server knows its policy, which it asks about a change only
		times++
		if err := patch(fmt.Sprintf(`{"status":{"message":"%d"}}`, times)); err == nil || !strings.Contains(err.Error(), "may not change the status") {
			return fmt.Errorf("status changed: %w", err)
		}
		return nil
	})
	for text, part := range map[string]string{
		`{"status":{"podIP":"10.0.0.1"}}`:                                                     "change the status",
		`{"metadata":{"labels":{"app":"x"}}}`:                                                 "change the labels",
		`{"metadata":{"finalizers":["a.b/c"]}}`:                                               "change the finalizers",
		`{"metadata":{"generateName":"x"}}`:                                                   "change the generateName",
		`{"metadata":{"annotations":{"new":"x"}}}`:                                            "this annotation",
		`{"metadata":{"annotations":{"there":"x"}}}`:                                          "this annotation",
		`{"metadata":{"annotations":{"there":null}}}`:                                         "this annotation",
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, wokenAt, strings.Repeat("x", 41)): "longer than a time",
	} {
		if err := patch(text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	w.request(t, d)
	if c := w.answered(t, d); c.Reason != v1.ReasonWoken {
		t.Errorf("what it is for: %+v", c)
	}
	now := &corev1.Pod{}
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(p), now); err != nil || !maps.Equal(now.Annotations, p.Annotations) {
		t.Errorf("annotations %v, %v", now.Annotations, err)
	}
	if err := patch(`{"spec":{"containers":[{"name":"web","image":"evil"}]}}`); err == nil {
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(p), now); err != nil || now.Spec.Containers[0].Image != p.Spec.Containers[0].Image {
			t.Errorf("the image of the pod was changed: %+v, %v", now.Spec, err)
		}
	}
}

// applyPolicy applies a file of config/policy with the name that the manager has here.
func (w *world) applyPolicy(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile("../../config/policy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	const manager = "'system:serviceaccount:kubediag:kubediag-manager'"
	if strings.Count(string(text), manager) != 1 {
		t.Fatalf("%s does not name %s once", file, manager)
	}
	objects := apitest.Objects(t, strings.Replace(string(text), manager, "'"+w.config.Impersonate.UserName+"'", 1))
	for _, o := range objects {
		w.MustCreate(t, o)
	}
}
