// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestArtifactsAreCopied where that is asked for, without credentials.
func TestArtifactsAreCopied(t *testing.T) {
	t.Parallel()
	for _, place := range []v1.ArtifactPlace{"", v1.ArtifactsOnNode, v1.ArtifactsInStatus} {
		w := newWorld(t)
		w.put(chain("script"))
		script := builtIn("script", "")
		key := "check"
		script.Spec.Processor = v1.Processor{ScriptRunner: &v1.ScriptRunner{Script: `echo 'password: hunter2'; seq 1 1000`, OperationResultKey: &key}}
		script.Spec.Storage = &v1.Storage{HostPath: &v1.HostPathStorage{Path: "scripts"}}
		w.operations["script"] = script
		w.external.EnableScripts = true
		d := diagnosis()
		d.Spec.Artifacts = place
		d = w.run(t, d)
		if len(d.Status.Artifacts) == 0 {
			t.Fatalf("%q: %+v", place, d.Status)
		}
		a := d.Status.Artifacts[len(d.Status.Artifacts)-1]
		if place != v1.ArtifactsInStatus {
			if a.Content != nil {
				t.Errorf("%q: there is a copy: %+v", place, a)
			}
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(a.Content))
		if err != nil {
			t.Fatalf("%+v: %v", a, err)
		}
		text, err := io.ReadAll(r)
		if err != nil || !strings.Contains(string(text), "\n1000\n") || strings.Contains(string(text), "hunter2") {
			t.Errorf("%v: %q", err, text)
		}
	}
}

// TestCopiesGoFirst where the status is too large to be stored.
func TestCopiesGoFirst(t *testing.T) {
	t.Parallel()
	d := diagnosis()
	d.Status.Artifacts = []v1.Artifact{{Key: "k", Content: bytes.Repeat([]byte{1}, v1.MaxArtifactBytes)}}
	d.Status.OperationResults = map[string]string{"a": strings.Repeat("x", v1.MaxResultsBytes)}
	shrinkStatus(d)
	if d.Status.Artifacts[0].Content == nil {
		t.Error("the copy was dropped although there was room")
	}
	d.Status.Operations = []v1.OperationRun{{Message: strings.Repeat("y", 400<<10)}}
	shrinkStatus(d)
	if d.Status.Artifacts[0].Content != nil || len(d.Status.Operations[0].Message) != 400<<10 {
		t.Error("the copy was kept, or something else was dropped")
	}
}
