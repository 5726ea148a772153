// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// patch changes one place in the source of Kubernetes.
type patch struct {
	file, old, new string
}

// keepsLogs has a kubelet 1.18 leave the logs of pods that it does not know. It would remove those of every other kubelet once a
// minute, and has no setting for a directory of its own.
var keepsLogs = patch{
	file: "pkg/kubelet/kuberuntime/kuberuntime_gc.go", old: "osInterface.RemoveAll(filepath.Join(podLogsRootDirectory, name))", new: "error(nil)",
}

// modfile makes a copy of Kubernetes with the patch in dir, and returns a go.mod that builds from it the programs of the
// module in the folder module. Go allows no overlay on its cache of modules.
func (p patch) modfile(ctx context.Context, module, dir string) (string, error) {
	const kubernetes = "k8s.io/kubernetes"
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", kubernetes)
	download.Dir = module
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w\n%s", kubernetes, err, tail(out, 4096))
	}
	var from struct{ Dir string }
	if err := json.Unmarshal(out, &from); err != nil {
		return "", fmt.Errorf("download %s: %w", kubernetes, err)
	}
	source, modfile := filepath.Join(dir, "kubernetes"), filepath.Join(dir, "go.mod")
	if err := os.CopyFS(source, os.DirFS(from.Dir)); err != nil {
		return "", fmt.Errorf("copy %s: %w", kubernetes, err)
	}
	name := filepath.Join(source, p.file)
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("patch %s: %w", kubernetes, err)
	}
	if n := bytes.Count(text, []byte(p.old)); n != 1 {
		return "", fmt.Errorf("patch %s: %d times %q in %s, want once", kubernetes, n, p.old, p.file)
	}
	if err := os.WriteFile(name, bytes.Replace(text, []byte(p.old), []byte(p.new), 1), 0o600); err != nil {
		return "", fmt.Errorf("patch %s: %w", kubernetes, err)
	}
	if err := os.CopyFS(dir, os.DirFS(module)); err != nil {
		return "", fmt.Errorf("copy pinned modules: %w", err)
	}
	edit := exec.CommandContext(ctx, "go", "mod", "edit", "-replace="+kubernetes+"="+source, modfile)
	if out, err := edit.CombinedOutput(); err != nil {
		return "", fmt.Errorf("replace %s: %w\n%s", kubernetes, err, out)
	}
	return modfile, nil
}
