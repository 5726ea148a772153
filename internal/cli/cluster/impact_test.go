// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/schematest"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
)

// The pods of the driver on two nodes, and another pod that serves.
var (
	driverPod  = fault.Pod{Namespace: "kube-system", Name: "juicefs-csi-node-7xk2p", UID: "d1"}
	driverPod2 = fault.Pod{Namespace: "kube-system", Name: "juicefs-csi-node-q8w4z", UID: "d2"}
	servingPod = fault.Pod{Namespace: "kube-system", Name: "juicefs-worker-7-pvc-3", UID: "m1"}
)

// impactOf is a FUSE volume of a pod with a daemon in each of these pods.
func impactOf(pod string, back fault.Return, daemons ...fault.Pod) fault.MountImpact {
	m := fault.MountImpact{
		Pod: fault.Pod{Namespace: "shop", Name: pod, UID: pod}, Volume: "pvc-3", SpecVolume: "data", Point: "/p", FSType: "fuse.juicefs", Driver: "csi.juicefs.com",
		ServedBy: fault.ServedByDaemon, Returns: back,
	}
	for i, p := range daemons {
		m.Daemons = append(m.Daemons, fault.ServingDaemon{PID: 4100 + i, Command: "mount.juicefs", Pod: p, Container: "juicefs-plugin"})
	}
	return m
}

// kernelVolume is a volume that no daemon serves.
func kernelVolume(pod, refusal string) fault.MountImpact {
	return fault.MountImpact{Pod: fault.Pod{Namespace: "shop", Name: pod, UID: pod}, Volume: "pvc-9", Point: "/n", FSType: "nfs4", ServedBy: fault.ServedByKernel,
		Returns: fault.ReturnNotLost, UnmountRefusal: refusal}
}

// questions about a DaemonSet, a node and a claim.
func questions() map[string]*impactQuestion {
	return map[string]*impactQuestion{
		"ds": {target: "DaemonSet kube-system/juicefs-csi-node", event: "the pods of DaemonSet kube-system/juicefs-csi-node end",
			driver: map[string]bool{"d1": true, "d2": true}},
		"node": {target: "node worker-7", event: "the daemons of node worker-7 end"},
		"pvc":  {target: "claim shop/data", event: "the daemons of claim shop/data end", claim: "pvc-3", pods: map[string]bool{"web-1": true, "web-2": true}},
	}
}

// TestLoses: who serves a volume decides, and nothing else.
func TestLoses(t *testing.T) {
	t.Parallel()
	noPod := impactOf("a", fault.ReturnNewPod, fault.Pod{})
	noPod.Daemons[0].PodUnknown = "the runtime does not answer"
	onDevice := kernelVolume("a", "")
	onDevice.ServedBy = fault.ServedByUnknown
	for name, tc := range map[string]struct {
		of            fault.MountImpact
		ds, node, pvc impactAnswer
	}{
		"of the driver":    {impactOf("a", fault.ReturnRepair, driverPod), loses, loses, loses},
		"of two pods":      {impactOf("a", fault.ReturnRepair, servingPod, driverPod2), loses, loses, loses},
		"of another pod":   {impactOf("a", fault.ReturnRepair, servingPod), losesNot, loses, loses},
		"in no pod":        {impactOf("a", fault.ReturnRepair, fault.Pod{}), losesNot, loses, loses},
		"pod not known":    {noPod, mayLose, loses, loses},
		"daemon not known": {impactOf("a", fault.ReturnRepair), mayLose, loses, loses},
		"on a device":      {onDevice, mayLose, mayLose, mayLose},
		"of the kernel":    {kernelVolume("a", "busy"), losesNot, losesNot, losesNot},
	} {
		for kind, want := range map[string]impactAnswer{"ds": tc.ds, "node": tc.node, "pvc": tc.pvc} {
			if got := questions()[kind].loses(tc.of); got != want {
				t.Errorf("%s, %s: %s, want %s", name, kind, got, want)
			}
		}
	}
}

// impactReports are answers without a loss, with every kind of row, and without an answer of a node.
func impactReports() map[string]impactView {
	unknown := impactOf("batch-0", fault.ReturnNewPod)
	unknown.DaemonUnknown = "the kernel does not name the connection of a descriptor, which needs Linux 6.16"
	byDriver := impactOf("api-0", fault.ReturnByItself, driverPod2)
	byDriver.Daemons[0] = fault.ServingDaemon{Pod: driverPod2, Container: "juicefs-plugin"}
	held := impactOf("web-2", fault.ReturnNewPod, driverPod)
	held.UnmountRefusal = "2 mounts lie on it, and the kernel refuses to unmount it until they are gone"
	all := []fault.MountImpact{
		kernelVolume("db-0", ""), kernelVolume("db-1", "its file system does not answer, and the kubelet waits for it"),
		impactOf("other-0", fault.ReturnRepair, servingPod), impactOf("web-1", fault.ReturnRepair, driverPod), held, byDriver, unknown,
	}
	views := map[string]impactView{}
	for name, q := range questions() {
		r := &impactReport{SchemaVersion: 1, Target: q.target, Nodes: []string{}, Volumes: []impactVolume{}, Unknown: []impactGap{}}
		r.add(q, "worker-7", nodeAnswer{volumes: all, unknown: []string{"mnt:[4026532201]: 1 process does not answer"}})
		views[name] = impactView{question: q, report: r}
	}
	none := questions()["ds"]
	r := &impactReport{SchemaVersion: 1, Target: none.target, Nodes: []string{}, Volumes: []impactVolume{}, Unknown: []impactGap{}}
	r.add(none, "worker-7", nodeAnswer{volumes: all[:3]})
	views["none"] = impactView{question: none, report: r}
	views["silent"] = impactView{question: none, report: &impactReport{SchemaVersion: 1, Target: none.target, Nodes: []string{}, Volumes: []impactVolume{}, Unknown: []impactGap{
		{"worker-8", "no answer within 1m0s: No agent answers on node worker-8"}, {"worker-9", "not asked: 200 nodes are asked at most"},
	}}}
	return views
}

func TestImpactSchema(t *testing.T) {
	t.Parallel()
	written := map[string]any{}
	for name, view := range impactReports() {
		written[name] = view.report
	}
	schematest.Check(t, "kubectl kubediag impact", schematest.TypeSchema(reflect.TypeFor[impactReport](), map[reflect.Type][]string{
		reflect.TypeFor[impactAnswer]():   {string(loses), string(mayLose), string(losesNot)},
		reflect.TypeFor[fault.ServedBy](): {string(fault.ServedByDaemon), string(fault.ServedByKernel), string(fault.ServedByUnknown)},
		reflect.TypeFor[fault.Return]():   {string(fault.ReturnNotLost), string(fault.ReturnByItself), string(fault.ReturnRepair), string(fault.ReturnNewPod)},
	}), "volumes", written)
}

// TestAnswers reads results that are whole, that were cut, and that are not there.
func TestAnswers(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal([]fault.MountImpact{impactOf("web-1", fault.ReturnRepair, driverPod)})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		results map[string]string
		volumes int
		says    string
	}{
		"whole":     {map[string]string{fault.KeyMountImpact: string(text)}, 1, ""},
		"cut":       {map[string]string{fault.KeyMountImpact: string(text) + "\n[cut: 9 bytes in all]"}, 1, "was cut"},
		"with gaps": {map[string]string{fault.KeyMountImpact: "[]", fault.KeyMountImpactUnknown: `["mnt:[7]: it went"]`}, 0, "mnt:[7]: it went"},
		"none":      {nil, 0, "operation mount-impact-diagnoser has failed"},
		"garbage":   {map[string]string{fault.KeyMountImpact: "{"}, 0, "read result " + fault.KeyMountImpact},
	} {
		d := step(func(s *v1.DiagnosisStatus) {
			s.OperationResults, s.Summary = tc.results, "operation mount-impact-diagnoser has failed"
		})
		answer := readNodeAnswer(d)
		said := strings.Join(answer.unknown, "; ")
		if answer.err != nil {
			said = answer.err.Error()
		}
		if len(answer.volumes) != tc.volumes || (said == "") != (tc.says == "") || !strings.Contains(said, tc.says) {
			t.Errorf("%s: %d volumes, %q, want %d and %q", name, len(answer.volumes), said, tc.volumes, tc.says)
		}
	}
}

// TestImpactNamesTheMissingRight, and leaves no Diagnosis behind.
func TestImpactNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	var methods []string
	server := serverOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"worker-7"}}`))
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"eve may not repair node worker-7"}`))
	}))
	if out, status := runAs(t, Name, "impact", "node/worker-7", "--server="+server); status != verb.StatusRefused || !strings.Contains(out, "eve may not repair node worker-7") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if !slices.Equal(methods, []string{http.MethodGet, http.MethodPost}) {
		t.Errorf("requests %q", methods)
	}
}
