// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/crd"
	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/render"
)

// diagnosisOf has a plan for this many stale binds, three of each pod.
func diagnosisOf(n int, mode v1.DiagnosisMode) *v1.Diagnosis {
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{NodeName: "worker-7", Mode: mode, PodReference: &v1.PodReference{Namespace: "shop", Name: "web-7d9f8b6c5-x2x9k"}}}
	d.Namespace, d.Name, d.CreationTimestamp = "shop", "web-7d9f8b6c5-x2x9k-4k2fd", metav1.NewTime(noon.Add(-time.Minute))
	d.Status = v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomePlanned, CompletionTime: &metav1.Time{Time: noon.Add(-58 * time.Second)},
		Conditions: []metav1.Condition{{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Message: "accepted"}},
		Plan: &v1.Plan{Operation: "auto-recover", Hash: strings.Repeat("ab", 32), Actions: int32(n), Lossless: true,
			Changes: []string{`boot "7c0e61aa-1d7e-4b5b-9d0e-2b8ad4e5b0aa"`}},
		Operations: []v1.OperationRun{
			{ID: 1, Operation: "auto-collector", Phase: v1.OperationSucceeded}, {ID: 2, Operation: "auto-diagnoser", Phase: v1.OperationSucceeded},
			{ID: 3, Operation: "auto-recover", Phase: v1.OperationSucceeded},
		},
	}
	for i := range n {
		name, uid := fmt.Sprintf("web-7d9f8b6c5-x2x%02d", i/3), fmt.Sprintf("37993802-0000-4c1c-8f0e-%012d", i)
		point := "/var/lib/kubelet/pods/" + uid + "/volume-subpaths/nginx-conf/nginx/0"
		why := "the root of the mount is deleted: its link count is 0: inode 14 of device 0:39 is bound, and \"nginx.conf\" in \"/var/lib/kubelet/pods/" + uid +
			"/volumes/kubernetes.io~configmap/nginx-conf\" is inode 10 of device 0:39"
		d.Status.Faults = append(d.Status.Faults, v1.Fault{
			Code: "StaleSubPath", State: v1.FaultPresent, Container: fmt.Sprint("nginx", i%3), Volume: "nginx-conf", Pod: &v1.FaultPod{Namespace: "shop", Name: name},
			Evidence: []string{why, `container "nginx" asks for it in volumeMounts[0]: subPath "nginx.conf" of volume "nginx-conf" at "/etc/nginx/nginx.conf"`},
		})
		d.Status.Operations[2].Actions = append(d.Status.Operations[2].Actions, v1.Action{
			Kind: "Unmount", Fault: "StaleSubPath", Target: point, Mount: &v1.Mount{MountInfoID: 412, Namespace: 4026532201}, Phase: v1.ActionPlanned,
			Safety: why + "; this pod's spec requests the bind; running containers keep their mount", Loss: "nothing",
		})
		d.Status.Plan.Changes = append(d.Status.Plan.Changes, fmt.Sprintf("Unmount mount %q", point))
	}
	return d
}

// endedOf is the repair of such a plan.
func endedOf(n int) *v1.Diagnosis {
	d := diagnosisOf(n, v1.ModeRecover)
	d.Status.Outcome, d.Status.Summary = v1.OutcomeHealed, "Repaired StaleSubPath (container nginx, volume nginx-conf, pod shop/web-7d9f8b6c5-x2x00)"
	if n > 1 {
		d.Status.Summary += fmt.Sprintf(" and %d more", n-1)
	}
	for i := range n {
		a := &d.Status.Operations[2].Actions[i]
		d.Status.Faults[i].State, a.Phase, a.Message = v1.FaultHealed, v1.ActionDone, "replaced"
	}
	return d
}

// presentOf are faults of pods, the first with all that an object can say.
func presentOf(n int) (list []*v1.MountFault) {
	for i := range n {
		f := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, fmt.Sprintf("app%d-%d", i%12, i))
		if i%3 == 1 {
			f = faultOf("DisconnectedFUSE", v1.ImpactNow, v1.HealDriver, fmt.Sprintf("trainer%d-%d", i, i))
			f.Status.Driver, f.Status.Node = "csi.juicefs.com", fmt.Sprintf("worker-%d", i%7)
		}
		f.Status.Container, f.Status.Claim, f.Status.Plan = "nginx", "conf-claim", "replace this one bind with the file that the subPath names now; the running container keeps what it has"
		f.Status.Evidence = []string{strings.Repeat("the link count is 0; ", 20), "the container asks for it", "the source is on the host", "a fourth fact"}
		f.Status.Commands = []v1.FaultCommand{{Purpose: "removes the stale bind; the kubelet binds the current file at the next start", Line: "umount -- /var/lib/kubelet/pods/37993802/volume-subpaths/conf/nginx/0"}}
		f.Status.Recovery = &v1.FaultRecovery{Mode: v1.RecoveryApprove, Policies: []string{"stale-subpaths", "production"}}
		list = append(list, f)
	}
	return list
}

// doctorOf checks a cluster with this many nodes and faults. With one, it is well but for the fault; with more, everything is wrong.
func doctorOf(t *testing.T, n int) func(s terminal.Screen) string {
	t.Helper()
	const kubediag = "/namespaces/kubediag/"
	one, renewed := int32(1), metav1.NewMicroTime(noon)
	manager := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kubediag", Name: "kubediag-manager"}, Status: appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1}}
	agents := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kubediag", Name: "kubediag-agent"}, Status: appsv1.DaemonSetStatus{NumberReady: 1, DesiredNumberScheduled: 1}}
	lease := func(name, holder string) coordinationv1.Lease {
		return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: &one}}
	}
	info := corev1.NodeSystemInfo{OperatingSystem: "linux", KubeletVersion: "v1.36.3", KernelVersion: "6.12.1"}
	if n > 1 {
		manager.Status.ReadyReplicas, agents.Status.NumberReady = 0, 0
		info.KubeletVersion, info.KernelVersion = "v1.18.19", "4.19.0-27-amd64"
	}
	answers := map[string]string{
		"GET /version": `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`,
		"GET /apis/apps/v1" + kubediag + "deployments":                           encoded(t, appsv1.DeploymentList{Items: []appsv1.Deployment{manager}}),
		"GET /apis/apps/v1" + kubediag + "daemonsets":                            encoded(t, appsv1.DaemonSetList{Items: []appsv1.DaemonSet{agents}}),
		"GET /apis/coordination.k8s.io/v1" + kubediag + "leases":                 encoded(t, coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease("kubediag-agent-node-0", "node-0")}}),
		"GET /apis/coordination.k8s.io/v1" + kubediag + "leases/" + managerLease: encoded(t, lease(managerLease, "kubediag-manager-x")),
		"GET /apis/diagnosis.kubediag.org/v1/operationsets":                      encoded(t, v1.OperationSetList{}),
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":            `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":` + strconv.FormatBool(n == 1) + `}}`,
	}
	absent := func(path, resource string, i int, o any) {
		if answers["GET "+path] = encoded(t, o); n > 1 && i > 0 {
			answers["GET "+path] = missing(resource)
		}
	}
	definitions, err := manifests.Read[map[string]any](crd.Files, "CustomResourceDefinition")
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range definitions {
		name, _, _ := unstructured.NestedString(d, "metadata", "name")
		absent("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, "customresourcedefinitions", i, d)
	}
	policies, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	if err != nil {
		t.Fatal(err)
	}
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	for i, p := range policies {
		absent("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"+p.Name, "validatingadmissionpolicies", i, p)
		bindings.Items = append(bindings.Items, admissionv1.ValidatingAdmissionPolicyBinding{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: p.Name}})
	}
	answers["GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"] = encoded(t, bindings)
	var nodes corev1.NodeList
	var faults v1.MountFaultList
	for i, f := range presentOf(n) {
		nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}, Status: corev1.NodeStatus{NodeInfo: info}})
		faults.Items = append(faults.Items, *f)
	}
	answers["GET /api/v1/nodes"], answers["GET /apis/diagnosis.kubediag.org/v1/mountfaults"] = encoded(t, nodes), encoded(t, faults)
	c := clientOf(t, &recordedServer{answers: answers}, "default")
	results, err := (&installationCheck{api: c, home: defaultHome, now: noon, out: new(verb.Format)}).check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func(s terminal.Screen) string { return resultsText(s, results) }
}

// took is the time of a Diagnosis in a text.
var took = regexp.MustCompile(`(Healed in) [0-9.]+ m?s`)

// withoutScreen says of verbs why they have no screen that grows with the faults.
var withoutScreen = map[string]string{
	"ui": "it writes its address and how to end it", "explain": "it has the pages of the runbook", "version": "it writes two lines",
}

// lintScreen is the result of lint with this many risks.
func lintScreen(n int) func(s terminal.Screen) string {
	r := &lintResult{Workloads: 7 + n, KubeletVersion: "1.18.19"}
	for i := range n {
		r.Findings = append(r.Findings, lint.Finding{
			Rule: lint.MutableSubPath, Kind: "Deployment", Namespace: "shop", Name: fmt.Sprint("web-", i), Summary: "container nginx mounts subPath nginx.conf of ConfigMap nginx-conf, which changes",
			Cure: "Make the ConfigMap immutable, or mount the whole volume", Patch: "spec:\n  template:\n    spec:\n      containers:\n      - name: nginx\n",
		})
	}
	return r.resultText
}

// impactScreens are those of impact, and one with 300 volumes.
func impactScreens() map[string]func(s terminal.Screen) string {
	screens := map[string]func(s terminal.Screen) string{}
	for name, view := range impactReports() {
		screens[name] = func(s terminal.Screen) string {
			view.screen, view.api = s, &client{}
			return view.text()
		}
	}
	q := questions()["node"]
	many := impactView{question: q, report: &impactReport{SchemaVersion: 1, Target: q.target}}
	answer := nodeAnswer{unknown: []string{"mnt:[4026532201]: 1 process does not answer"}}
	for i := range 300 {
		one := impactOf(fmt.Sprint("web-", i), fault.ReturnRepair, driverPod)
		if i%2 == 0 {
			one.UnmountRefusal = "2 mounts lie on it, and the kernel refuses to unmount it until they are gone"
		}
		answer.volumes = append(answer.volumes, one)
	}
	many.report.add(q, "worker-7", answer)
	screens["300"] = func(s terminal.Screen) string {
		many.screen, many.api = s, &client{}
		return many.text()
	}
	return screens
}

// diagnosesTable is the table of Diagnoses, as the API server has it.
func diagnosesTable(n int) *metav1.Table {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "Target"}, {Name: "Fault"}, {Name: "Outcome"}, {Name: "Age"}, {Name: "Mode", Priority: 1}}}
	for i := range n {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-7d9f8b6c5-x2x9k-%05d", i), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(i) * time.Minute))}}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{o.Name, "pod shop/web-7d9f8b6c5-x2x9k", "StaleSubPath", nil, "5m", "Plan"}, Object: runtime.RawExtension{Object: o}})
	}
	return table
}

// getScreen is the table of this many Diagnoses in all namespaces.
func getScreen(t *testing.T, n int) func(s terminal.Screen) string {
	t.Helper()
	return func(s terminal.Screen) string {
		var b strings.Builder
		if err := (&client{}).writeTable(&b, s, diagnosesTable(n), formatText, ""); err != nil {
			t.Error(err)
		}
		return b.String()
	}
}

// TestScreens: each verb is one screen of 40 lines, run about one fault of 12, and no line is too wide but those to paste and a path.
func TestScreens(t *testing.T) {
	t.Parallel()
	type screens map[string]func(s terminal.Screen) string // by the number of faults
	api := &client{namespace: "shop"}
	story := func(d *v1.Diagnosis, verbose bool) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			w := newStory(s, d)
			w.verbose, w.startTime = verbose, w.startTime.Add(time.Hour) // so that no time has passed
			return w.headline(d.Spec.Target()+", Diagnosis "+d.Namespace+"/"+d.Name) + w.newsText(d)
		}
	}
	show := func(n int, d *v1.Diagnosis) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			of := &subject{api: api, screen: s, now: noon, faults: (&faultsOptions{}).chosenFaults(objectsOf(presentOf(n))), diagnosis: d}
			return took.ReplaceAllString(of.text(), "$1 2.0 s")
		}
	}
	faults := func(n int) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			return faultsView{screen: s, api: api, now: noon}.listText((&faultsOptions{}).chosenFaults(objectsOf(presentOf(n))), "")
		}
	}
	approve := func(n int) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			d := diagnosisOf(n, v1.ModePlan)
			return story(d, false)(s) + render.Changes(s, d.Status.Plan.Changes, false)
		}
	}
	cancel := func(n int) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			d := diagnosisOf(n, v1.ModeRecover)
			d.Status.Phase, d.Status.Outcome, d.Status.Operations[2].Phase = v1.DiagnosisRunning, "", v1.OperationRunning
			d.Status.Operations[2].Actions[0].Phase = v1.ActionDone
			return story(d, false)(s) + cancelledText(s, d)
		}
	}
	report := func(d *v1.Diagnosis) func(s terminal.Screen) string {
		return func(s terminal.Screen) string { return took.ReplaceAllString(api.reportSummary(s, d), "$1 2.0 s") }
	}
	all := map[string]screens{
		"faults":  {"1": faults(1), "300": faults(300)},
		"run":     {"1": story(diagnosisOf(1, v1.ModePlan), false), "300": story(diagnosisOf(300, v1.ModePlan), false)},
		"healed":  {"1": story(endedOf(1), false), "300": story(endedOf(300), false)},
		"approve": {"1": approve(1), "300": approve(300)},
		"show":    {"0": show(0, endedOf(1)), "1": show(1, diagnosisOf(1, v1.ModePlan)), "300": show(300, diagnosisOf(300, v1.ModePlan))},
		"cancel":  {"1": cancel(1), "300": cancel(300)},
		"report":  {"1": report(endedOf(1)), "300": report(endedOf(300)), "plan": report(diagnosisOf(300, v1.ModePlan))},
		"lint":    {"0": lintScreen(0), "1": lintScreen(1), "300": lintScreen(300)},
		"get":     {"1": getScreen(t, 1), "300": getScreen(t, 300)},
		"impact":  impactScreens(),
		"bundle":  {"1": func(terminal.Screen) string { return writtenText("kubediag-worker-7-20261127.tar.gz", 14<<10) }},
		"doctor":  {"1": doctorOf(t, 1), "300": doctorOf(t, 300)},
		"status":  {},
	}
	for name, r := range statusReports() {
		all["status"][name] = func(s terminal.Screen) string {
			return statusView{faultsView{screen: s, api: &client{}, brief: true, now: noon, problems: r.Unwatched}, r}.text()
		}
	}
	for _, cmd := range newPlugin().Commands() {
		if reason := withoutScreen[cmd.Name()]; (reason == "") != (all[cmd.Name()] != nil) {
			t.Errorf("%s has %d screens, and is said to need none because %q", cmd.Name(), len(all[cmd.Name()]), reason)
		}
	}
	for of, screens := range all {
		for name, text := range screens {
			for _, width := range []int{80, 120} {
				got, most := text(terminal.Screen{Width: width, Terminal: true}), terminal.ScreenLines
				if name == "1" && (of == "run" || of == "healed") {
					most = 12
				}
				lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
				if len(lines) > most {
					t.Errorf("%s of %s: %d lines, at most %d", of, name, len(lines), most)
				}
				for _, line := range lines {
					if terminal.Columns(line) > width && !strings.HasPrefix(line, "  kubectl ") && !strings.HasPrefix(line, "  umount ") && len(strings.Fields(line)) > 1 {
						t.Errorf("%s of %s: %d columns: %q", of, name, terminal.Columns(line), line)
					}
				}
				verbtest.Golden(t, fmt.Sprintf("%s.%s.%d", of, name, width), got)
			}
		}
	}
}

// TestTableOfManyDiagnoses: the table of 300 Diagnoses fits a screen, has the newest, and says how to see the others.
func TestTableOfManyDiagnoses(t *testing.T) {
	t.Parallel()
	const of = "GET /apis/diagnosis.kubediag.org/v1/namespaces/shop/diagnoses"
	table := metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}, ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}, {Name: "Fault", Type: "string"}}}
	row := func(i int) metav1.TableRow {
		o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(i) * time.Minute))}}
		return metav1.TableRow{Cells: []any{o.Name, "StaleSubPath"}, Object: runtime.RawExtension{Raw: []byte(encoded(t, o))}}
	}
	for n, want := range map[int]string{1: "web-0 ", 300: "web-299 "} {
		table.Rows = nil
		for i := range n {
			table.Rows = append(table.Rows, row(i))
		}
		server := httptest.NewServer(&recordedServer{answers: map[string]string{of: encoded(t, table)}})
		defer server.Close()
		got, err := verbtest.Run(t, newPlugin(), "get", "-n", "shop", "--server="+server.URL)
		lines := strings.Split(got, "\n")
		if err != nil || len(lines) > 40 || !strings.HasPrefix(lines[1], want) || strings.Contains(got, "kubectl kubediag get --namespace=shop -o wide") != (n > 1) {
			t.Errorf("%d: error %v, %d lines:\n%s", n, err, len(lines), got)
		}
	}
}
