// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package mountfault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// nodeClaim is the key of the node's name in the token of a pod.
const nodeClaim = "authentication.kubernetes.io/node-name"

// onNode is a client of the agent with a token that names these nodes.
func onNode(t *testing.T, config *rest.Config, nodes ...string) client.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	if len(nodes) > 0 {
		config.Impersonate.Extra = map[string][]string{nodeClaim: nodes}
	}
	return clientOf(t, config)
}

// made is a MountFault of a node. No label: it has none.
func (n *realNode) made(node, label string) *v1.MountFault {
	f := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Node: node, Impact: v1.ImpactNow, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(),
	}}
	f.Namespace, f.GenerateName = n.ns, "f-"
	if label != "" {
		f.Labels = map[string]string{v1.LabelNode: label}
	}
	return f
}

func checkRefused(t *testing.T, what string, err error, refused string) {
	t.Helper()
	if (err == nil) != (refused == "") || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refused)) {
		t.Errorf("%s: %v, want %q", what, err, refused)
	}
}

// TestAgentsWriteTheirNodeOnly applies the policy as it stands, but for the name of the agents, and has the agents of two nodes
// write MountFaults.
func TestAgentsWriteTheirNodeOnly(t *testing.T) {
	n := newRealNode(t, apitest.Start(t))
	n.env.PolicyFor(t, "agent-node.yaml", "agent", n.config.Impersonate.UserName)
	long := strings.Repeat("long.", 20) + n.ns
	one, none, both := onNode(t, n.config, "n1"), onNode(t, n.config), onNode(t, n.config, "n1", "n2")
	apitest.Eventually(t, func() error { // until the policy is in force
		if err := one.Create(t.Context(), n.made("n2", "n2"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.Join(errors.New("it is not refused"), err)
		}
		return nil
	})
	check := func(what string, err error, refused string) {
		t.Helper()
		checkRefused(t, what, err, refused)
	}
	check("its own", one.Create(t.Context(), n.made("n1", "n1"), client.DryRunAll), "")
	check("a node with a long name", onNode(t, n.config, long).Create(t.Context(), n.made(long, v1.NodeLabelValue(long)), client.DryRunAll), "")
	check("another's", one.Create(t.Context(), n.made("n2", "n2"), client.DryRunAll), "the agent of node n1 writes")
	check("under another's label", one.Create(t.Context(), n.made("n1", "n2"), client.DryRunAll), "metadata.labels")
	check("without a label", one.Create(t.Context(), n.made("n1", ""), client.DryRunAll), "metadata.labels")
	check("no node in the token", none.Create(t.Context(), n.made("n1", "n1"), client.DryRunAll), "names no node")
	check("two nodes in the token", both.Create(t.Context(), n.made("n1", "n1"), client.DryRunAll), "names no node")
	check("by a person", n.env.Client.Create(t.Context(), n.made("n9", "n8"), client.DryRunAll), "")
	t.Run("objects that are there", n.changesUnderThePolicy)
	t.Run("Diagnoses", n.diagnosesUnderThePolicy)
	t.Run("Leases", n.leasesUnderThePolicy)
	t.Run("the agent itself", n.agentUnderThePolicy)
}

// changesUnderThePolicy has two agents change and delete the object of one.
func (n *realNode) changesUnderThePolicy(t *testing.T) {
	one, two, none := onNode(t, n.config, "n1"), onNode(t, n.config, "n2"), onNode(t, n.config)
	check := func(what string, err error, refused string) {
		t.Helper()
		checkRefused(t, what, err, refused)
	}
	const ofOne, changesOfOne = "the agent of node n1 writes", "the agent of node n1 changes"
	f := n.made("n2", "n2")
	must(t, two.Create(t.Context(), f))
	patch := func(text string) client.Patch { return client.RawPatch("application/merge-patch+json", []byte(text)) }
	summary := patch(`{"status":{"summary":"s"}}`)
	check("a change of another's", one.Patch(t.Context(), f.DeepCopy(), summary), ofOne)
	check("a theft", one.Patch(t.Context(), f.DeepCopy(), patch(`{"metadata":{"labels":{"`+v1.LabelNode+`":"n1"}},"status":{"node":"n1"}}`)), changesOfOne)
	check("a gift", two.Patch(t.Context(), f.DeepCopy(), patch(`{"status":{"node":"n1"}}`)), "the agent of node n2 writes")
	check("a change", two.Patch(t.Context(), f.DeepCopy(), summary), "")
	check("the deletion of another's", one.Delete(t.Context(), f.DeepCopy()), changesOfOne)
	check("a deletion without a node", none.Delete(t.Context(), f.DeepCopy()), "names no node")
	check("a deletion", two.Delete(t.Context(), f.DeepCopy()), "")
}

// record is a Diagnosis that an agent makes of a repair.
func (n *realNode) record(node string) *v1.Diagnosis {
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{Mode: v1.ModeRecord, NodeName: node}}
	d.Namespace, d.GenerateName = n.ns, "r-"
	d.Labels = map[string]string{v1.LabelNode: node, v1.LabelOrigin: v1.OriginSentinel}
	return d
}

// diagnosesUnderThePolicy has an agent create Diagnoses, which may only be records, and write statuses.
func (n *realNode) diagnosesUnderThePolicy(t *testing.T) {
	one, none := onNode(t, n.config, "n1"), onNode(t, n.config)
	apitest.Eventually(t, func() error { // until that policy is in force
		if err := one.Create(t.Context(), n.record("n2"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.Join(errors.New("it is not refused"), err)
		}
		return nil
	})
	for what, tc := range map[string]struct {
		change  func(d *v1.Diagnosis)
		refused string
	}{
		"a record":        {func(*v1.Diagnosis) {}, ""},
		"of another node": {func(d *v1.Diagnosis) { d.Spec.NodeName = "n2" }, "the agent of node n1 writes the Diagnoses of that node only"},
		"that runs":       {func(d *v1.Diagnosis) { d.Spec.Mode = v1.ModeRecover }, "an agent creates records only"},
		"of no mode":      {func(d *v1.Diagnosis) { d.Spec.Mode = "" }, "an agent creates records only"},
		"of a person":     {func(d *v1.Diagnosis) { d.Labels[v1.LabelOrigin] = v1.OriginPerson }, "an agent creates records only"},
		"unlabelled":      {func(d *v1.Diagnosis) { d.Labels = nil }, "must name the node of the agent"},
		"of no origin":    {func(d *v1.Diagnosis) { delete(d.Labels, v1.LabelOrigin) }, "an agent creates records only"},
		"seen elsewhere":  {func(d *v1.Diagnosis) { d.Labels[v1.LabelNode] = "n2" }, "must name the node of the agent"},
		"parameters":      {func(d *v1.Diagnosis) { d.Spec.Parameters = map[string]string{"a": "b"} }, "a record has none"},
		"of no node": {func(d *v1.Diagnosis) {
			d.Spec.NodeName, d.Spec.PodReference = "", &v1.PodReference{Namespace: "a", Name: "b"}
		}, "writes the Diagnoses of that node only"},
	} {
		d := n.record("n1")
		tc.change(d)
		checkRefused(t, what, one.Create(t.Context(), d, client.DryRunAll), tc.refused)
	}
	checkRefused(t, "no node in the token", none.Create(t.Context(), n.record("n1"), client.DryRunAll), "names no node")
	status := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`))
	for node, refused := range map[string]string{"n1": "", "n2": "writes the Diagnoses of that node only"} {
		d := n.record(node)
		n.env.MustCreate(t, d)
		checkRefused(t, "the status of "+node, one.Status().Patch(t.Context(), d, status), refused)
	}
}

// leaseOf is a Lease as agents write them.
func (n *realNode) leaseOf(name, holder string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: time.Now()}}}
	l.Namespace, l.Name, l.Labels = n.ns, name, map[string]string{v1.LabelAgent: "x"}
	return l
}

// leasesUnderThePolicy has an agent write Leases: its own, and slots of budgets in the present period.
func (n *realNode) leasesUnderThePolicy(t *testing.T) {
	n.env.MustCreate(t, apitest.Objects(t, strings.ReplaceAll("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: leases, namespace: NS}, "+
		"rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, patch]}]}", "NS", n.ns))[0])
	binding := "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: leases, namespace: NS}, " +
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leases}, subjects: [{kind: User, name: 'USER'}]}"
	n.env.MustCreate(t, apitest.Objects(t, strings.NewReplacer("NS", n.ns, "USER", n.config.Impersonate.UserName).Replace(binding))[0])
	one, none := onNode(t, n.config, "n1"), onNode(t, n.config)
	apitest.Eventually(t, func() error { // until that policy and the rights are in force
		if err := one.Create(t.Context(), n.leaseOf("kubediag-agent-n1", "n1"), client.DryRunAll); err != nil {
			return err
		}
		if err := one.Create(t.Context(), n.leaseOf("kubediag-agent-n2", "n2"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.Join(errors.New("it is not refused"), err)
		}
		return nil
	})
	slot := func(at time.Time) string { return fmt.Sprintf("kubediag-slot-0123456789abcdef-%d-7", at.UnixMilli()) }
	slotOf := func(at time.Time) *coordinationv1.Lease {
		l := n.leaseOf(slot(at), "n1")
		l.Labels = map[string]string{v1.LabelRepairSlot: "0123456789abcdef"}
		return l
	}
	divided := func(number int) *coordinationv1.Lease {
		l := slotOf(time.Now())
		l.Name = fmt.Sprintf("kubediag-slot-f123456789abcdef-%d-%d", time.Now().UnixMilli(), number)
		return l
	}
	now, long := time.Now(), strings.Repeat("long.", 20)+"n"
	for what, tc := range map[string]struct {
		lease   *coordinationv1.Lease
		by      client.Client
		refused string
	}{
		"its own":                {n.leaseOf("kubediag-agent-n1", "n1"), one, ""},
		"of a long name":         {n.leaseOf(v1.AgentLeaseName(long), long), onNode(t, n.config, long), ""},
		"of another":             {n.leaseOf("kubediag-agent-n2", "n2"), one, "the agent of node n1 writes the Leases of that node only"},
		"the name of another":    {n.leaseOf("kubediag-agent-n2", "n1"), one, "writes its own Lease and slots"},
		"of the manager":         {n.leaseOf("kubediag-manager", "n1"), one, "writes its own Lease and slots"},
		"no node in the token":   {n.leaseOf("kubediag-agent-n1", "n1"), none, "names no node"},
		"a slot":                 {slotOf(now), one, ""},
		"a slot that began":      {slotOf(now.Add(-time.Hour)), one, ""},
		"a slot that would stay": {n.leaseOf(slot(now), "n1"), one, "by which the manager finds and deletes it"},
		"a slot of another":      {n.leaseOf(slot(now), "n2"), one, "of that node only"},
		"a slot to come":         {n.leaseOf(slot(now.Add(time.Hour)), "n1"), one, "takes slots of the present period only"},
		"a slot of 2099":         {n.leaseOf(slot(now.AddDate(73, 0, 0)), "n1"), one, "takes slots of the present period only"},
		"a slot without a time":  {n.leaseOf("kubediag-slot-0123456789abcdef-x-7", "n1"), one, "writes its own Lease and slots"},
		"its quarter":            {divided(0), one, ""},
		"its quarter of a row":   {divided(5), one, ""},
		"another quarter":        {divided(1), one, "takes its quarter of the slots"},
		"the column of row 0":    {divided(4), one, "takes its quarter of the slots"},
		"a quarter of n2":        {divided(5), onNode(t, n.config, "n2"), "of that node only"},
		"annotations": {func() *coordinationv1.Lease {
			l := slotOf(now)
			l.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)}
			return l
		}(), one, "metadata.annotations"},
		"labels": {func() *coordinationv1.Lease {
			l := slotOf(now)
			l.Labels = map[string]string{"a": "", "b": "", "c": "", v1.LabelRepairSlot: ""}
			return l
		}(), one, "at most three labels"},
		"finalizers": {func() *coordinationv1.Lease {
			l := slotOf(now)
			l.Finalizers = []string{"a/b", "a/c", "a/d"}
			return l
		}(), one, "at most three labels"},
	} {
		checkRefused(t, what, tc.by.Create(t.Context(), tc.lease, client.DryRunAll), tc.refused)
	}
	renewal := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"holderIdentity":"n1"}}`))
	annotated := n.leaseOf("kubediag-agent-n1", "n1")
	annotated.Annotations = map[string]string{"by": "a person"}
	for what, tc := range map[string]struct {
		lease   *coordinationv1.Lease
		refused string
	}{
		"a renewal":               {annotated, ""},
		"a theft":                 {n.leaseOf("kubediag-agent-n2", "n2"), "of that node only"},
		"a change of a slot":      {n.leaseOf(slot(now), "n1"), "changes none"},
		"a change of the manager": {n.leaseOf("kubediag-manager", "m"), "of that node only"},
	} {
		n.env.MustCreate(t, tc.lease)
		checkRefused(t, what, one.Patch(t.Context(), tc.lease, renewal), tc.refused)
	}
}

// agentUnderThePolicy has an agent do its work.
func (n *realNode) agentUnderThePolicy(t *testing.T) {
	n.config.Impersonate.Extra = map[string][]string{nodeClaim: {n.Node}} // and the agent works under it
	n.Writer = n.realWriter(t, n.Node)
	stop := n.run(t)
	web := stale(n.realPod(t, "web"), "app")
	n.set(web)
	n.awaitCount(t, 1)
	n.set(down(web))
	apitest.Eventually(t, func() error {
		if impact := n.all(t)[0].Status.Impact; impact != v1.ImpactNow {
			return fmt.Errorf("impact %s", impact)
		}
		return nil
	})
	n.set()
	n.awaitCount(t, 0)
	stop()
}
