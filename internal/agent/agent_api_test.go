// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// TestWalkthroughOfAHealthyPod runs the samples as they stand against a pod with nothing wrong with it, by an agent
// that has no other rights than the manifests give it.
func TestWalkthroughOfAHealthyPod(t *testing.T) {
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			installDefault(t)
			env := start(t)
			n := newTestNode(t, "walkthrough-"+strings.ReplaceAll(version, ".", "-"), env.Config)
			n.startAgent(t)
			createShipped(t, env, "subpath-remount.yaml", "subpath-remount-op-set")
			p := createPod(t, env, n.name+"-pod", n.name)
			diagnosis := n.diagnosis("walkthrough", "subpath-remount-op-set")
			diagnosis.Spec.PodReference = &v1.PodReference{Namespace: p.Namespace, Name: p.Name}
			n.bind(t, env, diagnosis)
			diagnosis = awaitPhase(t, env, diagnosis, v1.DiagnosisFailed)

			if diagnosis.Status.Outcome != v1.OutcomeNoFault {
				t.Errorf("outcome %q, conditions %+v", diagnosis.Status.Outcome, diagnosis.Status.Conditions)
			}
			if c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionAccepted); c == nil || c.Message != "Diagnosis is accepted by agent on node "+n.name {
				t.Errorf("accepted: %+v", c)
			}
			if detail := diagnosis.Status.OperationResults["collector.kubernetes.pod.detail"]; !strings.HasPrefix(detail, `{"kind":"Pod","apiVersion":"v1"`) {
				t.Errorf("pod detail is %.100q", detail)
			}
			expectEvents(t, env, diagnosis.UID, []string{
				"DiagnosisAccepted", "OperationSucceeded", "OperationSucceeded", "OperationNotApplicable", "DiagnosisFailed",
			})
			expectMetrics(t, n, []string{
				`kubediag_diagnoses_running 0`,
				`kubediag_diagnoses_total{NoFault} 1`,
				`kubediag_operations_total{Succeeded,mountInfoCollector} 1`,
				`kubediag_operations_total{Succeeded,podDetailCollector} 1`,
				`kubediag_operations_total{NotApplicable,subpathRemountDiagnoser} 1`,
				`kubediag_abandoned_goroutines 0`,
			})
			apitest.Eventually(t, func() error { // nothing waits for the Lease
				lease := &coordinationv1.Lease{}
				err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "kubediag", Name: v1.AgentLeaseName(n.name)}, lease)
				if holder := lease.Spec.HolderIdentity; err == nil && (holder == nil || *holder != n.name) {
					err = fmt.Errorf("lease %+v", lease.Spec)
				}
				return err
			})
		})
	}
}

// createShipped creates what config/operations has, and says that the set is ready.
func createShipped(t *testing.T, env *apitest.Env, file, name string) {
	t.Helper()
	manifests, err := os.ReadFile(filepath.Join(configDir, "operations", file))
	must(t, err)
	for _, o := range apitest.Objects(t, string(manifests)) {
		env.MustCreate(t, o)
	}
	set := &v1.OperationSet{}
	must(t, env.Client.Get(t.Context(), client.ObjectKey{Name: name}, set))
	set.Status = v1.OperationSetStatus{Ready: true, ObservedGeneration: set.Generation}
	must(t, env.Client.Status().Update(t.Context(), set))
}

// expectEvents waits for the reasons of all Events about an object, each as often as it happened.
func expectEvents(t *testing.T, env *apitest.Env, uid types.UID, want []string) {
	t.Helper()
	slices.Sort(want)
	apitest.Eventually(t, func() error {
		var list corev1.EventList
		if err := env.Client.List(t.Context(), &list, client.InNamespace("default")); err != nil {
			return err
		}
		var got []string
		for _, e := range list.Items {
			if e.InvolvedObject.UID == uid {
				got = append(got, slices.Repeat([]string{e.Reason}, int(e.Count))...)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
}

// expectMetrics waits for lines that hold a metric's name, the values of its labels and its own.
func expectMetrics(t *testing.T, n *testNode, want []string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		seen, err := gatherMetrics(n)
		for _, line := range want {
			if err == nil && !seen[line] {
				err = fmt.Errorf("no metric %q in %v", line, seen)
			}
		}
		return err
	})
}

func gatherMetrics(n *testNode) (map[string]bool, error) {
	families, err := n.registry.Gather()
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			seen[fmt.Sprintf("%s %v", name, m.GetCounter().GetValue()+m.GetGauge().GetValue())] = true
		}
	}
	return seen, err
}

func TestStoppedAgentGoesOnLater(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "resume", env.Config)
	first := newExternal(t, nil)
	blocked, release := make(chan struct{}, 2), make(chan struct{})
	second := newExternal(t, func(ctx context.Context, _ int) {
		blocked <- struct{}{}
		select {
		case <-ctx.Done():
		case <-release:
		}
	})
	createOperations(t, env, "resume", first.URL+"/first", second.URL+"/second")
	n.startAgent(t)
	diagnosis := n.createDiagnosis(t, env, "resume", "resume")
	<-blocked
	n.stopAgent(t)
	if phase := readDiagnosis(t, env, diagnosis).Status.Phase; phase != v1.DiagnosisRunning {
		t.Errorf("phase %q after the agent was stopped", phase)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Unknown"}}`))
	must(t, env.Client.Status().Patch(t.Context(), diagnosis.DeepCopy(), patch))
	n.startAgent(t)
	<-blocked
	awaitPhase(t, env, diagnosis, v1.DiagnosisRunning)
	close(release)
	diagnosis = awaitPhase(t, env, diagnosis, v1.DiagnosisSucceeded)
	if first.count() != 1 || second.count() != 2 {
		t.Errorf("operations ran %d and %d times", first.count(), second.count())
	}
	want := map[string]string{"test.first": "1", "test.second": "2"}
	if diff := cmp.Diff(want, diagnosis.Status.OperationResults); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	// Once more: what has ended stays as it is.
	n.stopAgent(t)
	n.startAgent(t)
	other := n.createDiagnosis(t, env, "resume-other", "resume")
	awaitPhase(t, env, other, v1.DiagnosisSucceeded)
	if now := readDiagnosis(t, env, diagnosis); now.ResourceVersion != diagnosis.ResourceVersion {
		t.Errorf("a Diagnosis that has ended was written again: %+v", now.Status)
	}
	if first.count() != 2 {
		t.Errorf("a Diagnosis that has ended ran again: %d", first.count())
	}
}

// TestChangedSpecDoesNotGoOn: while the agent is down, the author of a Diagnosis has it name another pod, of a namespace in which the author has
// no rights. API servers before 1.25 do not refuse that.
func TestChangedSpecDoesNotGoOn(t *testing.T) {
	t.Parallel()
	installDefault(t)
	env := apitest.StartOld(t)
	n := newTestNode(t, "changed", env.Config)
	blocked := make(chan struct{}, 1)
	slow := newExternal(t, func(ctx context.Context, call int) {
		if call == 1 {
			blocked <- struct{}{}
			<-ctx.Done()
		}
	})
	createOperations(t, env, "changed", slow.URL+"/slow")
	p := createPod(t, env, "changed-pod", n.name)
	n.startAgent(t)
	d := n.diagnosis("changed", "changed")
	d.Spec.PodReference = &v1.PodReference{Namespace: p.Namespace, Name: p.Name}
	n.bind(t, env, d)
	<-blocked
	n.stopAgent(t)
	d = readDiagnosis(t, env, d)
	d.Spec.PodReference = &v1.PodReference{Namespace: "kube-system", Name: "another"}
	must(t, env.Client.Update(t.Context(), d))
	n.startAgent(t)
	d = awaitPhase(t, env, d, v1.DiagnosisFailed)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if c == nil || c.Reason != v1.ReasonInvalid || !strings.HasPrefix(c.Message, "spec: it was changed after the agent") || slow.count() != 1 {
		t.Errorf("complete %+v, %d calls", c, slow.count())
	}
}

func TestDeletedDiagnosisStops(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "deleted", env.Config)
	begun, stopped := make(chan struct{}), make(chan struct{})
	slow := newExternal(t, func(ctx context.Context, call int) {
		if call > 1 {
			return
		}
		close(begun)
		<-ctx.Done()
		close(stopped)
	})
	createOperations(t, env, "deleted", slow.URL+"/slow")
	n.startAgent(t)
	d := n.createDiagnosis(t, env, "deleted", "deleted")
	<-begun
	must(t, env.Client.Delete(t.Context(), d))
	again := n.createDiagnosis(t, env, "deleted", "deleted")
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Fatal("the operation of a deleted Diagnosis goes on")
	}
	again = awaitPhase(t, env, again, v1.DiagnosisSucceeded)
	if again.Status.OperationResults["test.slow"] != "2" || len(again.Status.Operations) != 1 {
		t.Errorf("the new Diagnosis has %+v", again.Status)
	}
	if journals, _ := filepath.Glob(filepath.Join(n.options.DataRoot, "journal", string(again.UID)+"*")); len(journals) != 1 {
		t.Errorf("journals %q", journals)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	for workers, name := range map[int]string{1: "one", 3: "three"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			most := max(1, workers-1) // of one namespace: the last worker is kept for others
			n := newTestNode(t, "workers-"+name, env.Config)
			n.options.Workers = workers
			// Everybody waits until as many are there as may be at once.
			var together sync.WaitGroup
			together.Add(most)
			arrive := make(chan struct{}, most)
			for range most {
				arrive <- struct{}{}
			}
			busy := newExternal(t, func(context.Context, int) {
				select {
				case <-arrive:
					together.Done()
				default:
				}
				together.Wait()
			})
			createOperations(t, env, "workers-"+name, busy.URL+"/busy")
			var all []*v1.Diagnosis
			for i := range 3 * workers {
				all = append(all, n.createDiagnosis(t, env, fmt.Sprintf("workers-%s-%d", name, i), "workers-"+name))
			}
			n.startAgent(t)
			for _, d := range all {
				awaitPhase(t, env, d, v1.DiagnosisSucceeded)
			}
			if busy.most != most || busy.count() != 3*workers {
				t.Errorf("%d at once, %d calls", busy.most, busy.count())
			}
		})
	}
}

func TestPodMustBeHere(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "pods", env.Config)
	here := createPod(t, env, "pod-here", n.name)
	createPod(t, env, "pod-there", "elsewhere")
	createPod(t, env, "pod-nowhere", "")
	createOperations(t, env, "pods", "/processor/podDetailCollector")
	n.startAgent(t)
	for name, tc := range map[string]struct{ phase, reason, message string }{
		here.Name:     {"Succeeded", v1.ReasonComplete, "Diagnosis is completed"},
		"pod-there":   {"Failed", v1.ReasonPodOnOtherNode, `spec.podReference: Pod default/pod-there is on node "elsewhere", this is node "pods"`},
		"pod-nowhere": {"Failed", v1.ReasonPodOnOtherNode, `spec.podReference: Pod default/pod-nowhere is on node "", this is node "pods"`},
		"pod-never":   {"Failed", v1.ReasonPodNotFound, "spec.podReference: Pod default/pod-never does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diagnosis := n.diagnosis(name, "pods")
			diagnosis.Spec.PodReference = &v1.PodReference{Namespace: "default", Name: name}
			n.bind(t, env, diagnosis)
			diagnosis = awaitPhase(t, env, diagnosis, v1.DiagnosisPhase(tc.phase))
			c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete)
			if c == nil || c.Reason != tc.reason || c.Message != tc.message {
				t.Errorf("complete: %+v", c)
			}
			if diagnosis.Status.StartTime == nil || diagnosis.Status.CompletionTime == nil {
				t.Errorf("times %v %v", diagnosis.Status.StartTime, diagnosis.Status.CompletionTime)
			}
		})
	}
}

// TestOwnLabelRunsNothing: a user has written the label of this node, which no policy refuses here. The agent begins the Diagnosis when the
// manager has given it a place, and a user cannot give it one.
func TestOwnLabelRunsNothing(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "own-label", env.Config)
	quiet := newExternal(t, nil)
	createOperations(t, env, "own-label", quiet.URL+"/quiet")
	n.startAgent(t)
	user := userClient(t, env, "own-label", "kubediag-operator")
	d := n.diagnosis("own-label", "own-label")
	must(t, user.Create(t.Context(), d))
	forged := d.DeepCopy()
	givePlace(forged)
	if err := user.Status().Update(t.Context(), forged); !apierrors.IsForbidden(err) {
		t.Errorf("a user gives a Diagnosis its place: %v", err)
	}
	awaitPhase(t, env, n.createDiagnosis(t, env, "own-label-other", "own-label"), v1.DiagnosisSucceeded)
	if d = readDiagnosis(t, env, d); d.Status.Phase != "" || quiet.count() != 1 {
		t.Errorf("phase %q, %d calls", d.Status.Phase, quiet.count())
	}
	givePlace(d)
	must(t, env.Client.Status().Update(t.Context(), d))
	awaitPhase(t, env, d, v1.DiagnosisSucceeded)
}

func TestReadinessNamesTheMissingKubelet(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "unready", env.Config)
	n.options.HealthProbeBindAddress = freeAddress(t)
	n.options.KubeletRoot = filepath.Join(n.options.KubeletRoot, "later")
	n.startAgent(t)
	for _, path := range []string{"/healthz", "/readyz/caches"} {
		apitest.Eventually(t, func() error { return n.readHealth(path) })
	}
	if err := n.readHealth("/readyz"); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("without a kubelet: %v", err)
	}
	must(t, os.Mkdir(n.options.KubeletRoot, 0o700))
	apitest.Eventually(t, func() error { return n.readHealth("/readyz") })
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestSecondAgentOfADataRootGivesUp(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, "twice", apitest.Start(t).Config)
	held, err := openDataRoot(t.Context(), n.options.DataRoot, 0)
	must(t, err)
	defer func() { _ = held.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := runAgent(ctx, n.config, n.options, prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("error %v", err)
	}
}

// TestGuardAsksForThePolicy: where no policy asks for the rights of people, a Diagnosis of a pod in another namespace runs nothing, also if
// its author has set the label by which agents watch. One in the namespace of kubediag runs.
func TestGuardAsksForThePolicy(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "spaces", env.Config)
	pod := createPod(t, env, "spaces-pod", n.name)
	server := newExternal(t, nil)
	createOperations(t, env, "spaces", server.URL+"/any")
	n.startAgent(t)
	for i, tc := range []struct {
		namespace string
		phase     v1.DiagnosisPhase
		reason    string
	}{{env.Namespace(t), v1.DiagnosisFailed, v1.ReasonPodInOtherNamespace}, {"kubediag", v1.DiagnosisSucceeded, v1.ReasonComplete}} {
		d := n.diagnosis("spaces-"+tc.namespace, "spaces")
		d.Namespace, d.Spec.PodReference = tc.namespace, &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name}
		n.bind(t, env, d)
		d = awaitPhase(t, env, d, tc.phase)
		if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c == nil || c.Reason != tc.reason || server.count() != i {
			t.Errorf("in %s: %+v, %d calls", tc.namespace, c, server.count())
		}
	}
}
