// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/fakenode"
)

const (
	// Namespace is that of the objects. It has no policies of admission: they would refuse some.
	Namespace = "flood"
	// Home is the namespace of kubediag, which the Leases are in.
	Home = "default"
	// Quick is the kind that the API server takes quickly: labels and mounts take it seconds.
	Quick = "pods with variables"

	// objectBytes is nearly as large as the API server's storage takes.
	objectBytes = 1200 << 10
)

// Kinds are those that a tenant or an agent that was taken over may create, each as large as it gets.
var Kinds = map[string]func(i int) client.Object{
	Quick: func(i int) client.Object {
		return podWith(i, "env", func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", objectBytes)}}
		})
	},
	"pods with mounts": func(i int) client.Object {
		return podWith(i, "mounts", func(c *corev1.Container) {
			for j := range 20000 {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", MountPath: fmt.Sprintf("/%050d", j)})
			}
		})
	},
	"pods with labels": func(i int) client.Object {
		p := podWith(i, "labels", func(*corev1.Container) {})
		p.Labels = manyLabels()
		return p
	},
	"diagnoses": func(i int) client.Object {
		d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{
			OperationSet: "none", NodeName: fakenode.NodeName,
			Parameters: map[string]string{"p": strings.Repeat("x", v1.MaxParameterCharacters-1)},
		}}
		d.Namespace, d.Name, d.Labels = Namespace, fmt.Sprintf("d-%03d", i), manyLabels()
		d.Labels[v1.LabelNode] = fakenode.NodeName // as if no policy refused it
		return d
	},
	"mountfaults": func(i int) client.Object {
		f := &v1.MountFault{Status: v1.MountFaultStatus{
			Code: "StaleSubPath", Node: fakenode.NodeName, Impact: v1.ImpactNow, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(),
		}}
		f.Namespace, f.Name, f.Labels = Namespace, fmt.Sprintf("f-%03d", i), manyLabels()
		f.Labels[v1.LabelNode] = fakenode.NodeName // as an agent that was taken over writes it
		return f
	},
	"approvals": func(i int) client.Object {
		a := &v1.RecoveryApproval{Spec: v1.RecoveryApprovalSpec{
			Diagnosis: v1.ApprovedDiagnosis{Name: fmt.Sprintf("d-%03d", i)}, PlanHash: strings.Repeat("0a", 32),
		}}
		a.Namespace, a.Name, a.Labels = Namespace, fmt.Sprintf("a-%03d", i), manyLabels()
		return a
	},
	"leases": func(i int) client.Object {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new(fmt.Sprintf("forged-%03d", i)), RenewTime: &metav1.MicroTime{Time: time.Now()}}}
		l.Namespace, l.Name, l.Labels = Home, fmt.Sprintf("kubediag-agent-forged-%03d", i), manyLabels()
		l.Labels[v1.LabelAgent] = *l.Spec.HolderIdentity
		return l
	},
	"leases with long holders": func(i int) client.Object {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(strings.Repeat("\U0001F98A", objectBytes/4)), RenewTime: &metav1.MicroTime{Time: time.Now()}, LeaseDurationSeconds: new(int32(3600)),
		}}
		l.Namespace, l.Name = Home, fmt.Sprintf("kubediag-slot-forged-%03d", i)
		l.Labels = map[string]string{v1.LabelAgent: "forged", v1.LabelRepairSlot: "forged"} // as an agent that was taken over writes it
		return l
	},
	"events": func(i int) client.Object {
		e := &corev1.Event{Reason: "Failed", Message: "volume-subpaths", Type: corev1.EventTypeWarning, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now()}
		e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: Namespace, Name: fmt.Sprintf("env-%03d", i)}
		e.Source = corev1.EventSource{Component: "kubelet", Host: fakenode.NodeName}
		e.Namespace, e.Name, e.Labels = Namespace, fmt.Sprintf("e-%03d", i), manyLabels()
		return e
	},
}

// manyLabels are labels with objectBytes in all. The API server bounds annotations, but not labels.
func manyLabels() map[string]string {
	labels := map[string]string{}
	for i := range objectBytes / 400 {
		labels[fmt.Sprintf("%060d.%060d.%060d.%060d/%060d", i, 0, 0, 0, 0)] = strings.Repeat("x", 60)
	}
	return labels
}

func podWith(i int, kind string, change func(*corev1.Container)) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = Namespace, fmt.Sprintf("%s-%03d", kind, i)
	p.Spec.NodeName, p.Spec.Containers = fakenode.NodeName, []corev1.Container{{Name: "c", Image: "i"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	change(&p.Spec.Containers[0])
	return p
}
