// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package apitest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

func newMountFault(namespace string) *v1.MountFault {
	now := metav1.NewTime(time.Now().Add(-time.Hour))
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Target: "web", Impact: v1.ImpactNextStart, Heal: v1.HealSafe, Node: "n1",
		Pod: &v1.FaultPod{Namespace: namespace, Name: "web", UID: "u"}, Workload: &v1.Workload{Kind: "Deployment", Name: "w"},
		Container: "app", Volume: "config", Driver: "csi.example.org", Since: now, LastSeen: now, Summary: "it is stale",
		Evidence: []string{"link count is 0"}, Diagnosis: "ops/d",
	}}
	f.Namespace, f.Name = namespace, "web-1"
	return f
}

// One request makes a MountFault with its status, and its columns say what is hurt, how, and who heals it.
func TestColumnsOfMountFaults(t *testing.T) {
	for version, env := range servers(t) {
		t.Run(version, func(t *testing.T) {
			f := newMountFault(env.Namespace(t))
			env.MustCreate(t, f)
			cells, narrow := columns(t, env, "namespaces/"+f.Namespace+"/mountfaults")
			want := map[string]any{
				"Name": "web-1", "Target": "web", "Fault": "StaleSubPath", "Impact": "NextStart", "Heal": "Safe", "Since": "60m",
				"Node": "n1", "Workload": "w", "Container": "app", "Volume": "config", "Driver": "csi.example.org", "Diagnosis": "ops/d",
				"Summary": "it is stale",
			}
			if diff := cmp.Diff(want, cells); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"Name", "Target", "Fault", "Impact", "Heal", "Since"}, narrow); diff != "" {
				t.Errorf("columns that are not wide (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusedMountFaults(t *testing.T) {
	for version, env := range servers(t) {
		namespace := env.Namespace(t)
		for field, change := range map[string]func(*v1.MountFaultStatus){
			"status.code":     func(s *v1.MountFaultStatus) { s.Code = "" },
			"status.node":     func(s *v1.MountFaultStatus) { s.Node = "" },
			"status.impact":   func(s *v1.MountFaultStatus) { s.Impact = "Soon" },
			"status.heal":     func(s *v1.MountFaultStatus) { s.Heal = "Nurse" },
			"status.since":    func(s *v1.MountFaultStatus) { s.Since = metav1.Time{} },
			"status.summary":  func(s *v1.MountFaultStatus) { s.Summary = strings.Repeat("é", v1.MaxFaultSummary+1) },
			"status.plan":     func(s *v1.MountFaultStatus) { s.Plan = strings.Repeat("x", v1.MaxFaultPlan+1) },
			"status.commands": func(s *v1.MountFaultStatus) { s.Commands = make([]v1.FaultCommand, v1.MaxFaultCommands+1) },
			".line": func(s *v1.MountFaultStatus) {
				s.Commands = []v1.FaultCommand{{Line: strings.Repeat("x", v1.MaxFaultCommand+1)}}
			},
			"status.holder":   func(s *v1.MountFaultStatus) { s.Holder = strings.Repeat("x", v1.MaxFaultFact+1) },
			"status.evidence": func(s *v1.MountFaultStatus) { s.Evidence = make([]string, v1.MaxFaultEvidence+1) },
			"status.volume":   func(s *v1.MountFaultStatus) { s.Volume = strings.Repeat("x", v1.MaxFaultName+1) },
		} {
			t.Run(version+" "+field, func(t *testing.T) {
				f := newMountFault(namespace)
				change(&f.Status)
				if err := env.Create(t, f); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
					t.Errorf("error = %v, want Invalid, and %s", err, field)
				}
			})
		}
	}
}
