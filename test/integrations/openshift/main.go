// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command openshift reads a JSON list of pods on its input, and has the admission library of OpenShift judge each of them by a
// SecurityContextConstraints in a file. It writes a line for each pod: "admitted", or the reasons against it.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	securityv1 "github.com/openshift/api/security/v1"
	"github.com/openshift/apiserver-library-go/pkg/securitycontextconstraints/sccmatching"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"sigs.k8s.io/yaml"
)

// project is a namespace as OpenShift makes one: with a range of users and an SELinux level.
var project = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubediag", Annotations: map[string]string{
	securityv1.UIDRangeAnnotation:           "1000680000/10000",
	securityv1.MCSAnnotation:                "s0:c26,c15",
	securityv1.SupplementalGroupsAnnotation: "1000680000/10000",
}}}

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var scc securityv1.SecurityContextConstraints
	if err := yaml.UnmarshalStrict(text, &scc); err != nil {
		return err
	}
	provider, err := sccmatching.CreateProviderFromConstraint(project, &scc)
	if err != nil {
		return err
	}
	var pods []corev1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&pods); err != nil {
		return err
	}
	for i := range pods {
		corev1conversion.SetObjectDefaults_Pod(&pods[i])
		var pod core.Pod
		if err := corev1conversion.Convert_v1_Pod_To_core_Pod(&pods[i], &pod, nil); err != nil {
			return err
		}
		if errs := sccmatching.AssignSecurityContext(provider, &pod, field.NewPath("spec")); len(errs) > 0 {
			fmt.Println(errs.ToAggregate())
		} else {
			fmt.Println("admitted")
		}
	}
	return nil
}
