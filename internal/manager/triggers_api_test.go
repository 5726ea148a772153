// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger/alertmanager"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/freeport"
)

// set makes an OperationSet that can run.
func (w *world) set(t testing.TB) string {
	t.Helper()
	path := "/processor/heldDeviceDiagnoser"
	op := &v1.Operation{}
	op.GenerateName = "op-"
	op.Spec.Processor.Path = &path
	w.MustCreate(t, op)
	set := &v1.OperationSet{}
	set.GenerateName = "set-"
	set.Spec.AdjacencyList = []v1.Node{{To: []int32{1}}, {ID: 1, Operation: op.Name}}
	w.MustCreate(t, set)
	return set.Name
}

// trigger makes a Trigger, and waits until it can fire.
func (w *world) trigger(t testing.TB, spec v1.TriggerSpec) *v1.Trigger {
	t.Helper()
	tr := &v1.Trigger{}
	tr.GenerateName, tr.Spec = "t-", spec
	if spec.OperationSet == "" {
		tr.Spec.OperationSet = w.set(t)
	}
	w.MustCreate(t, tr)
	w.Until(t, tr, func() bool { return condition(tr.Status.Conditions, v1.ConditionReady, v1.ReasonReady) })
	return tr
}

// made lists the Diagnoses of a Trigger.
func (w *world) made(t testing.TB, tr *v1.Trigger) []v1.Diagnosis {
	t.Helper()
	var all v1.DiagnosisList
	must(t, w.Client.List(t.Context(), &all, client.InNamespace(w.ns), client.MatchingLabels{v1.LabelTrigger: tr.Name}))
	return all.Items
}

// count waits until a Trigger has made that many.
func (w *world) count(t testing.TB, tr *v1.Trigger, want int) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if n := len(w.made(t, tr)); n != want {
			err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(tr), tr)
			return errors.Join(fmt.Errorf("%d Diagnoses, want %d: %+v", n, want, tr.Status), err)
		}
		return nil
	})
}

// failed makes an Event about a pod, as a kubelet does.
func (w *world) failed(t testing.TB, pod *v1.PodReference) *corev1.Event {
	t.Helper()
	var p corev1.Pod
	must(t, w.Client.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: pod.Name}, &p))
	e := &corev1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: p.UID},
		Reason:         "FailedMount", Message: "MountVolume.SetUp failed", Source: corev1.EventSource{Component: "kubelet", Host: p.Spec.NodeName},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}
	e.Namespace, e.GenerateName = pod.Namespace, pod.Name+"."
	w.MustCreate(t, e)
	return e
}

// mine matches the Events of the world and of no other test.
func (w *world) mine() v1.SourceTemplate {
	return v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{
		Regexp: v1.KubernetesEventRegexp{Namespace: "^" + w.ns + "$", Reason: "^FailedMount$"},
	}}
}

// An Event makes one Diagnosis of its pod, which is bound to its node. The series, an Event of the other API, and the manager
// that is started again make none.
func TestEventTrigger(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		_, stop := w.run(t)
		tr := w.trigger(t, v1.TriggerSpec{SourceTemplate: w.mine()})
		node := w.node(t)
		pod := w.pod(t, node)
		e := w.failed(t, pod)
		w.count(t, tr, 1)
		d := w.made(t, tr)[0]
		w.Until(t, &d, func() bool { return d.Labels[v1.LabelNode] == node })
		if d.Spec.PodReference.Name != pod.Name || d.OwnerReferences[0].UID != tr.UID ||
			!strings.Contains(d.Annotations[v1.AnnotationKubernetesEvent], "MountVolume.SetUp failed") {
			t.Errorf("Diagnosis = %+v", d)
		}
		e.Count, e.LastTimestamp = 9, metav1.Now()
		must(t, w.Client.Update(t.Context(), e))
		w.series(t, e)
		w.Until(t, tr, func() bool { return tr.Status.Matched == 3 && tr.Status.Repeated == 2 && tr.Status.Fired == 1 })
		stop()
		w.run(t)
		other := w.failed(t, w.pod(t, node))
		w.count(t, tr, 2)
		if n := len(w.made(t, tr)); n != 2 {
			t.Errorf("%d Diagnoses after the restart and Event %s", n, other.Name)
		}
	})
}

// series makes an Event of events.k8s.io about the same.
func (w *world) series(t *testing.T, of *corev1.Event) {
	t.Helper()
	e := &eventsv1.Event{
		EventTime: metav1.NowMicro(), ReportingController: "kubelet", ReportingInstance: of.Source.Host, Action: "Mounting", Type: "Warning",
		Reason: of.Reason, Regarding: of.InvolvedObject, Note: "timed out",
		Series: &eventsv1.EventSeries{Count: 4, LastObservedTime: metav1.NowMicro()},
	}
	e.Namespace, e.GenerateName = of.Namespace, "series-"
	if _, err := apitest.Clientset(t, w.Config).EventsV1().Events(of.Namespace).Create(t.Context(), e, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Two managers that both lead, as with --leader-elect=false, make one Diagnosis of each cause.
func TestTwoLeadersMakeOneDiagnosis(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.mark(t)
	w.options.LeaderElection = false
	w.run(t)
	w.run(t)
	tr := w.trigger(t, v1.TriggerSpec{SourceTemplate: w.mine(), NodeName: w.node(t)})
	faults := w.trigger(t, v1.TriggerSpec{SourceTemplate: w.faultTemplate(v1.MountFaultTemplate{})})
	node := w.node(t)
	const pods = 8
	for range pods {
		w.failed(t, w.pod(t, node))
		w.fault(t, w.pod(t, node), "StaleSubPath")
	}
	clock := w.trigger(t, v1.TriggerSpec{NodeName: node, SourceTemplate: v1.SourceTemplate{CronTemplate: &v1.CronTemplate{
		Schedule: "@every 1s", ConcurrencyPolicy: v1.AllowConcurrent,
	}}})
	w.count(t, tr, pods)
	w.count(t, faults, pods)
	apitest.Eventually(t, func() error {
		if n := len(w.made(t, clock)); n < 3 {
			return fmt.Errorf("%d runs", n)
		}
		return nil
	})
	seen := map[string]bool{}
	for _, d := range w.made(t, clock) {
		at := d.Annotations[v1.AnnotationScheduledTime]
		if seen[at] {
			t.Errorf("two runs of %s", at)
		}
		seen[at] = true
	}
	for _, tr := range []*v1.Trigger{tr, faults} {
		if n := len(w.made(t, tr)); n != pods {
			t.Errorf("%d Diagnoses of %d pods", n, pods)
		}
	}
}

// Each selected node gets one Diagnosis of a run, ten at once and the others in their turn, and no other node gets one.
func TestNodeSelector(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		w.run(t)
		w.node(t) // not selected
		const nodes = 13
		for range nodes {
			n := &corev1.Node{}
			n.GenerateName, n.Labels = "worker-", map[string]string{"pool": w.ns}
			w.MustCreate(t, n)
		}
		tr := w.trigger(t, v1.TriggerSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": w.ns}}, DiagnosesPerMinute: new(int32(60)),
			SourceTemplate: v1.SourceTemplate{CronTemplate: &v1.CronTemplate{Schedule: "@every 20s"}},
		})
		w.Until(t, tr, func() bool { return tr.Status.PendingNodes > 0 && tr.Status.PendingNodes <= 3 })
		w.Until(t, tr, func() bool { return tr.Status.PendingNodes == 0 && tr.Status.Fired == nodes })
		seen := map[string]bool{}
		for _, d := range w.made(t, tr) {
			if seen[d.Spec.NodeName] {
				t.Errorf("node %s has two Diagnoses", d.Spec.NodeName)
			}
			seen[d.Spec.NodeName] = true
		}
		if len(seen) != nodes {
			t.Errorf("%d nodes of %d", len(seen), nodes)
		}
	})
}

// Alerts are taken from a ServiceAccount that may create them, and from no other; pods and nodes that are not there are counted.
func TestAlertTrigger(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	must(t, err)
	w.options.AlertBindAddress = free[0].String()
	w.mayReview(t)
	w.run(t)
	tr := w.trigger(t, v1.TriggerSpec{SourceTemplate: v1.SourceTemplate{PrometheusAlertTemplate: &v1.PrometheusAlertTemplate{
		Regexp: v1.PrometheusAlertRegexp{AlertName: "^VolumeBroken$"}, PodNamespaceReferenceLabel: "namespace", PodNameReferenceLabel: "pod",
		ParametersFrom: []v1.AlertParameter{{Name: "param.diagnoser.system.held_device.device", Label: "device"}},
	}}})
	ofNode := w.trigger(t, v1.TriggerSpec{SourceTemplate: v1.SourceTemplate{PrometheusAlertTemplate: &v1.PrometheusAlertTemplate{
		Regexp: v1.PrometheusAlertRegexp{AlertName: "^VolumeBroken$"}, NodeNameReferenceLabel: "device",
	}}})
	node := w.node(t)
	pod := w.pod(t, node)
	sender, stranger := w.serviceAccount(t, true), w.serviceAccount(t, false)
	ofServer, ofVault := sender, w.serviceAccount(t, true, "vault")
	sender = w.serviceAccount(t, true, "kubediag")
	post := func(token, labels string) int {
		t.Helper()
		return w.post(t, token, `[{"labels": {"alertname": "VolumeBroken", "namespace": "`+w.ns+`", `+labels+`}}]`)
	}
	mine := `"pod": "` + pod.Name + `", "device": "rbd0"`
	apitest.Eventually(t, func() error { // until the receiver listens and the API server knows the roles
		if code := post(sender, mine); code != http.StatusOK {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	for token, want := range map[string]int{"": 401, "forged": 401, stranger: 403, ofVault: 401, ofServer: 200} {
		if code := post(token, mine); code != want {
			t.Errorf("token %.10q: status %d, want %d", token, code, want)
		}
	}
	for _, labels := range []string{mine, `"pod": "gone", "device": "rbd0"`, `"pod": "` + pod.Name + `"`, `"pod": "` + strings.Repeat("x", 10<<10) + `", "device": "a"`} {
		if code := post(sender, labels); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
	w.Until(t, tr, func() bool {
		dropped := map[string]bool{}
		for _, d := range tr.Status.Dropped {
			dropped[d.Reason] = true
		}
		return tr.Status.Fired == 1 && tr.Status.Repeated > 0 && dropped[v1.ReasonPodNotFound] && dropped[v1.ReasonLabelMissing] && dropped[v1.ReasonInvalidTarget]
	})
	w.Until(t, ofNode, func() bool {
		return ofNode.Status.Fired == 0 && slices.ContainsFunc(ofNode.Status.Dropped, func(d v1.TriggerDrop) bool { return d.Reason == v1.ReasonNodeNotFound })
	})
	d := w.made(t, tr)[0]
	w.Until(t, &d, func() bool { return d.Labels[v1.LabelNode] == node })
	if d.Spec.Parameters["param.diagnoser.system.held_device.device"] != "rbd0" || !strings.Contains(d.Annotations[v1.AnnotationPrometheusAlert], "VolumeBroken") {
		t.Errorf("Diagnosis = %+v", d)
	}
}

// post sends a body to the receiver, whose certificate is in its Secret, and returns the status; 0: there is no listener.
func (w *world) post(t testing.TB, token, body string) int {
	t.Helper()
	secret, err := apitest.Clientset(t, w.Config).CoreV1().Secrets(w.ns).Get(t.Context(), alertmanager.ServiceName, metav1.GetOptions{})
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	name := alertmanager.ServiceName + "." + w.ns + ".svc"
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.options.AlertBindAddress+"/api/v1/alerts", strings.NewReader(body))
	must(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// createRoles creates the roles of files of a component, without their bindings.
func (w *world) createRoles(t *testing.T, component string, files ...string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("../../config/components", component, file+".yaml"))
		must(t, err)
		w.MustCreate(t, apitest.Objects(t, string(text))[0])
	}
}

// mayReview gives the manager what config/components/alert-receiver does.
func (w *world) mayReview(t *testing.T) {
	t.Helper()
	w.createRoles(t, "alert-receiver", "reviewer", "sender")
	w.bind(t, w.config.Impersonate.UserName, "kubediag-manager-reviewer", true)
	text, err := os.ReadFile("../../config/components/alert-receiver/certificate.yaml")
	must(t, err)
	for _, o := range apitest.Objects(t, string(text)) { // the Secret, the role, its binding
		o.SetNamespace(w.ns)
		if o.GetKind() == "RoleBinding" {
			o.Object["subjects"] = []any{map[string]any{"apiGroup": rbacv1.GroupName, "kind": "User", "name": w.config.Impersonate.UserName}}
		}
		w.MustCreate(t, o)
	}
}

// serviceAccount makes one, which may send alerts or not, and returns its token for some audiences, or else for the API server.
func (w *world) serviceAccount(t *testing.T, sends bool, audiences ...string) string {
	t.Helper()
	if sends {
		return w.serviceAccountWith(t, "kubediag-alert-sender", audiences...)
	}
	return w.serviceAccountWith(t, "", audiences...)
}

// serviceAccountWith makes one with a ClusterRole, or without any, and returns its token.
func (w *world) serviceAccountWith(t *testing.T, role string, audiences ...string) string {
	t.Helper()
	set := apitest.Clientset(t, w.Config)
	account, err := set.CoreV1().ServiceAccounts(w.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "sender-"}}, metav1.CreateOptions{})
	must(t, err)
	if role != "" {
		w.bind(t, "system:serviceaccount:"+w.ns+":"+account.Name, role, true)
	}
	seconds := int64(600)
	token, err := set.CoreV1().ServiceAccounts(w.ns).CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: audiences},
	}, metav1.CreateOptions{})
	must(t, err)
	return token.Status.Token
}

// The overlay has the manager listen, and brings the Service and the roles for it.
func TestAlertOverlay(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	program, err := cluster.Kubectl(t.Context())
	must(t, err)
	text, err := exec.CommandContext(t.Context(), program, "kustomize", filepath.Join("..", "..", "config", "overlays", "alert-receiver")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var found []string
	for _, o := range apitest.Objects(t, string(text)) {
		found = append(found, o.GetKind()+" "+o.GetName())
		// The API server checks the policy. Whether a network plugin obeys it is not shown here.
		if o.GetName() == "kubediag-alerts" || o.GetKind() == "NetworkPolicy" {
			o.SetNamespace(w.ns)
			w.MustCreate(t, o)
		}
	}
	for _, want := range []string{"Service kubediag-alerts", "Secret kubediag-alerts", "NetworkPolicy kubediag-manager", "ClusterRole kubediag-alert-sender", "ClusterRoleBinding kubediag-manager-reviewer"} {
		if !slices.Contains(found, want) {
			t.Errorf("no %s", want)
		}
	}
	if !strings.Contains(string(text), "name: KUBEDIAG_ALERT_BIND_ADDRESS\n          value: :8089") {
		t.Errorf("the manager does not listen:\n%s", text)
	}
}
