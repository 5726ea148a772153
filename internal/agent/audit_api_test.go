// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/audit"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/test/apitest"
)

// sentinelRepair is what the sentinel says of a repair.
func sentinelRepair(n int, code fault.Code, err error) sentinel.Repair {
	m := fault.Mount{ID: uint64(1)<<40 + uint64(n), Namespace: 4026531840, Point: fmt.Sprintf("/kubelet/%d", n)}
	f := fault.Finding{
		Code: code, Pod: fault.Pod{Namespace: "default", Name: fmt.Sprintf("web-%d", n), UID: "u"}, Container: "app", Volume: "config", Mount: m,
		Evidence: []string{"nlink 0"},
	}
	return sentinel.Repair{
		Fault: f, Ended: time.Now(), Proof: "the mount table shows that this mount is gone", Err: err,
		Action: fault.Action{Kind: fault.Unmount, Target: m.Point, Mount: &m, For: []fault.Key{{Code: code}}, Safety: "its source is gone", Lossless: true},
		Calls:  []calls.Call{{Name: "umount2", Arguments: m.Point + " MNT_DETACH", Result: calls.OK}},
	}
}

// recorderOf runs a recorder with the rights of an agent.
func recorderOf(t *testing.T, n *testNode) *audit.Recorder {
	t.Helper()
	m, err := newManager(n.config, n.options, &guard.Freshness{}, false)
	must(t, err)
	r, err := audit.New(audit.Options{
		Node: n.name, Namespace: n.options.Namespace, DataRoot: t.TempDir(), Client: m.GetClient(), Reader: m.GetAPIReader(), Log: logr.Discard(),
	})
	must(t, err)
	must(t, m.Add(manager.RunnableFunc(r.Run)))
	stop := startServing(t, m)
	t.Cleanup(func() {
		stop()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestSentinelRepairsAreRecorded on both API servers, with the rights of an agent, and an agent runs none of the
// records.
func TestSentinelRepairsAreRecorded(t *testing.T) {
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			installDefault(t)
			env := start(t)
			n := newTestNode(t, "audit-"+strings.ReplaceAll(version, ".", "-"), env.Config)
			n.startAgent(t)
			r := recorderOf(t, n)
			decision := v1.Decision{Mode: string(sentinel.Automatic), Policies: []string{"p"}, Reason: "allowed by policy p"}
			names := map[v1.DiagnosisPhase]string{
				v1.DiagnosisSucceeded: r.Add(sentinelRepair(1, fault.StaleSubPath, nil), decision),
				v1.DiagnosisFailed:    r.Add(sentinelRepair(2, fault.StaleSubPath, errors.New("busy")), decision),
			}
			for phase, name := range names {
				diagnosis := &v1.Diagnosis{}
				apitest.Eventually(t, func() error {
					err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: n.options.Namespace, Name: name}, diagnosis)
					if err == nil && diagnosis.Status.Phase != phase {
						err = fmt.Errorf("phase %q, want %q", diagnosis.Status.Phase, phase)
					}
					return err
				})
				a := diagnosis.Status.Operations[0].Actions[0]
				if diagnosis.Status.Decision.Mode != "Automatic" || diagnosis.Labels[v1.LabelOrigin] != v1.OriginSentinel || a.Mount.ID < 1<<40 ||
					len(a.Calls) != 1 || a.Calls[0].Result != "ok" || diagnosis.Status.Plan.Hash == "" || diagnosis.Spec.Mode != v1.ModeRecord {
					t.Errorf("labels %v, status %+v", diagnosis.Labels, diagnosis.Status)
				}
			}
			// A record without a status, as after a crash between the two writes, is not run either.
			bare := n.diagnosis("record-"+n.name, "")
			bare.Spec.Mode = v1.ModeRecord
			n.bind(t, env, bare)
			awaitPhase(t, env, n.createDiagnosis(t, env, "after-"+n.name, "no-such-set"), v1.DiagnosisFailed)
			if now := readDiagnosis(t, env, bare); now.Status.Phase != "" {
				t.Errorf("a record was run: %+v", now.Status)
			}
		})
	}
}
