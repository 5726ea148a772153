// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// TestPausedRun: while a policy is paused, run shows the plan and says that it is held; it neither asks nor repairs.
func TestPausedRun(t *testing.T) {
	p, c := install(t), clientOfAll(t)
	text, err := os.ReadFile("../../config/samples/recovery-pause.yaml")
	policy := &v1.RecoveryPolicy{}
	if err == nil {
		err = yaml.UnmarshalStrict(text, policy)
	}
	must(t, err)
	p.create(t, c, policy)
	t.Cleanup(func() { // once the agent has ended, which would delete it
		if err := c.DeleteAllOf(context.WithoutCancel(t.Context()), &v1.MountFault{}, client.InNamespace("default")); err != nil {
			t.Error(err)
		}
	})
	p.LaunchAgent(t, "Observe")
	p.Bind(t)
	stale := p.Break(t, 1)
	apitest.Eventually(t, func() error {
		out, _ := p.command(t.Context(), "faults", home).CombinedOutput()
		if !strings.Contains(string(out), "paused") {
			return errors.New(string(out))
		}
		return nil
	})
	faults := p.call(t, 1, "faults", home)
	t.Logf("faults:\n%s", faults)
	expect(t, faults, `StaleSubPath +next start +paused +default/core2 `, `\n  kubectl edit recoverypolicy pause `)

	const reason = "policy pause is paused"
	plan := p.call(t, 1, "run", "pod/core2")
	t.Logf("a plan that is held:\n%s", plan)
	expect(t, plan, `Plan [0-9a-f]{12}, \d+ actions?; nothing is lost\n`, `\n  ! held: policy pause is paused\. Next: set spec\.paused of RecoveryPolicy pause to false`,
		`Nothing was changed\. To repair exactly this, once it is not held:\n  kubectl kubediag run pod/core2 -n default --plan-hash=`)
	refused := p.call(t, 3, "run", "pod/core2", hash.FindString(plan))
	t.Logf("a repair that is held:\n%s", refused)
	for name, out := range map[string]string{"plan": plan, "repair": refused} {
		if n := strings.Count(out, reason); n != 1 {
			t.Errorf("%s: the reason is said %d times:\n%s", name, n, out)
		}
	}
	p.call(t, 3, "run", "pod/core2", "--heal=auto")
	if now := p.mountedAt(t); now.UniqueID != stale.UniqueID {
		t.Errorf("the mount was changed: %+v, was %+v", now, stale)
	}
}
