// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
)

// externalOperation makes an Operation of the nested form for a server.
func externalOperation(t *testing.T, name, address string) *v1.Operation {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	must(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	must(t, err)
	path, p := "/diagnose", int32(number)
	op := builtIn(name, "")
	op.Spec.Processor = v1.Processor{HTTPServer: &v1.HTTPServer{Address: &host, Port: &p, Path: &path}}
	return op
}

// An external server sees what earlier operations found and the context, and its results are passed on to a script.
func TestExternalServerAndScript(t *testing.T) {
	t.Parallel()
	var seen map[string]string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&seen); err != nil || r.Method != http.MethodPost || r.URL.Path != "/diagnose" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		_, _ = w.Write([]byte(`{"found":"it; rm -rf $HOME"}`))
	}))
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.put(chain("pod-detail-collector", "server", "script"))
	w.operations["server"] = externalOperation(t, "server", s.Listener.Addr().String())
	key := "check"
	script := builtIn("script", "")
	script.Spec.Processor = v1.Processor{ScriptRunner: &v1.ScriptRunner{
		Script: `printf '%s|%s|%s' "$0" "$1" "$2"; echo trouble >&2`, ArgKeys: []string{"found", "absent"}, OperationResultKey: &key,
	}}
	script.Spec.Storage = &v1.Storage{HostPath: &v1.HostPathStorage{Path: "scripts"}}
	w.operations["script"] = script
	w.external.EnableScripts = true
	d := w.run(t, diagnosis())
	want := map[string]string{
		"collector.kubernetes.pod.detail": "{}", "found": "it; rm -rf $HOME",
		"operation.check.output": "script|it; rm -rf $HOME|", "operation.check.error": "trouble\n",
	}
	if diff := cmp.Diff(want, d.Status.OperationResults); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if d.Status.Outcome != v1.OutcomeCompleted || len(w.saved) != 2 {
		t.Errorf("outcome %s, %d writes", d.Status.Outcome, len(w.saved))
	}
	wantSeen := map[string]string{
		"param.x": "1", "collector.kubernetes.pod.detail": "{}", "diagnosis.uid": string(d.UID), "diagnosis.namespace": "default",
		"diagnosis.name": "d", "pod.namespace": "default", "pod.name": "p", "node": "my-node",
	}
	if diff := cmp.Diff(wantSeen, seen); diff != "" {
		t.Errorf("what the server saw (-want +got):\n%s", diff)
	}
	checkArtifacts(t, w, d)
}

// checkArtifacts sees that the results of the script are kept where its Operation says.
func checkArtifacts(t *testing.T, w *world, d *v1.Diagnosis) {
	t.Helper()
	if len(d.Status.Artifacts) != 2 {
		t.Fatalf("artifacts %+v", d.Status.Artifacts)
	}
	for _, a := range d.Status.Artifacts {
		text, err := os.ReadFile(a.Path)
		if err != nil || string(text) != d.Status.OperationResults[a.Key] || a.SizeBytes != int64(len(text)) || a.Operation != "script" || len(a.SHA256) != 64 {
			t.Errorf("artifact %+v holds %q: %v", a, text, err)
		}
		if !strings.HasPrefix(a.Path, filepath.Join(w.dir, "storage", "scripts")+"/") {
			t.Errorf("artifact is at %q", a.Path)
		}
	}
}

func TestExternalServerDeclines(t *testing.T) {
	t.Parallel()
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		http.Error(w, "this is not that fault; token=hunter2", http.StatusUnprocessableEntity)
	}))
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.put(chain("server"))
	w.operations["server"] = externalOperation(t, "server", s.Listener.Addr().String())
	d := w.run(t, diagnosis())
	want := "status 422 Unprocessable Entity: this is not that fault; token=[redacted]"
	if o := d.Status.Operations[0]; calls != 1 || d.Status.Outcome != v1.OutcomeNoFault || o.Phase != v1.OperationNotApplicable || o.Message != want {
		t.Errorf("%d calls, outcome %s, operation %+v", calls, d.Status.Outcome, o)
	}
}
