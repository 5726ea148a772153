// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/cri/critest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// busy is a recoverer of an agent that has begun a repair, and goes on when it is told to.
type busy struct {
	point   string
	begun   chan struct{}
	proceed chan struct{}
}

func (*busy) Name() string { return "busy" }

func (b *busy) Plan(context.Context, processor.Request) (repair.Part, error) {
	return repair.Part{Actions: []fault.Action{{Kind: fault.Unmount, Target: b.point, Mount: &fault.Mount{Point: b.point}}}}, nil
}

func (b *busy) Open() repair.Apply {
	return func(context.Context, processor.Request, fault.Action) (fault.Applied, error) {
		close(b.begun)
		<-b.proceed
		return fault.Applied{}, nil
	}
}

func (*busy) Verify(context.Context, processor.Request, repair.Part) (processor.Result, error) {
	return processor.Result{}, nil
}

// TestRecoverKeepsOffWhatAnAgentRepairs, and repairs it when the agent is gone.
func TestRecoverKeepsOffWhatAnAgentRepairs(t *testing.T) {
	w := newBrokenNode(t)
	must(t, os.MkdirAll(w.data, 0o700))
	agent, err := (&filelock.Lock{Path: filepath.Join(w.data, filelock.Agent)}).Try()
	must(t, err)
	b := &busy{point: w.subPath, begun: make(chan struct{}), proceed: make(chan struct{})}
	// The journal has other sentences than the plan of the command.
	runner := pipelinetest.NewRunner(t, pipeline.Options{Node: "node", DataRoot: w.data}, processortest.Reworded{Family: b})
	done := make(chan error)
	go func() {
		_, err := runner.Run(t.Context(), pipelinetest.Diagnosis("uid-of-diagnosis", processor.Request{Node: "node"}))
		done <- err
	}()
	<-b.begun
	w.unchanged(t, func() *result { return w.recover(t, "--yes", "StaleSubPath") }).
		says(t, 3, ": refused because an agent of this node works on it: the Diagnosis with UID uid-of-diagnosis. Next: ")
	w.unchanged(t, func() *result {
		return w.run(t, "diagnose", "--pods="+w.pods, "--data-root="+w.data, "--pod=default/web", "--heal")
	}).says(t, 3, "an agent of this node works on it: the Diagnosis with UID uid-of-diagnosis")
	w.recover(t, "--yes", "--only=HeldDevice").says(t, 0, ": healed: ")
	agent()
	w.recover(t, "--yes", "--only=StaleSubPath").says(t, 0, ": healed: ")
	close(b.proceed)
	must(t, <-done)
}

// containers are the records of a container runtime: the container app runs, and sidecar starts as soon as its subPath can be bound.
func (w *brokenNode) containers() (all []*runtimeapi.ContainerStatusResponse) {
	second := int64(time.Second)
	add := func(name, point string, c *runtimeapi.ContainerStatus) {
		c.Labels = critest.Labels(w.Pod.Namespace, w.Pod.Name, string(w.Pod.UID), name)
		c.Mounts = []*runtimeapi.Mount{{HostPath: point, ContainerPath: "/x"}}
		all = append(all, &runtimeapi.ContainerStatusResponse{Status: c})
	}
	add("app", w.Point, &runtimeapi.ContainerStatus{Id: "app-1", State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: second, StartedAt: second})
	add("sidecar", w.subPath, &runtimeapi.ContainerStatus{
		Id: "sidecar-1", State: runtimeapi.ContainerState_CONTAINER_EXITED, CreatedAt: second, FinishedAt: second, ExitCode: 128, Reason: "StartError",
	})
	if text, err := os.ReadFile(w.subPath); err == nil && string(text) == "two" {
		add("sidecar", w.subPath, &runtimeapi.ContainerStatus{
			Id: "sidecar-2", State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: 2 * second, StartedAt: 2 * second,
		})
	}
	return all
}

// kubelet starts a process that looks like a kubelet, in the mount namespace of the test, with a container runtime.
func (w *brokenNode) kubelet(t *testing.T, flags ...string) (pid string) {
	t.Helper()
	socket := critest.Listen(t, &critest.Runtime{Records: w.containers})
	// No program of ours: those have the texts of any kubelet.
	cmd := exec.Command("sh", append([]string{
		"-c", "echo kubelet >/proc/$$/comm; echo; read end", "kubelet", "--root-dir=" + w.Root, "--read-only-port=0",
		"--container-runtime-endpoint=unix://" + socket,
	}, flags...)...)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // it ends with the result of read
	})
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	return strconv.Itoa(cmd.Process.Pid)
}

// TestRecoverAsksTheRuntime for pods where there is no file of them, and sees their containers start.
func TestRecoverAsksTheRuntime(t *testing.T) {
	w := newBrokenNode(t)
	pid := "--kubelet-pid=" + w.kubelet(t)
	run := func(verb string, args ...string) *result {
		return callers[0].run(t, w.s.program, "", append([]string{verb, pid, "--data-root=" + w.data}, args...)...)
	}
	w.unchanged(t, func() *result { return run("recover", "--dry-run", "--only=StaleSubPath,DisconnectedFUSE") }).says(t, 1,
		"StaleSubPath default/web, container sidecar, volume configmap", "would replace "+w.subPath, "would replace "+w.Point)
	run("recover", "--yes", "--only=StaleSubPath,DisconnectedFUSE").says(t, 0, "StaleSubPath default/web, container sidecar, volume configmap: healed: ",
		"; its containers have started after ", "DisconnectedFUSE default/web, volume pvc-1: healed: ")
	run("release", "--yes", w.s.device).says(t, 0, "Released: ")
	run("diagnose", "--pod=default/web").says(t, 0, "NoFault: ")
	w.clean(t)
}

// TestRecoverAsksTheKubelet for pods where the container runtime does not answer.
func TestRecoverAsksTheKubelet(t *testing.T) {
	w := newBrokenNode(t)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if in.URL.Path != "/pods" {
			http.NotFound(out, in)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*w.Pod}}
		if err := json.NewEncoder(out).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	pid := w.kubelet(t, "--read-only-port="+port, "--container-runtime-endpoint=unix:///nowhere")
	r := callers[0].run(t, w.s.program, "", "diagnose", "--kubelet-pid="+pid, "--data-root="+w.data, "--pod=default/web")
	r.says(t, 1, "StaleSubPath (present)", "DisconnectedFUSE (present)")
	r = callers[0].run(t, w.s.program, "", "diagnose", "--kubelet-pid="+pid, "--data-root="+w.data, "--pod=default/web", "--heal")
	r.says(t, 0, "Healed: ")
}
