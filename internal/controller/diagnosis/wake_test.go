// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// asking is a Diagnosis whose agent asks to wake the kubelet.
func asking(d *v1.Diagnosis) *v1.Diagnosis {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1.ConditionKubeletWoken, Status: metav1.ConditionUnknown, Reason: v1.ReasonWakeRequested,
	})
	return d
}

// TestNotWoken: what is not to be woken is not changed, and the agent hears why at once. What wakes is shown on real API
// servers.
func TestNotWoken(t *testing.T) {
	t.Parallel()
	shown := pod("node-1")
	shown.Spec.Volumes = []corev1.Volume{{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{Path: "all", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"}}},
	}}}}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		ref     bool
		failing error
		want    string
	}{
		"without a pod":        {nil, false, nil, "no podReference"},
		"the pod is gone":      {nil, true, nil, "not found"},
		"a namesake":           {pod("node-2"), true, nil, `is on node "node-2", not on "node-1"`},
		"a volume shows it":    {shown, true, nil, "would be written anew"},
		"it could not be read": {pod("node-1"), true, errors.New("no answer"), "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := asking(boundTo("node-1", v1.DiagnosisRunning))
			if c.ref {
				d.Spec.PodReference = &v1.PodReference{Namespace: "apps", Name: "web-0"}
			}
			w := newWorld(t, d)
			if c.pod != nil {
				w = newWorld(t, d, c.pod)
			}
			w.failing["Pod"] = c.failing
			w.visit(t)
			got := meta.FindStatusCondition(w.diagnosis(t).Status.Conditions, v1.ConditionKubeletWoken)
			if got == nil || got.Status != metav1.ConditionFalse || got.Reason != v1.ReasonNotWoken || !strings.Contains(got.Message, c.want) {
				t.Errorf("condition = %+v, want %q", got, c.want)
			}
			if !slices.Equal(w.writes, []string{"status"}) {
				t.Errorf("writes %q", w.writes)
			}
		})
	}
}

// TestNotAskedToWake: only the agent that has the Diagnosis can ask.
func TestNotAskedToWake(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*v1.Diagnosis{
		"not taken": asking(boundTo("node-1", "")),
		"ended":     asking(boundTo("node-1", v1.DiagnosisSucceeded)),
		"unbound":   asking(diagnosisOn("", nil)),
	} {
		if wakeRequested(d) && !ended(d) {
			t.Errorf("%s: it is woken", name)
		}
	}
}

// TestVolumesAreNotWritten: a volume with the pod's annotations would be written anew, and what is bound of it be stale.
func TestVolumesAreNotWritten(t *testing.T) {
	t.Parallel()
	files := func(path string) []corev1.DownwardAPIVolumeFile {
		return []corev1.DownwardAPIVolumeFile{
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
			{Path: "file", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		}
	}
	for path, want := range map[string]bool{"metadata.annotations": true, "metadata.labels": false, "metadata.annotations['a']": false} {
		for name, source := range map[string]corev1.VolumeSource{
			"downwardAPI": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files(path)}},
			"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{}}, {DownwardAPI: &corev1.DownwardAPIProjection{Items: files(path)}},
			}}},
		} {
			p := pod("node-1")
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "info", VolumeSource: source})
			if got := showsAnnotations(p); got != want {
				t.Errorf("%s of %s: %v, want %v", name, path, got, want)
			}
		}
	}
}
