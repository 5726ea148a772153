// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/test/apitest"
)

const promptStart = configDir + "/overlays/prompt-start/"

func newTestWaker(t *testing.T, config *rest.Config) *waker {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &waker{c}
}

// TestWakingChangesThePodTwice shows what a kubelet sees: two changes of the annotations, after which the pod is as it was.
func TestWakingChangesThePodTwice(t *testing.T) {
	t.Parallel()
	env := install(t)
	set := clientset(t, env.Config)
	w := newTestWaker(t, as(env.Config, annotator(t, set, "test-annotator")))
	for name, annotations := range map[string]map[string]string{"wake-bare": nil, "wake-annotated": {"a": "b"}} {
		p := pod(t, env, name, "wake-n0")
		p.Annotations = annotations
		p, err := set.CoreV1().Pods(p.Namespace).Update(t.Context(), p, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen, err := set.CoreV1().Pods(p.Namespace).Watch(t.Context(), metav1.ListOptions{
			FieldSelector: "metadata.name=" + name, ResourceVersion: p.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer seen.Stop()
		if err := w.Wake(t.Context(), p.Namespace, p.Name, string(p.UID)); err != nil {
			t.Fatal(err)
		}
		for _, more := range []int{1, 0} {
			now := next(t, seen)
			if len(now.Annotations) != len(annotations)+more || (now.Annotations[wakeAnnotation] != "") != (more == 1) {
				t.Errorf("%s: annotations %v", name, now.Annotations)
			}
			delete(now.Annotations, wakeAnnotation)
			if !maps.Equal(now.Annotations, annotations) || now.UID != p.UID {
				t.Errorf("%s: annotations %v, were %v", name, now.Annotations, annotations)
			}
		}
	}
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

// TestWakingKnowsThePod: a namesake of the pod, and one that is gone, are left alone.
func TestWakingKnowsThePod(t *testing.T) {
	t.Parallel()
	env := install(t)
	set := clientset(t, env.Config)
	w := newTestWaker(t, env.Config)
	p := pod(t, env, "wake-namesake", "wake-n0")
	before, err := set.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Wake(t.Context(), p.Namespace, p.Name, "00000000-0000-0000-0000-000000000000"); !apierrors.IsInvalid(err) {
		t.Errorf("with another UID: %v, want that it is not valid", err)
	}
	if err := w.Wake(t.Context(), p.Namespace, "wake-nobody", string(p.UID)); !apierrors.IsNotFound(err) {
		t.Errorf("with another name: %v", err)
	}
	after, err := set.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the pod was changed: %+v, %v", after, err)
	}
}

// TestWakingNeedsItsOverlay holds that the default roles do not allow it, and what the overlay adds.
func TestWakingNeedsItsOverlay(t *testing.T) {
	t.Parallel()
	env := install(t)
	p := pod(t, env, "wake-forbidden", "wake-n0")
	w := newTestWaker(t, as(env.Config, account("kubediag-agent")))
	if err := w.Wake(t.Context(), p.Namespace, p.Name, string(p.UID)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "config/overlays/prompt-start") {
		t.Errorf("by the default roles: %v, want forbidden, and what allows it", err)
	}
	out := kubectl(t, env, "", "kustomize", promptStart)
	for _, want := range []string{
		"name: KUBEDIAG_ALLOW_POD_ANNOTATION\n          value: \"true\"", "name: NODE_NAME", "  resources:\n  - pods/status\n  verbs:\n  - patch\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in the overlay", want)
		}
	}
}

// annotator is somebody with the rights that the overlay adds, and no others.
func annotator(t *testing.T, set *kubernetes.Clientset, name string) rest.ImpersonationConfig {
	t.Helper()
	text, err := os.ReadFile(promptStart + "annotator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest, _, _ := strings.Cut(string(text), "\n---\n")
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(manifest), &role); err != nil {
		t.Fatal(err)
	}
	role.ObjectMeta = metav1.ObjectMeta{Name: name}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role.Name}},
	}
	_, err = set.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{})
	if err == nil {
		_, err = set.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return rest.ImpersonationConfig{UserName: role.Name, Groups: []string{"system:authenticated"}}
}

// stopped is a client whose caller is stopped once it has made a change.
type stopped struct {
	client.Client
	stop func()
}

func (s stopped) Status() client.SubResourceWriter { return stoppedStatus{s.Client.Status(), s.stop} }

type stoppedStatus struct {
	client.SubResourceWriter
	stop func()
}

func (s stoppedStatus) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	defer s.stop()
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, p, options...)
}

// TestStoppedWhileWaking: an agent that is stopped takes its annotation away before it goes.
func TestStoppedWhileWaking(t *testing.T) {
	t.Parallel()
	env := install(t)
	set := clientset(t, env.Config)
	p := pod(t, env, "wake-stopped", "wake-n0")
	ctx, stop := context.WithCancel(t.Context())
	w := newTestWaker(t, env.Config)
	w.client = stopped{w.client, stop}
	if err := w.Wake(ctx, p.Namespace, p.Name, string(p.UID)); err != nil || ctx.Err() == nil {
		t.Errorf("%v, and %v", err, ctx.Err())
	}
	now, err := set.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil || len(now.Annotations) != 0 || now.ResourceVersion == p.ResourceVersion {
		t.Errorf("annotations %v, %v", now.Annotations, err)
	}
}

// TestPolicyAllowsOneAnnotation gives an agent the right to patch the status of all pods, and has the policy take back all but
// what waking takes.
func TestPolicyAllowsOneAnnotation(t *testing.T) {
	t.Parallel()
	env := install(t)
	set := clientset(t, env.Config)
	nowhere := annotator(t, set, "test-restricted")
	who := nowhere
	who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {"wake-n1"}}
	applyPolicy(t, env, who.UserName)
	own, other := annotated(t, env, "wake-own", "wake-n1"), annotated(t, env, "wake-other", "wake-n2")
	patch := func(patch string) error {
		_, err := clientset(t, as(env.Config, who)).CoreV1().Pods(own.Namespace).
			Patch(t.Context(), own.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
	apitest.Eventually(t, func() error { // the policy is in force
		if err := patch(fmt.Sprintf(`{"metadata":{"labels":{"at":"%d"}}}`, time.Now().UnixNano())); err == nil {
			return errors.New("labels can be changed")
		}
		return nil
	})
	for text, part := range map[string]string{
		`{"status":{"phase":"Failed"}}`:                                                              "the status",
		`{"metadata":{"labels":{"app":"x"}}}`:                                                        "the labels",
		`{"metadata":{"finalizers":["a.b/c"]}}`:                                                      "the finalizers",
		`{"metadata":{"generateName":"x"}}`:                                                          "the generateName",
		`{"metadata":{"annotations":{"new":"x"}}}`:                                                   "this annotation",
		`{"metadata":{"annotations":{"there":"x"}}}`:                                                 "this annotation",
		`{"metadata":{"annotations":{"there":null}}}`:                                                "this annotation",
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, wakeAnnotation, strings.Repeat("x", 41)): "longer than a time",
	} {
		if err := patch(text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	if err := patch(`{"spec":{"containers":[{"name":"c","image":"evil"}]}}`); err == nil {
		now, err := set.CoreV1().Pods(own.Namespace).Get(t.Context(), own.Name, metav1.GetOptions{})
		if err != nil || now.Spec.Containers[0].Image != own.Spec.Containers[0].Image {
			t.Errorf("the image of the pod was changed: %+v, %v", now.Spec, err)
		}
	}
	for name, c := range map[string]struct {
		who rest.ImpersonationConfig
		pod *corev1.Pod
	}{"a pod of another node": {who, other}, "by nobody knows which node's": {nowhere, own}} {
		err := newTestWaker(t, as(env.Config, c.who)).Wake(t.Context(), c.pod.Namespace, c.pod.Name, string(c.pod.UID))
		if err == nil || !strings.Contains(err.Error(), "another node") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := newTestWaker(t, as(env.Config, who)).Wake(t.Context(), own.Namespace, own.Name, string(own.UID)); err != nil {
		t.Errorf("what it is for: %v", err)
	}
}

// annotated is a pod with an annotation of its owner's.
func annotated(t *testing.T, env *apitest.Env, name, node string) *corev1.Pod {
	t.Helper()
	p := pod(t, env, name, node)
	p.Annotations = map[string]string{"there": "before"}
	if err := env.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// applyPolicy applies the policy as it stands, but for whom.
func applyPolicy(t *testing.T, env *apitest.Env, user string) {
	t.Helper()
	text, err := os.ReadFile(promptStart + "policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const agent = "'system:serviceaccount:kubediag:kubediag-agent'"
	if strings.Count(string(text), agent) != 1 {
		t.Fatalf("the policy does not name %s once", agent)
	}
	kubectl(t, env, strings.Replace(string(text), agent, "'"+user+"'", 1), "apply", "-f", "-")
}
