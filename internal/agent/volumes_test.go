// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kubediag.org/kubediag/internal/faults/orphan"
)

var _ orphan.Cache = (*nodePods)(nil)

// pagedServer is an API server that gives one pod a page, and answers as it was told first.
type pagedServer struct {
	client.Reader
	answers []error
	asked   []string // from where on
	bad     bool     // whether it was ever asked for more than is needed
}

func (p *pagedServer) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	p.asked = append(p.asked, o.Continue)
	into, metadata := list.(*metav1.PartialObjectMetadataList)
	if !metadata || o.Limit != podsPerPage || o.FieldSelector.String() != "spec.nodeName=here" {
		p.bad = true
	}
	if len(p.answers) >= len(p.asked) && p.answers[len(p.asked)-1] != nil {
		return p.answers[len(p.asked)-1]
	}
	next := map[string]string{"": "second", "second": "third", "third": ""}
	into.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{
		Name: "at " + o.Continue, UID: "uid", Labels: map[string]string{"example.org/text": "x"}, Finalizers: []string{"example.org/x"},
		Annotations: map[string]string{"example.org/text": "x", corev1.MirrorPodAnnotationKey: "static"},
	}}}
	into.Continue = next[o.Continue]
	return nil
}

// TestPodsPageByPage: what the first page was of may be forgotten before the last is asked for. Then it is begun again,
// and nothing of the first time is kept; but not for ever.
func TestPodsPageByPage(t *testing.T) {
	t.Parallel()
	expired, gone := apierrors.NewResourceExpired("too old"), &apierrors.StatusError{
		ErrStatus: metav1.Status{Reason: metav1.StatusReasonGone, Code: http.StatusGone, Message: "too old"},
	}
	for name, c := range map[string]struct {
		answers []error
		asked   []string
		why     string // empty: all three are listed
	}{
		"three pages":   {nil, []string{"", "second", "third"}, ""},
		"expired":       {[]error{nil, expired}, []string{"", "second", "", "second", "third"}, ""},
		"gone":          {[]error{nil, nil, gone}, []string{"", "second", "third", "", "second", "third"}, ""},
		"expired twice": {[]error{nil, expired, nil, expired}, []string{"", "second", "", "second"}, `of node "here": too old`},
		"no answer":     {[]error{nil, errors.New("no route")}, []string{"", "second"}, "no route"},
	} {
		server := &pagedServer{answers: c.answers}
		got, err := (&nodePods{node: "here", live: server}).PodsNow(t.Context())
		if diff := cmp.Diff(c.asked, server.asked); diff != "" || server.bad {
			t.Errorf("%s: asked for too much: %v, from (-want +got):\n%s", name, server.bad, diff)
		}
		if c.why != "" {
			if err == nil || !strings.Contains(err.Error(), c.why) || got != nil {
				t.Errorf("%s: %+v, %v, want %q", name, got, err, c.why)
			}
			continue
		}
		if err != nil || len(got) != 3 || got[0].Name != "at " || got[1].Name != "at second" || got[2].Name != "at third" {
			t.Errorf("%s: %+v, %v, want one pod of each page", name, got, err)
		}
		for _, pod := range got { // tenants may put a megabyte into the rest
			want := metav1.ObjectMeta{Name: pod.Name, UID: "uid", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "static"}}
			if diff := cmp.Diff(want, pod); diff != "" {
				t.Errorf("%s: kept (-want +got):\n%s", name, diff)
			}
		}
	}
}

// TestKnowsPods: a mirror pod stands for the static pod whose UID its annotations have.
func TestKnowsPods(t *testing.T) {
	t.Parallel()
	index := &nodePods{}
	index.replacePod(nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}})
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "c"}}}
	index.replacePod(nil, mirror)
	for uid, want := range map[string]bool{"a": true, "b": true, "c": true, "d": false} {
		if got := index.Knows(uid); got != want {
			t.Errorf("%q is known: %v, want %v", uid, got, want)
		}
	}
	index.replacePod(mirror, nil)
	if index.Knows("c") {
		t.Error("a static pod is known whose mirror is gone")
	}
}

// claim is one of namespace shop to a volume.
func claim(name, volume string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

// claiming is a pod with volumes of claims.
func claiming(claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	for _, name := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	return pod
}

// TestPersistentVolumesOfAPod: a claim that is not bound proves nothing, because its owner may name any volume in it.
func TestPersistentVolumesOfAPod(t *testing.T) {
	t.Parallel()
	server := fake.NewClientBuilder().WithObjects(
		claim("bound", "pv-1", corev1.ClaimBound), claim("web-scratch", "pv-2", corev1.ClaimBound),
		claim("forged", "pv-of-another", corev1.ClaimPending), claim("lost", "pv-lost", corev1.ClaimLost),
	).Build()
	pod := claiming("gone", "forged", "lost", "bound")
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	got := (&nodePods{node: "here", live: server}).PersistentVolumes(t.Context(), pod)
	if diff := cmp.Diff([]string{"pv-1", "pv-2"}, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

// TestClaimPaths are those of volumes on the node. A volume that is bound to a claim of another namespace is not the pod's.
func TestClaimPaths(t *testing.T) {
	t.Parallel()
	objects := []client.Object{claim("gone", "gone", corev1.ClaimBound)}
	add := func(name, namespace string, source corev1.PersistentVolumeSource) {
		objects = append(objects, claim(name, name, corev1.ClaimBound), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: source, ClaimRef: &corev1.ObjectReference{Namespace: namespace}},
		})
	}
	add("local", "shop", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/disk"}})
	add("host", "shop", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/pv"}})
	add("csi", "shop", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{}})
	add("foreign", "bank", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}})
	server, pod := fake.NewClientBuilder().WithObjects(objects...).Build(), claiming("local", "host", "csi", "foreign", "gone")
	got := (&nodePods{node: "here", live: server}).ClaimPaths(t.Context(), pod)
	if diff := cmp.Diff(map[string]string{"local": "/mnt/disk", "host": "/srv/pv"}, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}
