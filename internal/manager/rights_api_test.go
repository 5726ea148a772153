// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// grant is a right: in the namespace of the world, or in all.
type grant struct {
	everywhere                  bool
	group, resource, name, verb string
}

var (
	getPods    = grant{resource: "pods", verb: "get"}
	getAllPods = grant{everywhere: true, resource: "pods", verb: "get"}
	evict      = grant{resource: "pods/eviction", verb: "create"}
	evictAll   = grant{everywhere: true, resource: "pods/eviction", verb: "create"}
	diagnoses  = grant{group: v1.Group, resource: "diagnoses", verb: "*"}
	triggers   = grant{everywhere: true, group: v1.Group, resource: "triggers", verb: "*"}
	repairN1   = grant{everywhere: true, group: v1.Group, resource: "nodes", name: "n1", verb: "repair"}
	repairHere = grant{group: v1.Group, resource: "nodes", verb: "repair"} // a node is in no namespace: of no use
	policies   = grant{everywhere: true, group: v1.Group, resource: "recoverypolicies", verb: "*"}
	patchNodes = grant{everywhere: true, resource: "nodes", verb: "patch"}
	approve    = grant{group: v1.Group, resource: "recoveryapprovals", verb: "create"}
	useSubPath = grant{group: v1.Group, resource: "operationsets", name: "subpath-remount-op-set", verb: "use"}
)

// people and what they may do, beside a role of config/policy by its name.
var people = map[string]struct {
	role       string
	everywhere bool
	grants     []grant
}{
	"blind":    {role: "kubediag-pod-repairer"},
	"dev":      {role: "kubediag-pod-repairer", grants: []grant{getPods, repairHere, triggers}},
	"setless":  {grants: []grant{diagnoses, getPods}},
	"one set":  {grants: []grant{diagnoses, getPods, useSubPath}},
	"evictor":  {role: "kubediag-pod-repairer", grants: []grant{getPods, evict}},
	"n1":       {grants: []grant{diagnoses, getPods, repairN1, triggers}},
	"operator": {role: "kubediag-node-repairer", everywhere: true, grants: []grant{diagnoses, getAllPods, triggers}},
	"no pods":  {role: "kubediag-node-repairer", everywhere: true, grants: []grant{diagnoses, triggers}},
	"approver": {role: "kubediag-approver", grants: []grant{approve}},
	"one of d": {grants: []grant{approve, {group: v1.Group, resource: "diagnoses", name: "d", verb: "get"}}},
	"owner":    {grants: []grant{policies}},
	"evicts":   {grants: []grant{policies, evictAll}},
	"cordons":  {grants: []grant{policies, patchNodes}},
	"all":      {role: "kubediag-node-repairer", everywhere: true, grants: []grant{diagnoses, getAllPods, triggers, evictAll}},
}

// Texts of specs. NS is the namespace of the world, where the pod is that most may get.
const (
	mine        = "podReference: {namespace: NS, name: web}"
	theirs      = "podReference: {namespace: kube-system, name: web}"
	subPath     = "operationSet: subpath-remount-op-set"
	cleanup     = "operationSet: idle-device-op-set"
	aborting    = "parameters: {param.recover.kubernetes.volume_rebind.abort: 'true'}"
	careful     = "parameters: {param.recover.kubernetes.volume_rebind.abort: 'false', param.recover.system.held_device.detach: 'false'}"
	detach      = "parameters: {param.recover.system.held_device.detach: auto}"
	evicting    = "parameters: {param.recover.kubernetes.pod_evict.daemon_set: 'true'}"
	allowing    = "parameters: {param.recover.kubernetes.pod_evict.allowed: 'true'}"
	event       = "sourceTemplate: {kubernetesEventTemplate: {regexp: {reason: a}}}"
	injecting   = "sourceTemplate: {prometheusAlertTemplate: {regexp: {}, parametersFrom: [{name: param.recover.kubernetes.pod_evict.daemon_set, label: a}]}}"
	planHash    = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	approvalOfD = "diagnosis: {name: d}, planHash: " + planHash
	escalating  = "mode: Automatic, escalation: {evict: {afterSeconds: 600}}"
	cordoning   = "mode: Automatic, escalation: {cordon: {afterSeconds: 600}}"
	cron        = "sourceTemplate: {cronTemplate: {schedule: '@daily'}}"
)

// asked is what somebody creates, and what must be in the message that refuses it. No text: it is allowed.
type asked struct {
	who, kind, spec, refused string
}

var rights = map[string]asked{
	"a pod that one may get":         {"dev", "Diagnosis", subPath + ", " + mine, ""},
	"a pod that one may not get":     {"blind", "Diagnosis", subPath + ", " + mine, `spec.podReference: "NS/web": the right to get this pod is missing (user "blind`},
	"a pod of another namespace":     {"dev", "Diagnosis", subPath + ", " + theirs, `spec.podReference: "kube-system/web"`},
	"and of another, by an operator": {"operator", "Diagnosis", subPath + ", " + theirs, ""},
	"repair without get":             {"no pods", "Diagnosis", subPath + ", " + theirs, `spec.podReference: "kube-system/web"`},

	"a set that nobody may use":      {"dev", "Diagnosis", cleanup + ", nodeName: n1, " + mine, `spec.operationSet: "idle-device-op-set": this takes the right to use`},
	"no set":                         {"setless", "Diagnosis", subPath + ", " + mine, `spec.operationSet: "subpath-remount-op-set": this takes the right to use`},
	"no set named":                   {"dev", "Diagnosis", mine, ""},
	"a plan":                         {"dev", "Diagnosis", "mode: Plan, " + mine, ""},
	"no set named, without use":      {"setless", "Diagnosis", mine, `spec.operationSet: "auto": this takes the right to use`},
	"no set named, one of others":    {"one set", "Diagnosis", mine, `spec.operationSet: "auto"`},
	"no set named, on a node":        {"dev", "Diagnosis", "nodeName: n1", `spec.nodeName: "n1": without spec.podReference`},
	"one set":                        {"one set", "Diagnosis", subPath + ", " + mine, ""},
	"another set":                    {"one set", "Diagnosis", "operationSet: volume-health-op-set, " + mine, `spec.operationSet: "volume-health-op-set"`},
	"any set by who repairs":         {"n1", "Diagnosis", cleanup + ", nodeName: n1, " + mine, ""},
	"any set, but on what node":      {"n1", "Diagnosis", cleanup + ", " + mine, `on all nodes, because spec.nodeName names none`},
	"a node":                         {"n1", "Diagnosis", cleanup + ", nodeName: n1", ""},
	"a node without the right":       {"dev", "Diagnosis", subPath + ", nodeName: n1", `spec.nodeName: "n1": without spec.podReference this takes the right to repair nodes.diagnosis.kubediag.org on node n1`},
	"another node":                   {"n1", "Diagnosis", cleanup + ", nodeName: n2", `spec.nodeName: "n2"`},
	"any node by an operator":        {"operator", "Diagnosis", cleanup + ", nodeName: n2", ""},
	"abort":                          {"dev", "Diagnosis", subPath + ", nodeName: n1, " + mine + ", " + aborting, `spec.parameters[param.recover.kubernetes.volume_rebind.abort]: "true": this takes the right to repair nodes.diagnosis.kubediag.org on node n1`},
	"abort, but on what node":        {"n1", "Diagnosis", subPath + ", " + mine + ", " + aborting, "on all nodes, because spec.nodeName names none"},
	"abort by who repairs":           {"n1", "Diagnosis", subPath + ", nodeName: n1, " + mine + ", " + aborting, ""},
	"no abort and no detach":         {"dev", "Diagnosis", subPath + ", " + mine + ", " + careful, ""},
	"detach":                         {"dev", "Diagnosis", subPath + ", " + mine + ", " + detach, `spec.parameters[param.recover.system.held_device.detach]: "auto"`},
	"eviction":                       {"dev", "Diagnosis", subPath + ", " + mine + ", " + evicting, `spec.parameters[param.recover.kubernetes.pod_evict.daemon_set]: "true": this takes the right to create pods/eviction of NS/web`},
	"eviction allowed":               {"dev", "Diagnosis", mine + ", " + allowing, `spec.parameters[param.recover.kubernetes.pod_evict.allowed]: "true": this takes the right to create pods/eviction of NS/web`},
	"allowed by who may evict":       {"evictor", "Diagnosis", mine + ", " + allowing, ""},
	"eviction by who repairs":        {"operator", "Diagnosis", subPath + ", " + mine + ", " + evicting, "create pods/eviction of NS/web"},
	"eviction by who may evict":      {"evictor", "Diagnosis", subPath + ", " + mine + ", " + evicting, ""},
	"eviction in another namespace":  {"evictor", "Diagnosis", subPath + ", " + theirs + ", " + evicting, `spec.podReference: "kube-system/web"`},
	"eviction by who may everywhere": {"all", "Diagnosis", subPath + ", " + theirs + ", " + evicting, ""},

	"a record":              {"all", "Diagnosis", "mode: Record, nodeName: n1", "spec.mode: Record is for the agents of kubediag"},
	"to be approved":        {"dev", "Diagnosis", "mode: Approve, " + mine, ""},
	"approved by operator":  {"operator", "RecoveryApproval", approvalOfD, "cannot create resource \"recoveryapprovals\""},
	"approved by dev":       {"dev", "RecoveryApproval", approvalOfD, "cannot create resource \"recoveryapprovals\""},
	"approved":              {"approver", "RecoveryApproval", approvalOfD, ""},
	"approved by name":      {"approver", "RecoveryApproval", approvalOfD + ", approver: approver NS", ""},
	"for another user":      {"approver", "RecoveryApproval", approvalOfD + ", approver: operator NS", `spec.approver: "operator NS": must be the user who creates the approval (user "approver NS")`},
	"what one may see":      {"one of d", "RecoveryApproval", approvalOfD, ""},
	"what one may not see":  {"one of d", "RecoveryApproval", "diagnosis: {name: e}, planHash: " + planHash, `spec.diagnosis.name: "e": the right to get this Diagnosis is missing`},
	"diagnosed by approver": {"approver", "Diagnosis", mine, "cannot create resource \"diagnoses\""},

	"policy":                    {"owner", "RecoveryPolicy", "mode: Automatic", ""},
	"policy that evicts":        {"owner", "RecoveryPolicy", escalating, "spec.escalation.evict: this takes the right to create pods/eviction in all namespaces (user \"owner NS\")"},
	"paused policy that evicts": {"owner", "RecoveryPolicy", escalating + ", paused: true", ""},
	"policy that may evict":     {"evicts", "RecoveryPolicy", escalating, ""},
	"policy that cordons":       {"evicts", "RecoveryPolicy", cordoning, "spec.escalation.cordon: this takes the right to patch all nodes"},
	"policy that may cordon":    {"cordons", "RecoveryPolicy", cordoning, ""},

	"trigger":                       {"operator", "Trigger", subPath + ", " + event, ""},
	"trigger without repair":        {"dev", "Trigger", subPath + ", " + event, "spec.sourceTemplate: any node can be named: this takes the right to repair nodes.diagnosis.kubediag.org on all nodes"},
	"trigger with repair on one":    {"n1", "Trigger", subPath + ", nodeName: n1, " + event, "on all nodes"},
	"trigger without pods":          {"no pods", "Trigger", subPath + ", " + event, "spec.sourceTemplate: any pod can be named: this takes the right to get pods in all namespaces"},
	"trigger that evicts":           {"operator", "Trigger", subPath + ", " + event + ", " + evicting, "create pods/eviction in all namespaces"},
	"trigger that allows eviction":  {"operator", "Trigger", subPath + ", " + event + ", " + allowing, "create pods/eviction in all namespaces"},
	"trigger that evicts by alerts": {"operator", "Trigger", subPath + ", " + injecting, "param.recover.kubernetes.pod_evict.daemon_set takes the right to create pods/eviction"},
	"trigger of alerts":             {"operator", "Trigger", subPath + ", sourceTemplate: {prometheusAlertTemplate: {regexp: {}, parameterInjectionLabels: [a]}}", ""},
	"trigger that may evict":        {"all", "Trigger", subPath + ", " + event + ", " + evicting, ""},
	"trigger of the clock, all":     {"n1", "Trigger", cleanup + ", nodeSelector: {}, " + cron, "on all nodes"},
	"trigger of the clock":          {"n1", "Trigger", cleanup + ", nodeName: n1, " + cron, ""},
	"trigger of the clock, no node": {"dev", "Trigger", cleanup + ", nodeName: n1, " + cron, `spec.nodeName: "n1": this takes the right to repair`},
}

// TestPolicyAsksForRights applies the policy as it stands, but for the manager's name, and has people with some rights ask for
// things.
func TestPolicyAsksForRights(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.applyPolicy(t)
	clients := w.people(t)
	w.inForce(t, clients)
	for name, tc := range rights {
		t.Run(name, func(t *testing.T) {
			err := clients[tc.who].Create(t.Context(), w.object(t, tc), client.DryRunAll)
			w.check(t, err, tc.refused)
		})
	}
	for _, label := range []string{"n1", "n2"} { // an agent would hold the object, whatever its spec says
		o := w.object(t, asked{"all", "Diagnosis", subPath + ", " + mine, ""})
		o.SetLabels(map[string]string{v1.LabelNode: label})
		w.check(t, clients["all"].Create(t.Context(), o, client.DryRunAll), "this label is set and removed by the manager of kubediag alone")
	}
	t.Run("updates", func(t *testing.T) { w.updates(t, clients) })
	t.Run("updates of triggers", func(t *testing.T) { w.triggerUpdates(t, clients) })
	t.Run("kubediag itself", w.itself)
}

// applyPolicy applies the policy with the name that the manager has here.
func (w *world) applyPolicy(t *testing.T) {
	t.Helper()
	apitest.NeedPolicies(t)
	const file = "../../config/policy/diagnosis-rights.yaml"
	text, err := os.ReadFile(file)
	must(t, err)
	const manager = "'system:serviceaccount:kubediag:kubediag-manager'"
	if strings.Count(string(text), manager) != 2 {
		t.Fatalf("%s does not name %s twice", file, manager)
	}
	objects := apitest.Objects(t, strings.ReplaceAll(string(text), manager, "'"+w.config.Impersonate.UserName+"'"))
	role, err := os.ReadFile("../../config/rbac/users/approver.yaml")
	must(t, err)
	for _, o := range append(objects, apitest.Objects(t, string(role))...) {
		w.MustCreate(t, o)
	}
}

func (w *world) object(t *testing.T, tc asked) client.Object {
	t.Helper()
	spec := strings.ReplaceAll(tc.spec, "NS", w.ns)
	o := apitest.Objects(t, "{apiVersion: diagnosis.kubediag.org/v1, kind: "+tc.kind+", metadata: {generateName: a-}, spec: {"+spec+"}}")[0]
	if tc.kind != "Trigger" && tc.kind != "RecoveryPolicy" {
		o.SetNamespace(w.ns)
	}
	return o
}

func (w *world) check(t *testing.T, err error, refused string) {
	t.Helper()
	refused = strings.ReplaceAll(refused, "NS", w.ns)
	switch {
	case refused == "" && err != nil:
		t.Errorf("refused: %v", err)
	case refused != "" && err == nil:
		t.Errorf("allowed, want %q", refused)
	case refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refused)):
		t.Errorf("refused: %v, want %q", err, refused)
	}
}

// updates: what leaves the spec as it is may be changed by all who may update, and spec.nodeName by who could have
// created what it then is.
func (w *world) updates(t *testing.T, clients map[string]client.Client) {
	for name, tc := range map[string]struct {
		asked
		change func(d *v1.Diagnosis)
	}{
		"label":               {asked{"blind", "Diagnosis", subPath + ", " + theirs, ""}, func(d *v1.Diagnosis) { d.Labels = map[string]string{"a": "b"} }},
		"node":                {asked{"dev", "Diagnosis", subPath + ", " + mine, ""}, func(d *v1.Diagnosis) { d.Spec.NodeName = "n1" }},
		"node of another pod": {asked{"dev", "Diagnosis", subPath + ", " + theirs, `spec.podReference: "kube-system/web"`}, func(d *v1.Diagnosis) { d.Spec.NodeName = "n1" }},
		"node where to abort": {asked{"dev", "Diagnosis", subPath + ", " + mine + ", " + aborting, "on node n1"}, func(d *v1.Diagnosis) { d.Spec.NodeName = "n1" }},
		"trigger":             {asked{"all", "Diagnosis", subPath + ", " + mine, `metadata.labels[diagnosis.kubediag.org/trigger]: "a": the origin`}, func(d *v1.Diagnosis) { d.Labels = map[string]string{v1.LabelTrigger: "a"} }},
		"origin":              {asked{"all", "Diagnosis", subPath + ", " + mine, `metadata.labels[diagnosis.kubediag.org/origin]: "sentinel": the origin`}, func(d *v1.Diagnosis) { d.Labels = map[string]string{v1.LabelOrigin: v1.OriginSentinel} }},
		"node of its agent":   {asked{"all", "Diagnosis", subPath + ", " + mine, `metadata.labels[diagnosis.kubediag.org/node]: "n1": this label is set and removed by the manager`}, func(d *v1.Diagnosis) { d.Labels = map[string]string{v1.LabelNode: "n1"} }},
		"a person":            {asked{"all", "Diagnosis", subPath + ", " + mine, ""}, func(d *v1.Diagnosis) { d.Labels = map[string]string{v1.LabelOrigin: v1.OriginPerson} }},
		"node to repair":      {asked{"n1", "Diagnosis", subPath + ", " + mine + ", " + aborting, ""}, func(d *v1.Diagnosis) { d.Spec.NodeName = "n1" }},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.object(t, tc.asked)
			w.MustCreate(t, o)
			d := &v1.Diagnosis{}
			must(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(o), d))
			tc.change(d)
			w.check(t, clients[tc.who].Update(t.Context(), d), tc.refused)
		})
	}
}

func (w *world) triggerUpdates(t *testing.T, clients map[string]client.Client) {
	o := w.object(t, asked{"", "Trigger", cleanup + ", nodeName: n1, " + cron, ""})
	w.MustCreate(t, o)
	trigger := &v1.Trigger{}
	for name, tc := range map[string]struct {
		who, refused string
		change       func()
	}{
		"label":          {"dev", "", func() { trigger.Labels = map[string]string{"a": "b"} }},
		"set":            {"dev", `spec.nodeName: "n1"`, func() { trigger.Spec.OperationSet = "other" }},
		"set, on n1":     {"n1", "", func() { trigger.Spec.OperationSet = "other" }},
		"another node":   {"n1", `spec.nodeName: "n2"`, func() { trigger.Spec.NodeName = "n2" }},
		"another source": {"n1", "on all nodes", func() { trigger.Spec.SourceTemplate = v1.SourceTemplate{MountFaultTemplate: &v1.MountFaultTemplate{}} }},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(o), trigger))
			tc.change()
			w.check(t, clients[tc.who].Update(t.Context(), trigger, client.DryRunAll), tc.refused)
		})
	}
}

// itself: the manager, which has none of these rights, binds what it must, and an agent writes its status and labels.
func (w *world) itself(t *testing.T) {
	w.run(t)
	node := w.node(t)
	d := w.diagnose(t, v1.DiagnosisSpec{
		PodReference: w.pod(t, node), Parameters: map[string]string{"param.recover.kubernetes.volume_rebind.abort": "true"},
	})
	w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == node && d.Spec.NodeName == node })
	w.keepsOrigin(t, d)
	agent := w.As(t, w.Limited(t, "agent", w.ns))
	running := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`))
	apitest.Eventually(t, func() error { return agent.Status().Patch(t.Context(), d, running) }) // its role is new to the API server
}

// keepsOrigin: the manager says that a policy has asked, and no person takes that away.
func (w *world) keepsOrigin(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	origin := func(value string) client.Patch {
		return client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1.LabelOrigin+`":`+value+`}}}`))
	}
	must(t, w.As(t, w.config).Patch(t.Context(), d, origin(`"policy"`)))
	for _, value := range []string{"null", `"person"`, `"trigger"`} {
		if err := w.Client.Patch(t.Context(), d.DeepCopy(), origin(value)); !apierrors.IsForbidden(err) {
			t.Errorf("origin %s: %v", value, err)
		}
	}
}

// people makes everybody, with a client, and waits until the API server knows what they may do.
func (w *world) people(t *testing.T) map[string]client.Client {
	t.Helper()
	clients := map[string]client.Client{}
	for who, p := range people {
		user := who + " " + w.ns
		if p.role != "" {
			w.bind(t, user, p.role, p.everywhere)
		}
		for _, g := range p.grants {
			w.bind(t, user, w.role(t, g), g.everywhere)
		}
		for _, g := range p.grants {
			w.may(t, user, g)
		}
		config := rest.CopyConfig(w.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		clients[who] = w.As(t, config)
	}
	return clients
}

func (w *world) role(t *testing.T, g grant) string {
	t.Helper()
	rule := rbacv1.PolicyRule{APIGroups: []string{g.group}, Resources: []string{g.resource}, Verbs: []string{g.verb}}
	if g.name != "" {
		rule.ResourceNames = []string{g.name}
	}
	roles := apitest.Clientset(t, w.Config).RbacV1().ClusterRoles()
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{rule}}
	r, err := roles.Create(t.Context(), r, metav1.CreateOptions{})
	must(t, err)
	return r.Name
}

func (w *world) bind(t *testing.T, user, role string, everywhere bool) {
	t.Helper()
	rbac := apitest.Clientset(t, w.Config).RbacV1()
	name := metav1.ObjectMeta{GenerateName: "grant-"}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	var err error
	if everywhere {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: subjects}
		_, err = rbac.ClusterRoleBindings().Create(t.Context(), b, metav1.CreateOptions{})
	} else {
		b := &rbacv1.RoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: subjects}
		_, err = rbac.RoleBindings(w.ns).Create(t.Context(), b, metav1.CreateOptions{})
	}
	must(t, err)
}

func (w *world) may(t *testing.T, user string, g grant) {
	t.Helper()
	resource, subresource, _ := strings.Cut(g.resource, "/")
	ns := w.ns
	if g.everywhere {
		ns = ""
	}
	reviews := apitest.Clientset(t, w.Config).AuthorizationV1().SubjectAccessReviews()
	apitest.Eventually(t, func() error {
		r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ns, Group: g.group, Resource: resource, Subresource: subresource, Name: g.name, Verb: g.verb,
			},
		}}
		r, err := reviews.Create(t.Context(), r, metav1.CreateOptions{})
		if err == nil && !r.Status.Allowed {
			err = fmt.Errorf("%s may not yet: %+v", user, g)
		}
		return err
	})
}

// inForce waits until both policies, and the roles of config/policy, are.
func (w *world) inForce(t *testing.T, clients map[string]client.Client) {
	t.Helper()
	for _, name := range []string{
		"a pod of another namespace", "trigger without repair", // refused
		"a record", "what one may not see", // refused, too
		"a pod that one may get", "trigger", "approved", "any node by an operator", "eviction by who may evict", "trigger that may evict",
		"policy that evicts", "policy that cordons", "policy that may evict", "policy that may cordon",
	} {
		tc := rights[name]
		apitest.Eventually(t, func() error {
			err := clients[tc.who].Create(t.Context(), w.object(t, tc), client.DryRunAll)
			if tc.refused == "" {
				return err
			}
			if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				return errors.Join(fmt.Errorf("%s: not in force yet", name), err)
			}
			return nil
		})
	}
}
