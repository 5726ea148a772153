// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/internal/cli/verb"
)

// TestKubectlCallsIt by two names, and one of them with the extension of Windows.
func TestKubectlCallsIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program string
		args    []string
		status  int
		want    string
	}{
		{"/usr/local/bin/kubectl-kubediag", []string{"help"}, verb.StatusDone, "\n  faults "},
		{"kubectl-kubediag", []string{"explain", "hung"}, verb.StatusDone, "HungMount"},
		{"kubectl-kubediag", []string{"run"}, verb.StatusFailed, "kubediag: run: TARGET is missing, see kubectl kubediag run --help\n"},
		{"kubectl-kubediag", []string{"faults", "--fast"}, verb.StatusFailed, "kubediag: faults: unknown flag: --fast, see kubectl kubediag faults --help\n"},
		{"/usr/local/bin/kubectl_complete-kubediag", []string{"explain", "Hu"}, verb.StatusDone, "HungMount\t"},
		{"kubectl_complete-kubediag.exe", []string{"explain", "Hu"}, verb.StatusDone, "HungMount\t"},
	} {
		if out, status := runAs(t, c.program, c.args...); status != c.status || !strings.Contains(out, c.want) {
			t.Errorf("%s %q: status %d, want %d, %q in:\n%s", c.program, c.args, status, c.status, c.want, out)
		}
	}
}

// runAs runs the program by one of its names, and returns its output and its exit status.
func runAs(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewCommand(program, args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	status := verb.Run(t.Context(), cmd)
	return out.String(), status
}

// serverOf is the address of an API server.
func serverOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// clientOf is a client of an API server, with a default namespace.
func clientOf(t *testing.T, handler http.Handler, namespace string) *client {
	t.Helper()
	c, err := newClient(&rest.Config{Host: serverOf(t, handler)}, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
