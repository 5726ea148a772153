// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/test/apitest"
)

// TestMountFaultsOfAnAgent: without a sentinel an agent deletes the objects of its node, and no others. With one, on a
// healthy node, it reads once and writes nothing.
func TestMountFaultsOfAnAgent(t *testing.T) {
	t.Parallel()
	for _, mode := range []sentinel.Mode{sentinel.Off, sentinel.Observe} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			env := installDefault(t)
			n := newTestNode(t, "faults-"+strings.ToLower(string(mode)), env.Config)
			n.options.SentinelMode = mode
			sent := apitest.Record(n.config)
			requests := func() string {
				var methods []string
				for _, r := range sent.To("/mountfaults") {
					methods = append(methods, r.Method)
				}
				return strings.Join(methods, " ")
			}
			left := leftoverFault(n.name, n.name)
			foreign := leftoverFault(n.name, "another-node")
			if mode == sentinel.Off {
				env.MustCreate(t, left, foreign)
			}
			n.startAgent(t)
			want := map[sentinel.Mode]string{sentinel.Off: "GET DELETE", sentinel.Observe: "GET"}[mode]
			apitest.Eventually(t, func() error {
				if got := requests(); got != want {
					return fmt.Errorf("requests %q, want %q", got, want)
				}
				return nil
			})
			for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
				if got := requests(); got != want {
					t.Fatalf("requests %q, want %q", got, want)
				}
			}
			if mode == sentinel.Observe {
				return
			}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(left), left); !apierrors.IsNotFound(err) {
				t.Errorf("the object of this node: %v", err)
			}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err != nil {
				t.Errorf("the object of another node: %v", err)
			}
		})
	}
}

// leftoverFault is a MountFault with the label of one node and the status of another.
func leftoverFault(label, node string) *v1.MountFault {
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "OrphanedPodVolumes", Node: node, Impact: v1.ImpactCleanup, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(),
	}}
	f.Namespace, f.Name, f.Labels = "default", "left-"+label+"-"+node, map[string]string{v1.LabelNode: label}
	return f
}
