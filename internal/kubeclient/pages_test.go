// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	v1 "kubediag.org/kubediag/api/v1"
)

// listInPages lists 7 pods with a ListerWatcher that answers in pages, and fails the given requests.
func listInPages(t *testing.T, reduce cache.TransformFunc, fails map[int]error) (*corev1.PodList, []string, error) {
	t.Helper()
	var asked []string
	server := &cache.ListWatch{ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
		asked = append(asked, fmt.Sprintf("%s+%d@%s", o.Continue, o.Limit, o.ResourceVersion))
		if err := fails[len(asked)]; err != nil {
			return nil, err
		}
		from, _ := strconv.Atoi(o.Continue)
		page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
		for i := from; i < min(from+int(o.Limit), 7); i++ {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}}
			pod.Spec.Hostname = "large"
			page.Items = append(page.Items, pod)
		}
		if from+int(o.Limit) < 7 {
			page.Continue = fmt.Sprint(from + int(o.Limit))
		}
		return page, nil
	}}
	got, err := cache.ToListerWatcherWithContext(Pages(server, 3, reduce)).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	list, _ := got.(*corev1.PodList)
	return list, asked, err
}

// TestPages: a list is read page by page, each reduced, and begun again if the server no longer has the rest of it.
func TestPages(t *testing.T) {
	t.Parallel()
	reduce := func(o any) (any, error) { o.(*corev1.Pod).Spec.Hostname = ""; return o, nil }
	expired := apierrors.NewResourceExpired("too old")
	for name, tc := range map[string]struct {
		fails map[int]error
		want  string
	}{
		"all":     {nil, "+3@ 3+3@ 6+3@"},
		"expired": {map[int]error{2: expired}, "+3@ 3+3@ +3@ 3+3@ 6+3@"},
	} {
		list, asked, err := listInPages(t, reduce, tc.fails)
		if err != nil || len(list.Items) != 7 || list.ResourceVersion != "9" || list.Continue != "" {
			t.Fatalf("%s: %+v, %v", name, list, err)
		}
		for i, p := range list.Items {
			if p.Name != fmt.Sprint("p", i) || p.Spec.Hostname != "" {
				t.Errorf("%s: item %d is %s, host name %q", name, i, p.Name, p.Spec.Hostname)
			}
		}
		if got := strings.Join(asked, " "); got != tc.want {
			t.Errorf("%s: asked for %s, want %s", name, got, tc.want)
		}
	}
	broken := errors.New("no answer")
	if _, asked, err := listInPages(t, reduce, map[int]error{2: broken}); !errors.Is(err, broken) || len(asked) != 2 {
		t.Errorf("%v after %v", err, asked)
	}
	always := map[int]error{2: expired, 4: expired, 6: expired, 8: expired}
	if _, asked, err := listInPages(t, reduce, always); !apierrors.IsResourceExpired(err) || len(asked) != 8 {
		t.Errorf("%v after %v", err, asked)
	}
	if _, _, err := listInPages(t, func(any) (any, error) { return "text", nil }, nil); err == nil {
		t.Error("a text is an object")
	}
}

// TestReduceMetadata: metadata that tenants may write without end is not kept.
func TestReduceMetadata(t *testing.T) {
	t.Parallel()
	m := metav1.ObjectMeta{
		Name: "d", Namespace: "ns", UID: "u", ResourceVersion: "1", Finalizers: []string{"x/y"}, ManagedFields: []metav1.ManagedFieldsEntry{{}},
		Labels:          map[string]string{v1.LabelNode: "n", v1.LabelOrigin: "person", v1.LabelTrigger: "t", "other": "x", v1.Group + "/other": "y"},
		Annotations:     map[string]string{v1.AnnotationApproval: "a", "other": "x", v1.AnnotationPolicies: strings.Repeat("p", 1000)},
		OwnerReferences: make([]metav1.OwnerReference, 1000),
	}
	ReduceMetadata(&m)
	if m.Name != "d" || m.UID != "u" || m.ResourceVersion != "1" || len(m.Labels) != 3 || len(m.Annotations) != 1 || len(m.OwnerReferences) != MaxOwners ||
		m.Finalizers != nil || m.ManagedFields != nil {
		t.Errorf("kept %+v", m)
	}
	m.Annotations[v1.AnnotationApproval] = strings.Repeat("a", 254)
	if ReduceMetadata(&m); m.Annotations != nil {
		t.Errorf("a value that is no name is kept: %d bytes", len(m.Annotations[v1.AnnotationApproval]))
	}
}
