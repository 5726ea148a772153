// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cri

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

const testImage = "kubediag.org/test/busybox:cri"

// containerd is one of our own, in a directory of its own.
type containerd struct {
	runtimeapi.RuntimeServiceClient
	t   *testing.T
	dir string
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "s") }

// startContainerd needs containerd, runc, ctr and a static busybox.
func startContainerd(t *testing.T) *containerd {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &containerd{t: t, dir: dir}
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
address = %q
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
restrict_oom_score_adj = true
`, dir+"/root", dir+"/state", c.socket(), testImage)
	must(t, os.WriteFile(dir+"/config.toml", []byte(config), 0o600))
	log, err := os.Create(dir + "/log")
	must(t, err)
	defer log.Close()
	cmd := exec.Command("containerd", "--config", dir+"/config.toml")
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		if text, err := os.ReadFile(dir + "/log"); err == nil && t.Failed() {
			t.Logf("containerd says:\n%s", text)
		}
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = systest.UnmountPath(dir+"/root", true)
	})
	conn, err := grpc.NewClient("unix://"+c.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(conn)
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	c.load()
	return c
}

// load makes an image of busybox alone, which sleeps.
func (c *containerd) load() {
	c.t.Helper()
	program, err := os.ReadFile("/usr/bin/busybox")
	must(c.t, err)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	must(c.t, w.WriteHeader(&tar.Header{Name: "busybox", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	must(c.t, err)
	must(c.t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	must(c.t, err)
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: runtime.GOOS, Architecture: runtime.GOARCH, Config: v1.Config{Entrypoint: []string{"/busybox", "sleep", "1000000"}},
	})
	must(c.t, err)
	img, err = mutate.AppendLayers(img, l)
	must(c.t, err)
	tag, err := name.NewTag(testImage)
	must(c.t, err)
	file := filepath.Join(c.dir, "image.tar")
	must(c.t, tarball.WriteToFile(file, tag, img))
	out, err := exec.CommandContext(c.t.Context(), "ctr", "--address", c.socket(), "--namespace", "k8s.io", "images", "import", file).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// sandbox starts a pod in the host's network.
func (c *containerd) sandbox(uid string) (string, *runtimeapi.PodSandboxConfig) {
	c.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: uid, Uid: uid, Namespace: "default"},
		LogDirectory: c.dir,
		Labels:       map[string]string{labelPodUID: uid, labelPodNamespace: "default", labelPodName: uid + "-name"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
	response, err := c.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	must(c.t, err)
	id := response.PodSandboxId
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 30*time.Second)
		defer cancel()
		_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		_, removed := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		if err = errors.Join(err, removed); err != nil {
			c.t.Error(err)
		}
	})
	return id, config
}

// create makes a container, with source bound to /x where it is not empty.
func (c *containerd) create(sandbox string, pod *runtimeapi.PodSandboxConfig, attempt uint32, source string, command ...string) string {
	c.t.Helper()
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: testImage},
		Command:  command,
		Labels:   map[string]string{labelPodUID: pod.Metadata.Uid, labelContainer: "app"},
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}
	if source != "" {
		config.Mounts = []*runtimeapi.Mount{{HostPath: source, ContainerPath: "/x"}}
	}
	response, err := c.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: pod})
	must(c.t, err)
	return response.ContainerId
}

func (c *containerd) start(id string) error {
	_, err := c.StartContainer(c.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// waitForExit waits until the container has ended.
func (c *containerd) waitForExit(id string) {
	c.t.Helper()
	for c.t.Context().Err() == nil {
		response, err := c.ContainerStatus(c.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		must(c.t, err)
		if response.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			return
		}
	}
}

// TestContainerd has a real runtime fail to start a container for a stale bind, and removes the record of that one
// alone.
func TestContainerd(t *testing.T) {
	c := startContainerd(t)
	sandbox, pod := c.sandbox("pod")
	other, otherPod := c.sandbox("other")
	hasRun := c.create(sandbox, pod, 0, "", "/busybox", "true")
	must(t, c.start(hasRun))
	c.waitForExit(hasRun)

	source, bind := filepath.Join(c.dir, "source"), filepath.Join(c.dir, "bind")
	must(t, os.WriteFile(source, nil, 0o600))
	must(t, os.WriteFile(bind, nil, 0o600))
	must(t, mount.Bind(source, bind))
	t.Cleanup(func() { _ = systest.UnmountPath(bind, true) })
	must(t, os.Remove(source))
	failed := c.create(sandbox, pod, 1, bind, "/busybox", "true")
	if err := c.start(failed); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Fatalf("start with a stale bind: %v, want the failure of kubernetes#68211", err)
	}
	runs := c.create(other, otherPod, 0, "")
	must(t, c.start(runs))

	client := &Client{Socket: func(context.Context) (string, error) { return c.socket(), nil }}
	records, err := client.Records(t.Context(), "pod", "app")
	must(t, err)
	if len(records) != 2 || records[0].ID != failed || !records[0].NeverStarted() || records[0].Reason != "StartError" || records[1].ID != hasRun || records[1].NeverStarted() {
		t.Fatalf("records = %+v, want %s, which never started, and %s, which has run", records, failed, hasRun)
	}
	for name, record := range map[string]Container{"has run": records[1], "runs": {ID: runs, PodUID: "other", Name: "app"}} {
		if err := client.Remove(t.Context(), record); !errors.Is(err, ErrNotRemovable) {
			t.Errorf("removing one that %s: %v, want ErrNotRemovable", name, err)
		}
	}
	must(t, client.Remove(t.Context(), Container{ID: failed, PodUID: "other", Name: "app"}))
	must(t, client.Remove(t.Context(), records[0]))
	must(t, client.Remove(t.Context(), records[0])) // gone already
	records, err = client.Records(t.Context(), "pod", "app")
	must(t, err)
	if len(records) != 1 || records[0].ID != hasRun {
		t.Errorf("records afterwards = %+v, want %s alone", records, hasRun)
	}
	if records, err = client.Records(t.Context(), "other", "app"); err != nil || len(records) != 1 {
		t.Errorf("records of the other pod = %+v, %v, want the one that runs", records, err)
	}
	c.checkSandboxes(client, sandbox)
}

// checkSandboxes ends the sandbox of pod, while that of other runs.
func (c *containerd) checkSandboxes(client *Client, ends string) {
	c.t.Helper()
	_, err := c.StopPodSandbox(c.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: ends})
	must(c.t, err)
	got, err := client.Sandboxes(c.t.Context())
	must(c.t, err)
	slices.SortFunc(got, func(a, b Sandbox) int { return strings.Compare(a.PodUID, b.PodUID) })
	want := []Sandbox{{"other", "default", "other-name", true}, {"pod", "default", "pod-name", false}}
	if !slices.Equal(got, want) {
		c.t.Errorf("sandboxes = %+v, want %+v", got, want)
	}
}
