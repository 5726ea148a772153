// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/flood"
)

// tally counts the writes that attackers try, by a description of the attempt. Several goroutines use it.
type tally struct {
	mu    sync.Mutex
	tried map[string]*attempts
}

// attempts are the writes of one kind, by the answers of the API server.
type attempts struct{ done, refused, late int }

// allowed counts a write that the attacker has the right to. It returns an error if the API server refuses it.
func (t *tally) allowed(attempt string, err error) error { return t.count(attempt, false, err) }

// refused counts a write that the attacker has no right to. It returns an error if the API server takes it.
func (t *tally) refused(attempt string, err error) error { return t.count(attempt, true, err) }

func (t *tally) count(attempt string, forbidden bool, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tried == nil {
		t.tried = map[string]*attempts{}
	}
	if t.tried[attempt] == nil {
		t.tried[attempt] = &attempts{}
	}
	n := t.tried[attempt]
	switch {
	case tired(err):
		n.late++
	case apierrors.IsForbidden(err):
		if n.refused++; !forbidden {
			return fmt.Errorf("%s is refused: %w", attempt, err)
		}
	case forbidden:
		return fmt.Errorf("%s is not refused: %w", attempt, err)
	case client.IgnoreNotFound(client.IgnoreAlreadyExists(err)) != nil:
		return fmt.Errorf("%s: %w", attempt, err)
	default:
		n.done++
	}
	return nil
}

// report logs the counts. Each attempt has to have been made.
func (t *tally) report(b *testing.B) {
	b.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	var all attempts
	for _, attempt := range slices.Sorted(maps.Keys(t.tried)) {
		n := t.tried[attempt]
		b.Logf("%s: %d done, %d refused, %d not answered in time", attempt, n.done, n.refused, n.late)
		all.done, all.refused = all.done+n.done, all.refused+n.refused
		if n.done+n.refused == 0 {
			b.Errorf("%s was never answered", attempt)
		}
	}
	b.ReportMetric(float64(all.done), "writes-of-attackers")
	b.ReportMetric(float64(all.refused), "refused-writes")
}

const tenantName = "mallory"

// tenantSpaces are the namespaces of the tenant, victimSpaces those that the tenant may view.
var tenantSpaces, victimSpaces = []string{flood.Namespace, "tenant-asked", "tenant-shared"}, []string{"shared", "asked"}

// tenantRoles are the roles that a tenant is given, and viewerRoles those of a namespace that the tenant may view. The roles of Kubernetes are the
// parts of edit and view: no controller puts these together here.
var (
	viewerRoles = []string{"system:aggregate-to-view", "kubediag-view"}
	tenantRoles = append(slices.Clone(viewerRoles), "system:aggregate-to-edit", "kubediag-pod-repairer", "kubediag-approver", tenantName)
)

// tenantRole is for the Events of a tenant's controllers.
const tenantRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: ` + tenantName + `}
rules:
- {apiGroups: [""], resources: [events], verbs: [create, delete]}
---
`

const tenantBinding = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: "` + tenantName + `:%[1]s", namespace: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "%[1]s"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ` + tenantName + `}]
---
`

// tenant is a user who may repair the pods of some namespaces, approve repairs there, and view other namespaces.
type tenant struct {
	client.Client
	tally *tally
}

// newTenant has the policy for rights in force. The agent and the manager of the benchmark are another user, and the policy takes that one for the
// manager.
func (t *town) newTenant(b *testing.B) *tenant {
	b.Helper()
	set := apitest.Clientset(b, t.Config)
	self, err := set.AuthenticationV1().SelfSubjectReviews().Create(b.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(b, err)
	const account = "'system:serviceaccount:kubediag:kubediag-manager'"
	for _, file := range []string{"policy/diagnosis-rights.yaml", "rbac/users/approver.yaml", "rbac/users/view.yaml"} {
		text, err := os.ReadFile("../../config/" + file)
		must(b, err)
		t.apply(b, strings.ReplaceAll(string(text), account, "'"+self.Status.UserInfo.Username+"'"))
	}
	must(b, client.IgnoreAlreadyExists(t.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: flood.Namespace}})))
	manifest := tenantRole
	for roles, spaces := range map[*[]string][]string{&tenantRoles: tenantSpaces, &viewerRoles: victimSpaces} {
		for _, namespace := range spaces {
			for _, role := range *roles {
				manifest += fmt.Sprintf(tenantBinding, role, namespace)
			}
		}
	}
	for _, o := range apitest.Objects(b, manifest) {
		must(b, client.IgnoreAlreadyExists(t.Create(b.Context(), o)))
	}
	config := rest.CopyConfig(t.Config)
	config.Impersonate, config.QPS = rest.ImpersonationConfig{UserName: tenantName, Groups: []string{"system:authenticated"}}, -1
	c, err := client.New(config, client.Options{Scheme: t.Scheme()})
	must(b, err)
	mallory := &tenant{Client: c, tally: &t.tally}
	apitest.Eventually(b, func() error { return mallory.check(b.Context()) }) // until roles and the policy are in force
	return mallory
}

// check makes sure that the API server takes a Diagnosis of an own pod, and refuses all that is forbidden.
func (m *tenant) check(ctx context.Context) error {
	if err := m.Create(ctx, diagnosisOf("tenant-asked", "tenant-0"), client.DryRunAll); err != nil {
		return err
	}
	for attempt, o := range m.forbidden() {
		if err := m.Create(ctx, o, client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("%s is not refused: %w", attempt, err)
		}
	}
	return nil
}

// diagnosisOf is a Diagnosis in the tenant's namespace.
func diagnosisOf(namespace, pod string) *v1.Diagnosis {
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{
		OperationSet: "subpath-remount-op-set", NodeName: fakenode.NodeName, PodReference: &v1.PodReference{Namespace: namespace, Name: pod},
	}}
	d.Namespace, d.Name = "tenant-asked", "of-"+pod
	return d
}

// forbidden are objects that the tenant has no right to, by their description.
func (m *tenant) forbidden() map[string]client.Object {
	ofNode, labelled, evicting := diagnosisOf("tenant-asked", "tenant-0"), diagnosisOf("tenant-asked", "tenant-0"), diagnosisOf("shared", "victim-0")
	ofNode.Spec.PodReference = nil
	labelled.Labels = map[string]string{v1.LabelNode: fakenode.NodeName}
	evicting.Spec.OperationSet = "pod-evict-op-set"
	forged := diagnosisOf("tenant-asked", "tenant-0")
	forged.Namespace = "shared"
	return map[string]client.Object{
		"a Diagnosis of a pod that the tenant may view": diagnosisOf("shared", "victim-0"), "an eviction of that pod": evicting,
		"a Diagnosis of the whole node": ofNode, "a Diagnosis with the label of the manager": labelled, "a Diagnosis in the namespace of a victim": forged,
	}
}

// large is one of the largest objects of a kind, for the attacker who has the right to it: the tenant, or an agent that was taken over, which may write
// the MountFaults of its own node.
func (t *town) large(kind string, i int) (o client.Object, by client.Client) {
	switch o := flood.Kinds[kind](i).(type) {
	case *v1.Diagnosis:
		delete(o.Labels, v1.LabelNode)
		o.Spec.OperationSet, o.Spec.PodReference = v1.DefaultOperationSet, &v1.PodReference{Namespace: flood.Namespace, Name: "env-000"}
		return o, t.mallory
	case *v1.MountFault:
		o.Labels[v1.LabelNode], o.Status.Node = otherNode, otherNode
		return o, t.agent
	default:
		return o, t.mallory
	}
}

// refusedLarge has both attackers try the largest objects of a kind to which they have no right.
func (t *town) refusedLarge(ctx context.Context, kind string) error {
	o := flood.Kinds[kind](0)
	err := t.tally.refused("one of the largest "+kind+", by the tenant", t.mallory.Create(ctx, o))
	if isLease(kind) {
		err = errors.Join(err, t.tally.refused("one of the largest "+kind+", by an agent", t.agent.Create(ctx, o)))
	}
	if isOver(ctx) {
		return nil
	}
	return err
}

// isLease reports whether a kind is of Leases: an agent that was taken over may write its own alone, and with two labels.
func isLease(kind string) bool {
	_, lease := flood.Kinds[kind](0).(*coordinationv1.Lease)
	return lease
}

// flood makes the largest objects, and then replaces one after the other, as the tenant and as an agent that was taken over.
func (t *town) flood(ctx context.Context) error {
	many := map[string]int{flood.Quick: maxObjects}
	all := slices.Sorted(maps.Keys(flood.Kinds))
	kinds := slices.DeleteFunc(slices.Clone(all), isLease)
	create := func(kind string, i int) error {
		o, by := t.large(kind, i)
		return t.tally.allowed("one of the largest "+kind, by.Create(ctx, o))
	}
	for _, kind := range kinds {
		if many[kind] == 0 {
			many[kind] = costlyObjects
		}
		for i := range many[kind] {
			if err := create(kind, i); err != nil {
				return err
			}
		}
	}
	for round := 0; ; round++ {
		for _, kind := range all {
			if isLease(kind) || kind == "mountfaults" {
				if err := t.refusedLarge(ctx, kind); err != nil {
					return err
				}
			}
			if isLease(kind) {
				continue
			}
			if pauseFor(ctx, objectGap); isOver(ctx) {
				return nil
			}
			i := round % many[kind]
			o, by := t.large(kind, i)
			err := t.tally.allowed("the removal of one of the largest "+kind, by.Delete(ctx, o, client.GracePeriodSeconds(0)))
			if err = errors.Join(err, create(kind, i)); err != nil {
				return err
			}
		}
	}
}

// request makes Diagnoses in the tenant's namespace: of pods that are not there, and plans that wait for an approval. Later ones of these do not
// find a place. The tenant also tries all that is forbidden.
func (t *town) request(ctx context.Context) error {
	const waiting = 300
	for i := 0; ; i++ {
		if pauseFor(ctx, requestGap); isOver(ctx) {
			return nil
		}
		d, attempt := diagnosisOf("tenant-asked", "missing"), "a Diagnosis of an own pod"
		if d.Name = fmt.Sprint("requested-", i); i%2 == 0 && i < 2*waiting {
			d.Spec.Mode, d.Spec.PodReference.Name, attempt = v1.ModeApprove, "tenant-0", "a Diagnosis that waits for an approval"
		}
		if err := t.tally.allowed(attempt, t.mallory.Create(ctx, d)); err != nil {
			return err
		}
		for attempt, o := range t.mallory.forbidden() {
			if err := t.tally.refused(attempt, t.mallory.Create(ctx, o)); err != nil && !isOver(ctx) {
				return err
			}
		}
	}
}
