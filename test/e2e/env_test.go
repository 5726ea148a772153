// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

// env is a cluster with one node and kubediag installed on it.
type env struct {
	*install.Env
	set     *kubernetes.Clientset
	environ []string // of kubectl with the plugin
}

// start brings up a cluster and installs kubediag with the manifests that users apply.
func start(t *testing.T, o cluster.Options, tags ...string) *env {
	t.Helper()
	e := &env{Env: install.Start(t, o, tags...)}
	var err error
	e.set, err = kubernetes.NewForConfig(e.RESTConfig())
	must(t, err)
	return e
}

// onNode makes a command that runs kubediag on the node, for the node's own kubelet: others may run on the machine.
func (e *env) onNode(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(ctx, e.Build(t, "kubediag"), append(args, e.kubeletFlag())...)
}

func (e *env) kubeletFlag() string { return fmt.Sprintf("--kubelet-pid=%d", e.KubeletPID()) }

// mounts reads the mount table that the kubelet sees.
func (e *env) mounts(t *testing.T) []mountinfo.Mount {
	t.Helper()
	table, err := mountns.Table(e.KubeletPID())
	must(t, err)
	return table.Mounts()
}

// podOf finds the one pod with the label app=name.
func (e *env) podOf(ctx context.Context, name string) *corev1.Pod {
	var pods corev1.PodList
	err := e.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": name})
	if err != nil || len(pods.Items) != 1 {
		return nil
	}
	return &pods.Items[0]
}

// kubeletLog is all that the kubelet has logged.
func (e *env) kubeletLog(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.Dir(), "log/kubelet.log"))
	must(t, err)
	return string(text)
}

// stage runs a part of a test, says how long it took, and ends the test if it has failed.
func stage(t *testing.T, name string, do func(*testing.T)) {
	t.Helper()
	began := time.Now()
	if !t.Run(name, do) {
		t.FailNow()
	}
	t.Logf("%s: %.1f s", name, time.Since(began).Seconds())
}

// checkEnd holds how a Diagnosis has ended.
func checkEnd(t *testing.T, d *v1.Diagnosis, phase v1.DiagnosisPhase, outcome v1.Outcome) {
	t.Helper()
	if d.Status.Phase != phase || d.Status.Outcome != outcome {
		t.Errorf("Diagnosis %s: phase %q, outcome %q, want %q and %q: %s", d.Name, d.Status.Phase, d.Status.Outcome, phase, outcome, d.Status.Summary)
	}
}

var must = kerneltest.Must
