// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
)

const lintExporter = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter, namespace: mon}
spec:
  template:
    spec:
      volumes:
      - {name: root, hostPath: {path: /}}
      containers:
      - name: exporter
        volumeMounts:
        - {name: root, mountPath: /host}
`

const lintClean = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"

// runLint runs the verb on files of a directory.
func runLint(t *testing.T, files map[string]string, args ...string) (out string, err error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	cmd := NewLintCommand()
	cmd.SetIn(strings.NewReader(lintExporter))
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "DIR", dir)
	}
	out, err = verbtest.Run(t, cmd, args...)
	return strings.ReplaceAll(out, dir, "DIR"), err
}

func TestLint(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a.yaml": lintClean, "sub/b.yml": lintExporter, "note.txt": "{{", "broken/c.yaml": "{{ .x }}: [\n"}
	for name, c := range map[string]struct {
		args  []string
		ends  error // of the kind of which it ends
		fails string
		has   []string
	}{
		"clean":            {args: []string{"-f", "DIR/a.yaml"}, has: []string{"No risk found in 1 workload of 1 file.\n"}},
		"a directory":      {args: []string{"-f", "DIR/sub"}, ends: verb.ErrFaults, has: []string{"DIR/sub/b.yml:12: HostPropagation: DaemonSet mon/exporter: ", "      mountPropagation: HostToContainer\n", "1 risk in 1 of 1 workload.\n"}},
		"standard input":   {args: []string{"-f", "-"}, ends: verb.ErrFaults, has: []string{"standard input:12: HostPropagation"}},
		"several":          {args: []string{"-f", "DIR/a.yaml", "DIR/sub/b.yml"}, ends: verb.ErrFaults, has: []string{"1 risk in 1 of 2 workloads.\n"}},
		"broken beside":    {args: []string{"-f", "DIR"}, fails: "DIR/broken/c.yaml:1: document 1: ", has: []string{"HostPropagation", "not read: 1 document."}},
		"not there":        {args: []string{"-f", "DIR/x"}, fails: "no such file"},
		"an empty one":     {args: []string{"-f", "/dev/null"}, fails: "there is no object"},
		"no file":          {fails: "-f FILE is missing, see kubediag lint --help"},
		"a wrong version":  {args: []string{"-f", "-", "--kubelet-version", "new"}, fails: `--kubelet-version="new": must be a version`},
		"a wrong root":     {args: []string{"-f", "-", "--kubelet-root", "k"}, fails: `--kubelet-root="k": must be an absolute path`},
		"another root":     {args: []string{"-f", "-", "--kubelet-root", "/data/kubelet"}, ends: verb.ErrFaults},
		"for the workflow": {args: []string{"-f", "DIR/sub", "-o", "github"}, ends: verb.ErrFaults, has: []string{"::warning file=DIR/sub/b.yml,line=12,title=HostPropagation::DaemonSet mon/exporter: container "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runLint(t, files, c.args...)
			switch {
			case c.fails != "":
				if err == nil || errors.Is(err, verb.ErrFaults) || !strings.Contains(err.Error(), strings.TrimPrefix(c.fails, "DIR")) {
					t.Errorf("error %v, want %q", err, c.fails)
				}
			case !errors.Is(err, c.ends):
				t.Errorf("error %v, want %v", err, c.ends)
			}
			for _, text := range c.has {
				if !strings.Contains(out, text) {
					t.Errorf("printed %s\nwithout %q", out, text)
				}
			}
		})
	}
}

func TestLintJSON(t *testing.T) {
	t.Parallel()
	out, err := runLint(t, map[string]string{"a.yaml": lintExporter + "---\nkind: Service\napiVersion: v1\n---\nkind: Pod\n"}, "-f", "DIR", "-o", "json")
	if err == nil {
		t.Error("no error for a pod without apiVersion")
	}
	var r lintReport
	must(t, json.Unmarshal([]byte(out), &r))
	if len(r.Findings) != 1 || r.Findings[0].Line != 12 || r.Findings[0].Code != "HeldDevice" || r.Findings[0].Patch == "" ||
		r.Looked.PassedOver["Service"] != 1 || len(r.Errors) != 1 || r.SchemaVersion != 1 {
		t.Errorf("report %+v", r)
	}
}

func TestLintSARIF(t *testing.T) {
	t.Parallel()
	out, err := runLint(t, map[string]string{"a b.yaml": lintExporter, "c.yaml": "kind: Pod\n"}, "-f", "DIR", "-o", "sarif")
	if err == nil {
		t.Error("no error for a pod without apiVersion")
	}
	var log sarifLog
	must(t, json.Unmarshal([]byte(out), &log))
	if log.Version != "2.1.0" || len(log.Runs) != 1 || len(log.Runs[0].Results) != 1 {
		t.Fatalf("log %+v", log)
	}
	run := log.Runs[0]
	rules, result := run.Tool["driver"].Rules, run.Results[0]
	at := result.Locations[0].Physical
	if len(rules) != 1 || rules[0].ID != "HostPropagation" || !strings.Contains(rules[0].ShortDescription.Text, "HeldDevice") ||
		result.RuleID != "HostPropagation" || result.Level != "warning" || !strings.HasPrefix(result.Message.Text, "DaemonSet mon/exporter: ") {
		t.Errorf("rules %+v, result %+v", rules, result)
	}
	if at.Artifact.URI != "DIR/a%20b.yaml" || at.Region.StartLine != 12 {
		t.Errorf("place %+v", at)
	}
	if i := run.Invocations[0]; i.Successful || len(i.Notifications) != 1 || i.Notifications[0].Level != "error" || !strings.Contains(i.Notifications[0].Message.Text, "c.yaml") {
		t.Errorf("invocation %+v", i)
	}
}
