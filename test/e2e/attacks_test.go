// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/install"
)

// flooder is a pod without any right that makes 93,000 mounts at paths of 3,000 bytes, in a user namespace of its own.
const flooder = `
apiVersion: v1
kind: ConfigMap
metadata: {name: flood, namespace: tenant}
data:
  flood.sh: |
    mount -t tmpfs t /tmp && mkdir -p /tmp/a /tmp/S && mount -t tmpfs s /tmp/S || exit 1
    n=$(printf 'x%.0s' $(seq 200)); cd /tmp; for i in $(seq 15); do mkdir $n; cd $n; done
    for i in $(seq 310); do mkdir /tmp/S/$i; mount -o bind /tmp/a /tmp/S/$i; done
    made=0
    for i in $(seq 300); do mkdir r$i; mount -o rbind /tmp/S r$i || break; made=$((made + 311)); done
    echo made $made
    exec sleep 100000
---
apiVersion: v1
kind: Pod
metadata: {name: flood, namespace: tenant}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
  - name: flood
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [unshare, -U, -r, -m, /bin/sh, /attack/flood.sh]
    resources: {limits: {memory: 128Mi}}
    securityContext:
      runAsUser: 1000
      runAsNonRoot: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
    volumeMounts: [{name: attack, mountPath: /attack}]
  volumes: [{name: attack, configMap: {name: flood}}]
`

const (
	tenants = "tenant" // namespace of the attacker, and
	others  = "others" // of those who were there before
	refused = 60       // Diagnoses of the attacker; 50 are kept of a namespace on a node
	records = 20       // of others
	pending = 300      // Diagnoses of the attacker that do not end
)

// withstandsTenants has tenants do what they may do in the default installation, one thing beside the other: mounts without
// number, Diagnoses that are refused, and Diagnoses that do not end. The pod of others is healed meanwhile, their records
// stay, their Diagnoses run, and the agent is never started again.
func (e *env) withstandsTenants(t *testing.T, pod *corev1.Pod) {
	for _, name := range []string{tenants, others} {
		must(t, e.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	mounts := e.flood(t)
	e.Kubectl(t, "", "set", "env", "-n", install.Namespace, "deployment/kubediag-manager", "KUBEDIAG_RETENTION_INTERVAL=5s")
	e.SetSentinel(t, "Observe") // the first look of another agent meets the mounts
	e.Kubectl(t, "", "rollout", "status", "-n", install.Namespace, "deployment/kubediag-manager", "--timeout=2m")
	t.Run("mounts without number", func(t *testing.T) {
		for i := range 2 {
			e.lookAmid(t, pod, mounts, fmt.Sprint("amid-mounts-", i))
		}
		e.healsAgain(t, pod, "amid mounts")
	})
	t.Run("rights in two namespaces, as installed", func(t *testing.T) { e.reachesNoOther(t, pod, false) })
	var kept func(*testing.T)
	t.Run("Diagnoses that are refused", func(t *testing.T) { kept = e.refusedOnes(t, pod) })
	e.Kubectl(t, "", "apply", "-f", "../../config/policy/agent-node.yaml")
	t.Run("rights in two namespaces, with the policies", func(t *testing.T) { e.reachesNoOther(t, pod, true) })
	agent := e.Component(t, "agent")
	t.Run("Diagnoses that do not end", func(t *testing.T) { e.pendingOnes(t, pod) })
	if kept != nil {
		t.Run("records of others stay", kept)
	}
	now := e.Component(t, "agent")
	if now.UID != agent.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the agent was started again: %+v", now.Status.ContainerStatuses)
	}
	if e.metric(t, "kubediag_sentinel_watching") != 1 {
		t.Error("the sentinel does not watch")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.processOf(t, "agent")))
	must(t, err)
	t.Logf("the agent had at the most: %s", regexp.MustCompile(`VmHWM:\s+(.*)`).FindSubmatch(status)[1])
	e.DeletePods(t, tenants, "flood")
}

// flood starts the pod with the mounts, and gives how many it has made.
func (e *env) flood(t *testing.T) int {
	t.Helper()
	e.Kubectl(t, flooder, "apply", "-f", "-")
	made := 0
	e.Wait(t, "the mounts of the attacker", func(ctx context.Context) bool {
		var p corev1.Pod
		must(t, e.Get(ctx, client.ObjectKey{Namespace: tenants, Name: "flood"}, &p))
		switch p.Status.Phase {
		case corev1.PodRunning:
			_, err := fmt.Sscanf(e.Kubectl(t, "", "logs", "-n", tenants, "flood"), "made %d", &made)
			return err == nil
		case corev1.PodFailed, corev1.PodSucceeded:
			t.Fatalf("the attacker has ended: %+v\n%s", p.Status.ContainerStatuses, e.Kubectl(t, "", "logs", "-n", tenants, "flood"))
		}
		return false
	})
	if made < 80_000 {
		t.Fatalf("the attacker has made %d mounts", made)
	}
	t.Logf("the attacker has made %d mounts", made)
	return made
}

// lookAmid has a Diagnosis look at all mount namespaces: it sees all those mounts, or says that it does not.
func (e *env) lookAmid(t *testing.T, pod *corev1.Pod, mounts int, name string) {
	t.Helper()
	e.Kubectl(t, "", "apply", "-f", "../../config/operations/volume-health.yaml")
	d := e.runDiagnosis(t, diagnosisOf("default", name, "volume-health-op-set", e.NodeName(), pod))
	survey := d.Status.OperationResults["collector.kubernetes.volume_health.survey"]
	t.Logf("looked at: %s", survey)
	seen := regexp.MustCompile(`(\d+) mounts in \d+ mount namespaces`).FindStringSubmatch(survey)
	if seen == nil {
		t.Fatalf("the Diagnosis ended with %+v", d.Status)
	}
	if n, _ := strconv.Atoi(seen[1]); n < mounts && !strings.Contains(survey, "not looked at: ") {
		t.Errorf("of %d mounts of the attacker it was seen, and nothing is said of the others: %s", mounts, survey)
	}
	if d.Status.Outcome != v1.OutcomeNoFault {
		t.Errorf("outcome %q, want none: %+v", d.Status.Outcome, d.Status.Operations)
	}
}

// refusedOnes has somebody who may repair the pods of a namespace make Diagnoses that are refused. The function that it gives
// waits until the manager has looked twice for what to delete, and looks for the older records of others.
func (e *env) refusedOnes(t *testing.T, pod *corev1.Pod) (kept func(*testing.T)) {
	tenant := e.tenant(t) // with a policy that asks for rights, others may have Diagnoses of pods of other namespaces
	before := map[string]*v1.Diagnosis{}
	for i := range records {
		d := diagnosisOf(others, fmt.Sprint("record-", i), "subpath-remount-op-set", e.NodeName(), pod)
		must(t, e.Create(t.Context(), d))
		before[d.Name] = d
	}
	for _, d := range before {
		e.awaitEnd(t, d)
		if !meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted) {
			t.Errorf("Diagnosis %s was not taken by the agent: %+v", d.Name, d.Status)
		}
		was := d.DeepCopy()
		old := metav1.NewTime(time.Now().Add(-3 * time.Hour).Truncate(time.Second))
		d.Status.StartTime, d.Status.CompletionTime = &old, &old
		must(t, e.Status().Patch(t.Context(), d, client.MergeFrom(was)))
	}
	missing := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: "missing"}}
	for i := range refused {
		d := diagnosisOf(tenants, fmt.Sprint("refused-", i), "subpath-remount-op-set", e.NodeName(), missing)
		must(t, tenant.Create(t.Context(), d))
	}
	var all v1.DiagnosisList
	e.Wait(t, "the Diagnoses of the attacker to be refused", func(ctx context.Context) bool {
		must(t, e.List(ctx, &all, client.InNamespace(tenants)))
		for i := range all.Items {
			if !all.Items[i].Ended() {
				return false
			}
		}
		return len(all.Items) == refused
	})
	if c := meta.FindStatusCondition(all.Items[0].Status.Conditions, v1.ConditionAccepted); c == nil || c.Reason != v1.ReasonPodNotFound {
		t.Errorf("it was not refused for its pod: %+v", all.Items[0].Status)
	}
	passes := e.metricOf(t, "manager", "kubediag_retention_pass_duration_seconds_count")
	return func(t *testing.T) {
		e.Wait(t, "two more passes of the retention", func(context.Context) bool {
			return e.metricOf(t, "manager", "kubediag_retention_pass_duration_seconds_count") >= passes+2
		})
		var left v1.DiagnosisList
		must(t, e.List(t.Context(), &left, client.InNamespace(others)))
		for _, d := range left.Items {
			if was := before[d.Name]; was != nil && was.UID == d.UID {
				delete(before, d.Name)
			}
		}
		if len(before) > 0 {
			t.Errorf("%d of %d records of others are gone", len(before), records)
		}
	}
}

// tenant is a client of somebody who may look at a namespace, and repair its pods.
func (e *env) tenant(t *testing.T) client.Client {
	t.Helper()
	e.Kubectl(t, "", "apply", "-f", "../../config/policy/diagnosis-rights.yaml")
	for _, role := range []string{"view", "kubediag-pod-repairer"} {
		e.Kubectl(t, "", "create", "rolebinding", role, "-n", tenants, "--clusterrole="+role, "--user=tenant")
	}
	c := e.as(t, rest.ImpersonationConfig{UserName: "tenant"})
	probe := diagnosisOf("default", "not-his", "subpath-remount-op-set", e.NodeName(), &corev1.Pod{})
	if err := c.Create(t.Context(), probe); err == nil {
		t.Error("the tenant may create Diagnoses in the namespace of others")
	}
	return c
}

// pendingOnes fills the agent with Diagnoses of one namespace whose processor does not answer: one of another namespace runs
// as if they were not there.
func (e *env) pendingOnes(t *testing.T, pod *corev1.Pod) {
	e.pendingSet(t)
	for i := range pending {
		must(t, e.Create(t.Context(), diagnosisOf(tenants, fmt.Sprint("pending-", i), "pending-op-set", e.NodeName(), nil)))
	}
	t.Cleanup(func() {
		must(t, e.DeleteAllOf(context.WithoutCancel(t.Context()), &v1.Diagnosis{}, client.InNamespace(tenants)))
	})
	e.Wait(t, "some of them to run", func(context.Context) bool { return e.metric(t, "kubediag_diagnoses_running") > 0 })
	d := diagnosisOf(others, "in-its-turn", "subpath-remount-op-set", e.NodeName(), pod)
	began := time.Now()
	must(t, e.Create(t.Context(), d))
	e.awaitEnd(t, d)
	took := time.Since(began)
	t.Logf("beside %d Diagnoses of another namespace, of which %v run, it took %v", pending, e.metric(t, "kubediag_diagnoses_running"), took)
	// None of theirs ends before its ten minutes are over, so it was not behind them.
	if d.Status.Outcome != v1.OutcomeNoFault {
		t.Errorf("it took %v and ended with %+v", took, d.Status)
	}
}

// pendingSet makes an OperationSet whose one processor, a server of this test, never answers.
func (e *env) pendingSet(t *testing.T) {
	t.Helper()
	var node corev1.Node
	must(t, e.Get(t.Context(), client.ObjectKey{Name: e.NodeName()}, &node))
	listener, err := net.Listen("tcp", net.JoinHostPort(node.Status.Addresses[0].Address, "0"))
	must(t, err)
	ended := make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		close(ended)
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	address, port := node.Status.Addresses[0].Address, int32(listener.Addr().(*net.TCPAddr).Port)
	must(t, e.Create(t.Context(), &v1.Operation{
		ObjectMeta: metav1.ObjectMeta{Name: "pending"},
		Spec:       v1.OperationSpec{Processor: v1.Processor{ExternalIP: &address, ExternalPort: &port, TimeoutSeconds: new(int32(600))}},
	}))
	set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: "pending-op-set"}}
	set.Spec.AdjacencyList = []v1.Node{{ID: 0, To: []int32{1}}, {ID: 1, Operation: "pending"}}
	must(t, e.Create(t.Context(), set))
	e.Wait(t, "the OperationSet to be ready", func(ctx context.Context) bool {
		must(t, e.Get(ctx, client.ObjectKeyFromObject(set), set))
		return set.Status.Ready
	})
}

// diagnosisOf is a Diagnosis that is not yet created; pod nil: of the node.
func diagnosisOf(namespace, name, set, node string, pod *corev1.Pod) *v1.Diagnosis {
	d := &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.DiagnosisSpec{OperationSet: set, NodeName: node},
	}
	if pod != nil {
		d.Spec.PodReference = &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name}
	}
	return d
}

// runDiagnosis creates a Diagnosis in the namespace default, and returns it as it has ended.
func (e *env) runDiagnosis(t *testing.T, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	must(t, e.Create(t.Context(), d))
	return e.AwaitDiagnosis(t, d.Name, (*v1.Diagnosis).Ended)
}

// awaitEnd reads a Diagnosis until it has ended.
func (e *env) awaitEnd(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	e.Wait(t, "Diagnosis "+d.Namespace+"/"+d.Name, func(ctx context.Context) bool {
		return e.Get(ctx, client.ObjectKeyFromObject(d), d) == nil && d.Ended()
	})
}
