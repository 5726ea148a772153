// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"strings"
	"testing"

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
		var out bytes.Buffer
		cmd := NewCommand(c.program, c.args)
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if status := verb.Run(t.Context(), cmd); status != c.status || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s %q: status %d, want %d, %q in:\n%s", c.program, c.args, status, c.status, c.want, &out)
		}
	}
}
