// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/install"
	"kubediag.org/kubediag/test/program"
)

const (
	moduleRoot       = "../.."
	volumeWalk       = moduleRoot + "/docs/walkthrough-volume"
	readVolume       = "kubectl exec deploy/trainer -- cat /data/state"
	volumeWalkPrefix = "volume-walkthrough-" // of the cluster's name
)

// TestVolumeWalkthrough types the commands of docs/walkthrough-volume.md as they stand there, from make cluster-up to make
// cluster-down, and checks the outcome that the page promises. Between the first block and the second it installs kubediag.
func TestVolumeWalkthrough(t *testing.T) {
	t.Parallel()
	commands := documented(t, volumeWalk+".md")
	if diff := cmp.Diff(commands, documented(t, volumeWalk+".zh-CN.md")); diff != "" {
		t.Errorf("the Chinese page has other commands (-English +Chinese):\n%s", diff)
	}
	images, plugin := install.Release(t)
	r := newReader(t, plugin)
	var reads []string
	for _, line := range commands {
		began := time.Now()
		switch {
		case strings.Contains(line, "kubectl kubediag faults"):
			r.await(t, line, func(out string, _ error) bool {
				return regexp.MustCompile(`(?m)^DisconnectedFUSE .* safe `).MatchString(out)
			})
		case strings.Contains(line, "kubectl kubediag run"):
			r.consent(t, line)
		case strings.Contains(line, "kubectl get diag"):
			r.follow(t, line, regexp.MustCompile(`(?m)^\S+ .*DisconnectedFUSE .*Healed`))
			r.await(t, readVolume, func(out string, _ error) bool { return out == "epoch 41\n" })
		case line == readVolume:
			reads = append(reads, r.mayFail(t, line))
		case strings.Contains(line, "kubectl get pods -l app=trainer "):
			if out := r.run(t, line); !regexp.MustCompile(`(?m)^trainer-\S+ +1/1 +Running +0 `).MatchString(out) {
				t.Errorf("%s\n%s", line, out)
			}
		case strings.HasPrefix(line, "export CONTAINERD_ADDRESS="):
			r.run(t, line)
			r.install(t, images)
		default:
			r.run(t, line)
		}
		t.Logf("%5.1f s  %s", time.Since(began).Seconds(), line)
	}
	dead := "cat: can't open '/data/state': Transport endpoint is not connected"
	if len(reads) != 2 || !strings.HasPrefix(reads[0], dead+"\n") || reads[1] != "epoch 41\n" {
		t.Errorf("the container reads %q", reads)
	}
	if page, err := os.ReadFile(volumeWalk + ".md"); err != nil || !strings.Contains(string(page), "```text\n"+dead+"\n```") {
		t.Errorf("the page shows another error than %q: %v", dead, err)
	}
}

// documented returns the commands of a page, without the comments behind them.
func documented(t *testing.T, file string) []string {
	t.Helper()
	page, err := os.ReadFile(file)
	must(t, err)
	var commands []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(block[1]) {
			command, _, _ := strings.Cut(line, "  #")
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	return commands
}

// reader types commands in a shell at the top of the module.
type reader struct {
	name string // of the cluster
	file string // with the shell's variables
}

// newReader makes a reader whose cluster does not outlive this process.
func newReader(t *testing.T, plugin string) *reader {
	t.Helper()
	dir := t.TempDir()
	r := &reader{name: volumeWalkPrefix + fmt.Sprint(os.Getpid()), file: filepath.Join(dir, "variables")}
	must(t, os.Symlink(plugin, filepath.Join(dir, "kubectl-kubediag")))
	must(t, os.WriteFile(r.file, []byte("PATH="+dir+":$PATH\n"), 0o600))
	down := r.shell(context.WithoutCancel(t.Context()), "cat; make cluster-down")
	down.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	hold, err := down.StdinPipe()
	must(t, err)
	must(t, down.Start())
	t.Cleanup(func() {
		hold.Close()
		_ = down.Wait() // the last command of the page has taken the cluster down
	})
	return r
}

// shell makes a command of a shell that has the variables of the ones before. It is no child of a make that runs this test.
func (r *reader) shell(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("set -e; . %s\n%s\nexport -p >%[1]s", r.file, line))
	cmd.Dir = moduleRoot
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") }),
		"CLUSTER_NAME="+r.name, "LANG=C.UTF-8", "NO_COLOR=1")
	return cmd
}

func (r *reader) run(t *testing.T, line string) string {
	t.Helper()
	out, err := r.shell(t.Context(), line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func (r *reader) mayFail(t *testing.T, line string) string {
	t.Helper()
	out, _ := r.shell(t.Context(), line).CombinedOutput()
	return string(out)
}

// await repeats a command until its output is as it should be.
func (r *reader) await(t *testing.T, line string, done func(out string, err error) bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		out, err := r.shell(t.Context(), line).CombinedOutput()
		if done(string(out), err) {
			return
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// consent runs a command on a terminal, and answers its question when it is asked.
func (r *reader) consent(t *testing.T, line string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "command")
	must(t, os.WriteFile(file, []byte(line), 0o600))
	cmd := r.shell(t.Context(), "script -qec 'bash "+file+"' /dev/null")
	out := &program.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	r.awaitText(t, cmd, out, regexp.MustCompile(`\[y/N`))
	_, err = io.WriteString(in, "y\n")
	must(t, err)
	if err := cmd.Wait(); err != nil || !strings.Contains(out.Text(), "✓ Healed in ") {
		t.Fatalf("%s: %v\n%s", line, err, out.Text())
	}
}

// follow runs a command that does not end until its output matches.
func (r *reader) follow(t *testing.T, line string, want *regexp.Regexp) {
	t.Helper()
	cmd := r.shell(t.Context(), line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := &program.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	defer func() { _, _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL), cmd.Wait() }()
	r.awaitText(t, cmd, out, want)
}

func (r *reader) awaitText(t *testing.T, cmd *exec.Cmd, out *program.Output, want *regexp.Regexp) {
	t.Helper()
	for began := time.Now(); !want.MatchString(out.Text()); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			_ = cmd.Process.Kill()
			t.Fatalf("%v does not say %q:\n%s", cmd.Args, want, out.Text())
		}
	}
}

// install installs kubediag as docs/install.md says, with a directory of this cluster for the agent.
func (r *reader) install(t *testing.T, images []string) {
	t.Helper()
	for _, file := range images {
		r.run(t, "ctr -n k8s.io images import "+file)
	}
	manifest := install.WithDataRoot(t, r.run(t, "kubectl kustomize config/default"), strings.TrimSpace(r.run(t, `echo "$(dirname "$KUBECONFIG")/agent"`)))
	apply := r.shell(t.Context(), "kubectl apply -f -")
	apply.Stdin = bytes.NewBufferString(manifest)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply config/default: %v\n%s", err, out)
	}
	r.run(t, "kubectl rollout status -n kubediag deploy/kubediag-manager && kubectl rollout status -n kubediag ds/kubediag-agent")
}
