// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
)

// packed is content as an agent copies it.
func packed(t *testing.T, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArtifactsAreWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	diagnosis := &v1.Diagnosis{Status: v1.DiagnosisStatus{Artifacts: []v1.Artifact{
		{Key: "../../collector.system.mountinfo", Content: packed(t, 5)}, {Key: "large", Path: "/var/lib/kubediag/x"},
	}}}
	var out, errs bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	if err := saveArtifacts(cmd, &client{}, diagnosis, dir); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "1-.._.._collector.system.mountinfo")
	if got, err := os.ReadFile(name); err != nil || len(got) != 5 || out.String() != name+"\n" || !strings.Contains(errs.String(), "large is only on node") {
		t.Errorf("%v, %d bytes; %q, %q", err, len(got), &out, &errs)
	}
	if err := saveArtifacts(cmd, &client{}, diagnosis, dir); err == nil || !strings.Contains(err.Error(), "must be a new directory") {
		t.Errorf("a second time: %v", err)
	}
	diagnosis.Status.Artifacts[0].Content = packed(t, maxArtifactBytes+1)
	if err := saveArtifacts(cmd, &client{}, diagnosis, filepath.Join(t.TempDir(), "bomb")); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a bomb: %v", err)
	}
	diagnosis.Status.Artifacts = nil
	if err := saveArtifacts(cmd, &client{}, diagnosis, t.TempDir()); err == nil || !strings.Contains(err.Error(), "kubectl kubediag run pod/NAME --heal=never --artifacts") {
		t.Errorf("no copies: %v", err)
	}
}
