// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is an object of the API.
type object = map[string]any

// fakeAPI is an API server with faults and Diagnoses.
type fakeAPI struct {
	t *testing.T

	mu                sync.Mutex
	version           int
	faults, diagnoses []object
	changed           chan struct{} // is closed when something changes
	only              string        // the one namespace that the user may read; empty: all
	asked             []string      // requests that change something
}

// change changes the objects.
func (a *fakeAPI) change(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	list := func(kind string, items []object) object {
		about := object{"resourceVersion": fmt.Sprint(a.version)}
		from, _ := strconv.Atoi(r.URL.Query().Get("continue")) // empty: the first page
		items = append([]object{}, items[min(from, len(items)):]...)
		if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && limit > 0 && limit < len(items) {
			items, about["continue"] = items[:limit], strconv.Itoa(from+limit)
		}
		return object{"kind": kind, "apiVersion": "diagnosis.kubediag.org/v1", "metadata": about, "items": items}
	}
	var answer object
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := parts[len(parts)-1]
	if a.only != "" && !strings.Contains(r.URL.Path, "/namespaces/"+a.only+"/") {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"dev cannot list %s","code":403}`, name)
		return
	}
	switch {
	case r.Method != http.MethodGet && name == "selfsubjectreviews":
		answer = object{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": object{"userInfo": object{"username": "anna"}}}
	case r.Method != http.MethodGet && name == "diagnoses":
		answer = a.diagnose(r)
	case r.Method != http.MethodGet:
		a.asked = append(a.asked, r.Method+" "+r.URL.Path)
		answer = object{"kind": "RecoveryApproval", "apiVersion": "diagnosis.kubediag.org/v1", "metadata": object{"namespace": "shop", "name": "web-1"}}
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
		return
	case name == "mountfaults":
		answer = list("MountFaultList", inNamespace(parts, a.faults))
	case name == "diagnoses":
		answer = list("DiagnosisList", inNamespace(parts, a.diagnoses))
	case name == "recoverypolicies":
		answer = list("RecoveryPolicyList", []object{{"metadata": object{"name": "stale-subpaths"}, "spec": object{"mode": "Automatic", "paused": true}}})
	case name == "leases":
		answer = object{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": leases()}
	case name == "triggers":
		answer = list("TriggerList", []object{{"metadata": object{"name": "nightly"}, "spec": object{
			"operationSet": "auto", "mode": "Plan", "sourceTemplate": object{"cronTemplate": object{"schedule": "0 1 * * *"}}}}})
	case name == "pods":
		answer = object{"kind": "PodList", "apiVersion": "v1", "items": []object{podWithVolumes("web-0"), podWithVolumes("api-0")}}
	case name == "auto":
		answer = object{"kind": "OperationSet", "apiVersion": "diagnosis.kubediag.org/v1", "metadata": object{"name": "auto"}, "spec": object{"adjacencyList": []object{
			{"id": 0, "to": []int{1, 2}}, {"id": 1, "operation": "auto-recover"}, {"id": 2, "operation": "held-device", "to": []int{3}}, {"id": 3, "operation": "device-recover"},
		}}}
	case len(parts) > 1 && parts[len(parts)-2] == "nodes":
		answer = object{"kind": "Node", "apiVersion": "v1", "metadata": object{"name": name}}
	case name == "daemonsets":
		answer = object{"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": []object{}}
	case name == "nodes":
		answer = object{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": nodes()}
	default:
		for _, o := range append(append([]object{}, a.faults...), a.diagnoses...) {
			if o["metadata"].(object)["name"] == name {
				answer = o
			}
		}
	}
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		a.t.Logf("answer %s: %v", r.URL.Path, err)
	}
}

// diagnose makes a plan of the first fault, or heals it by that plan.
func (a *fakeAPI) diagnose(r *http.Request) object {
	var made object
	if err := json.NewDecoder(r.Body).Decode(&made); err != nil {
		a.t.Errorf("read Diagnosis: %v", err)
	}
	spec := made["spec"].(object)
	a.asked = append(a.asked, fmt.Sprint(spec["mode"], " ", spec["planHash"]))
	changes := []string{`boot "b"`, `Unmount mount "/m"`}
	d := waiting(hashOf(changes...), changes...)
	status := d["status"].(object)
	delete(status, "approval")
	status["phase"], status["outcome"], d["spec"] = "Succeeded", "Planned", spec
	d["metadata"].(object)["name"] = "web-plan"
	if spec["mode"] == "Recover" {
		d["metadata"].(object)["name"], status["outcome"], a.faults = "web-repair", "Healed", nil
	}
	a.diagnoses = append(a.diagnoses, d)
	return d
}

// watch sends the changes of a kind, as an API server does. A client whose list is not the newest has to list again.
func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	stream := http.NewResponseController(w)
	send := func(kind string, o object) { _ = json.NewEncoder(w).Encode(object{"type": kind, "object": o}) } // the client may have gone
	list := func() []object {
		parts := strings.Split(r.URL.Path, "/")
		if strings.HasSuffix(r.URL.Path, "/mountfaults") {
			return inNamespace(parts, a.faults)
		}
		return inNamespace(parts, a.diagnoses)
	}
	known := byUID(list())
	w.WriteHeader(http.StatusOK)
	if from := r.URL.Query().Get("resourceVersion"); from != fmt.Sprint(a.version) {
		send("ERROR", object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410})
		return
	}
	for {
		changed := a.changed
		a.mu.Unlock()
		_ = stream.Flush()
		select {
		case <-r.Context().Done():
		case <-changed:
		}
		a.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
		now := byUID(list())
		for uid, o := range now {
			if before, ok := known[uid]; !ok {
				send("ADDED", o)
			} else if before["metadata"].(object)["resourceVersion"] != o["metadata"].(object)["resourceVersion"] {
				send("MODIFIED", o)
			}
		}
		for uid, o := range known {
			if now[uid] == nil {
				send("DELETED", o)
			}
		}
		known = now
	}
}

// byUID has objects by their UIDs.
func byUID(list []object) map[string]object {
	found := map[string]object{}
	for _, o := range list {
		found[fmt.Sprint(o["metadata"].(object)["uid"])] = o
	}
	return found
}

// mountFault is a fault of a pod.
func mountFault(code, impact, heal, pod string) object {
	return object{
		"kind": "MountFault", "apiVersion": "diagnosis.kubediag.org/v1",
		"metadata": object{"namespace": "shop", "name": strings.ToLower(code) + "-" + fmt.Sprint(len(pod)), "uid": code + pod, "resourceVersion": "1"},
		"status": object{
			"code": code, "impact": impact, "heal": heal, "node": "worker-1", "target": pod, "pod": object{"namespace": "shop", "name": pod}, "volume": "conf", "container": "nginx",
			"since": time.Now().UTC().Format(time.RFC3339), "lastSeen": time.Now().UTC().Format(time.RFC3339), "summary": "the file it is bound to was replaced",
			"driver": "csi.example.com", "plan": "replace this one bind", "evidence": []string{"its link count is 0"},
		},
	}
}

// waiting is a Diagnosis whose plan waits for approval.
func waiting(hash string, changes ...string) object {
	return object{
		"kind": "Diagnosis", "apiVersion": "diagnosis.kubediag.org/v1", "metadata": object{"namespace": "shop", "name": "web-waits", "uid": "u", "resourceVersion": "1"},
		"spec": object{"mode": "Approve", "nodeName": "worker-1", "podReference": object{"namespace": "shop", "name": "web-0"}},
		"status": object{
			"phase": "Running", "outcome": "AwaitingApproval", "approval": object{"planHash": hash},
			"plan":       object{"operation": "repair", "hash": hash, "changes": changes, "actions": 1, "lossless": true},
			"operations": []object{{"id": 1, "operation": "auto-recover", "phase": "Running", "actions": []object{{"kind": "Unmount", "target": "/var/lib/kubelet/pods/x", "phase": "Planned", "safety": "it is dead"}}}},
		},
	}
}

// withEvidence is a fault with another fact. The version makes it a change.
func withEvidence(fault object, fact string) object {
	made := maps.Clone(fault)
	made["status"] = maps.Clone(fault["status"].(object))
	made["status"].(object)["evidence"] = []string{fact}
	made["metadata"] = maps.Clone(fault["metadata"].(object))
	made["metadata"].(object)["resourceVersion"] = "2"
	return made
}

// nodesOfTest is how many nodes there are. The agent of the last one is silent.
const nodesOfTest = 20

func nodes() (list []object) {
	for i := range nodesOfTest {
		list = append(list, object{"metadata": object{"name": fmt.Sprint("worker-", i+1)}})
	}
	return list
}

func leases() (list []object) {
	for i := range nodesOfTest - 1 {
		name := fmt.Sprint("worker-", i+1)
		list = append(list, object{"metadata": object{"name": "kubediag-agent-" + name}, "spec": object{
			"holderIdentity": name, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")}})
	}
	return list
}

// podWithVolumes is a pod whose container has a subPath of a ConfigMap.
func podWithVolumes(name string) object {
	return object{"metadata": object{"namespace": "shop", "name": name}, "spec": object{
		"volumes":    []object{{"name": "conf", "configMap": object{"name": "conf"}}, {"name": "tmp", "emptyDir": object{}}},
		"containers": []object{{"name": "nginx", "volumeMounts": []object{{"name": "conf", "mountPath": "/etc/nginx/nginx.conf", "subPath": "nginx.conf"}}}},
	}}
}

// inNamespace are the objects of the namespace that the parts of a path name; all if they name none.
func inNamespace(parts []string, list []object) (found []object) {
	at := slices.Index(parts, "namespaces")
	for _, o := range list {
		if at < 0 || o["metadata"].(object)["namespace"] == parts[at+1] {
			found = append(found, o)
		}
	}
	return found
}
