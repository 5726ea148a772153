// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/approval"
	deliver "kubediag.org/kubediag/internal/controller/approval"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/test/apitest"
)

// fileRepair repairs a node whose mounts are the files of a directory, each named after its number.
type fileRepair struct{ dir string }

func (*fileRepair) Name() string { return "testFileRepair" }

// mountNumbers are the numbers of those that are there.
func (f *fileRepair) mountNumbers() []uint64 {
	entries, _ := os.ReadDir(f.dir)
	var all []uint64
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 64)
		if err == nil {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

func (f *fileRepair) addMount(t *testing.T, id uint64) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(f.dir, fmt.Sprint(id)), nil, 0o600))
}

func (f *fileRepair) Plan(context.Context, processor.Request) (repair.Part, error) {
	var p repair.Part
	for _, id := range f.mountNumbers() {
		m := fault.Mount{ID: id, Point: fmt.Sprint("/m/", id)}
		p.Actions = append(p.Actions, fault.Action{Kind: fault.Unmount, Target: m.Point, Mount: &m, For: []fault.Key{{Code: fault.StaleSubPath}}, Lossless: true})
		p.Findings = append(p.Findings, fault.Finding{Code: fault.StaleSubPath, Mount: m})
	}
	if p.Actions == nil {
		p.NotApplicable = "nothing is mounted"
	}
	return p, nil
}

func (f *fileRepair) Open() repair.Apply {
	return func(_ context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
		return fault.Applied{Message: "unmounted"}, os.Remove(filepath.Join(f.dir, fmt.Sprint(a.Mount.ID)))
	}
}

func (*fileRepair) Verify(_ context.Context, _ processor.Request, p repair.Part) (processor.Result, error) {
	for i := range p.Findings {
		p.Findings[i].Healed = true
	}
	return processor.Result{Findings: p.Findings}, nil
}

// approvable is a node with an agent whose one processor is a fileRepair, and a manager that brings approvals to it.
type approvable struct {
	*testNode
	env    *apitest.Env
	repair *fileRepair
	// other is run instead of repair if it is set.
	other   repair.Family
	evictor repair.Evictor
	// obeys is set if the agent obeys RecoveryPolicies.
	obeys bool
}

func newApprovable(t *testing.T, env *apitest.Env, name string) *approvable {
	t.Helper()
	a := &approvable{testNode: newTestNode(t, name, env.Config), env: env, repair: &fileRepair{dir: t.TempDir()}}
	createOperations(t, env, name, "/processor/testFileRepair")
	a.startManager(t)
	return a
}

// startManager runs the part of the manager with the rights of the manager.
func (a *approvable) startManager(t *testing.T) {
	t.Helper()
	m, err := kubeclient.New(impersonate(a.env.Config, serviceAccount("kubediag-manager")), manager.Options{
		Metrics: server.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	r := &deliver.Reconciler{Client: m.GetClient(), Clock: clock.RealClock{}, Events: m.GetEventRecorderFor("kubediag-manager")} //nolint:staticcheck // as the manager has it
	must(t, r.SetupWithManager(m))
	startServing(t, m)
}

// startServing runs a manager until the test ends or the function is called.
func startServing(t *testing.T, m manager.Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// startAgent runs the parts of an agent that take, run and store Diagnoses.
func (a *approvable) startAgent(t *testing.T) (stop func()) {
	t.Helper()
	freshness := &guard.Freshness{}
	manager, err := newManager(a.config, a.options, freshness, false)
	must(t, err)
	part := &agent{
		options: a.options, manager: manager, freshness: freshness, registry: prometheus.NewRegistry(), runs: newRuns(),
	}
	recoverer := repair.Family(a.repair)
	if a.other != nil {
		recoverer = a.other
	}
	var gate repair.Gate
	if a.obeys {
		gate = part.newGate(t)
	}
	registry, err := pipeline.NewRegistry(pipeline.Step{Family: recoverer})
	must(t, err)
	registry.Evictor = a.evictor
	part.store = &statusStore{client: manager.GetClient(), live: manager.GetAPIReader(), backoff: saveBackoff}
	observer, err := part.observer()
	must(t, err)
	e, err := pipeline.New(pipeline.Options{
		Node: a.name, DataRoot: a.options.DataRoot, Registry: registry, Store: part.store, Observer: observer,
		Approvals: part.store, DefaultDeadline: a.options.DiagnosisTimeout, Gate: gate,
	})
	must(t, err)
	part.runner, part.closers = e, append(part.closers, e.Close)
	must(t, startWatching(t.Context(), manager))
	r := &reconciler{node: a.name, cache: manager.GetCache(), live: manager.GetAPIReader(), runs: part.runs, done: observer.Forget, refuse: refuseNone, runner: e}
	if err := r.setUp(manager, 1); err != nil { // one worker, so that one who waits must not hold it
		t.Fatal(err)
	}
	end := startServing(t, manager)
	stop = sync.OnceFunc(func() {
		end()
		if err := part.close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// newGate adds the part that obeys policies to an agent.
func (a *agent) newGate(t *testing.T) repair.Gate {
	t.Helper()
	must(t, a.newGuard(t.Context()))
	renewals := &agentLease{
		client: a.manager.GetClient(), namespace: a.options.Namespace, node: a.options.NodeName, renewal: a.options.LeaseRenewal, duration: a.options.LeaseDuration,
		now: time.Now, renewed: a.freshness.Answered,
	}
	for _, runnable := range []manager.Runnable{a.guard, renewals} {
		must(t, a.manager.Add(runnable))
	}
	pods := &nodePods{node: a.options.NodeName, cache: a.manager.GetAPIReader(), live: a.manager.GetAPIReader()}
	return &repairHolder{guard: a.guard, pods: pods, diagnoses: a.manager.GetCache()}
}

// createDiagnosis makes a Diagnosis whose plan is to be approved, and waits until it waits.
func (a *approvable) createDiagnosis(t *testing.T, name string) *v1.Diagnosis {
	t.Helper()
	d := a.diagnosis(name, a.name)
	d.Spec.Mode = v1.ModeApprove
	if a.obeys {
		d.Labels[v1.LabelOrigin] = v1.OriginPolicy
	}
	a.bind(t, a.env, d)
	return a.awaitApproval(t, d)
}

func (a *approvable) awaitApproval(t *testing.T, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	now := d.DeepCopy()
	a.env.Until(t, now, func() bool {
		c := meta.FindStatusCondition(now.Status.Conditions, v1.ConditionApproved)
		return c != nil && c.Reason == v1.ReasonWaitingForApproval && now.Status.Outcome == v1.OutcomeAwaitingApproval
	})
	return now
}

// awaitSettled waits until an approval is in a state.
func (a *approvable) awaitSettled(t *testing.T, given *v1.RecoveryApproval, state v1.ApprovalState) *v1.RecoveryApproval {
	t.Helper()
	now := given.DeepCopy()
	a.env.Until(t, now, func() bool { return now.Status.State == state })
	return now
}

// createApproval creates the approval of the plan of a Diagnosis, as a user.
func createApproval(t *testing.T, c client.Client, d *v1.Diagnosis) *v1.RecoveryApproval {
	t.Helper()
	given, err := approval.For(d, approval.Options{})
	must(t, err)
	apitest.Eventually(t, func() error { return c.Create(t.Context(), given) }) // a role is new to the API server
	return given
}

// userClient is a client with one of the roles that are shipped for people.
func userClient(t *testing.T, env *apitest.Env, name, role string) client.Client {
	t.Helper()
	_, err := apitest.Clientset(t, env.Config).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, metav1.CreateOptions{})
	must(t, err)
	return env.As(t, impersonate(env.Config, rest.ImpersonationConfig{UserName: name}))
}

// TestApproval goes from the plan to its approval, which comes while the agent is down, from one who may approve and
// nothing else.
func TestApproval(t *testing.T) {
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			installDefault(t)
			name := "approve-" + strings.ReplaceAll(version, ".", "-")
			a := newApprovable(t, start(t), name)
			a.repair.addMount(t, 7)
			a.repair.addMount(t, 8)
			stop := a.startAgent(t)
			diagnosis := a.createDiagnosis(t, name)
			if got := a.repair.mountNumbers(); len(got) != 2 || diagnosis.Status.Plan.Actions != 2 {
				t.Fatalf("mounts %v, plan %+v", got, diagnosis.Status.Plan)
			}
			wrong, _ := approval.For(diagnosis, approval.Options{})
			wrong.Spec.PlanHash = strings.Repeat("0a", 32)
			a.env.MustCreate(t, wrong)
			if got := a.awaitSettled(t, wrong, v1.ApprovalRefused); !strings.Contains(got.Status.Message, "it approves another plan") {
				t.Errorf("status %+v", got.Status)
			}
			planned := a.diagnosis(name+"-other", name) // the one worker is free
			planned.Spec.Mode = v1.ModePlan
			a.bind(t, a.env, planned)
			if other := awaitPhase(t, a.env, planned, v1.DiagnosisSucceeded); other.Status.Plan.Hash != diagnosis.Status.Plan.Hash {
				t.Errorf("mode Plan has another plan: %+v", other.Status.Plan)
			}
			stop()
			given := a.byApprover(t, name, diagnosis)
			stop = a.startAgent(t)
			diagnosis = awaitPhase(t, a.env, diagnosis, v1.DiagnosisSucceeded)
			if s := diagnosis.Status; s.Outcome != v1.OutcomeHealed || len(a.repair.mountNumbers()) > 0 || s.Approval.Name != given.Name ||
				!meta.IsStatusConditionTrue(s.Conditions, v1.ConditionApproved) {
				t.Errorf("mounts %v, status %+v", a.repair.mountNumbers(), s)
			}
			given = a.awaitSettled(t, given, v1.ApprovalUsed)
			if len(given.OwnerReferences) != 1 || given.OwnerReferences[0].UID != diagnosis.UID || given.Status.DiagnosisUID != diagnosis.UID {
				t.Errorf("approval %+v", given)
			}
			stop()
		})
	}
}

// byApprover has an operator try to approve, and an approver do it.
func (a *approvable) byApprover(t *testing.T, name string, diagnosis *v1.Diagnosis) *v1.RecoveryApproval {
	t.Helper()
	operator, approver := userClient(t, a.env, name+"-operator", "kubediag-operator"), userClient(t, a.env, name+"-approver", "kubediag-approver")
	given := createApproval(t, approver, diagnosis)
	err := approver.Create(t.Context(), a.diagnosis(name+"-made", name))
	if !apierrors.IsForbidden(err) {
		t.Errorf("an approver makes a Diagnosis: %v", err)
	}
	second, _ := approval.For(diagnosis, approval.Options{})
	if err := operator.Create(t.Context(), second); !apierrors.IsForbidden(err) {
		t.Errorf("an operator approves: %v", err)
	}
	changed := given.DeepCopy()
	changed.Spec.PlanHash = strings.Repeat("0b", 32)
	err = a.env.Client.Patch(t.Context(), changed, client.MergeFrom(given), client.DryRunAll)
	if err == nil && a.env.Rules {
		t.Error("an approval can be changed")
	}
	return given
}
