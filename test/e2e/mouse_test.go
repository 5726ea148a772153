// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster && ui

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// mouse is a browser before the pages of kubectl kubediag ui.
type mouse struct {
	steps   io.Writer
	answers *bufio.Reader
}

// newMouse starts Debian's chromium.
func newMouse(t *testing.T) *mouse {
	t.Helper()
	name := filepath.Join(t.TempDir(), "mouse")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../ui", "-o", name, "./mouse").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &mouse{in, bufio.NewReader(out)}
}

// do does a step, and fails the test if it cannot be done.
func (m *mouse) do(t *testing.T, step string) {
	t.Helper()
	began := time.Now()
	if _, err := fmt.Fprintln(m.steps, step); err != nil {
		t.Fatal(err)
	}
	answer, err := m.answers.ReadString('\n')
	if err != nil || answer != "ok\n" {
		t.Fatalf("%s: %s%v", step, answer, err)
	}
	t.Logf("%s: %.1f s", step, time.Since(began).Seconds())
}

// inAlerts is the command for the page of a pod in the texts of the alerts.
var inAlerts = regexp.MustCompile(`kubectl kubediag (ui pod/\{\{ \.Labels\.target_namespace \}\}/\{\{ \.Labels\.target_pod \}\})\.`)

// servePages serves the pages by the command in an alert's text, and returns the address.
func (e *env) servePages(t *testing.T, namespace, pod string) string {
	t.Helper()
	rules, err := os.ReadFile("../../config/alerts/kubediag.yaml")
	must(t, err)
	command := inAlerts.FindSubmatch(rules)
	if command == nil {
		t.Fatal("no alert has the command")
	}
	line := strings.NewReplacer("{{ .Labels.target_namespace }}", namespace, "{{ .Labels.target_pod }}", pod).Replace(string(command[1]))
	cmd := e.plugin(t, append(strings.Fields(line), "--no-browser", "--lang=en")...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	opened, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return strings.TrimPrefix(strings.TrimSpace(opened), "Open ")
}

// TestHealsWithTheMouse: on a node with a kubelet, from the address that an alert's text leads to, a fault comes while the page is open, its
// plan is approved and carried out, and another one is planned and repaired, with the mouse alone.
func TestHealsWithTheMouse(t *testing.T) {
	e := start(t, withTheBug)
	e.link(t)
	e.Kubectl(t, strings.Replace(policyOfTest, "Automatic", "Approve", 1), "apply", "-f", "-")
	pod := e.deploy(t)
	m := newMouse(t)
	m.do(t, "open "+e.servePages(t, "default", pod.Name))
	m.do(t, "await No fault is known of default/"+pod.Name+".")

	e.breakSubPath(t, pod, "second content")
	for _, step := range []string{
		"await 1. StaleSubPath", "await broken here", `click nav a[href="/approve"]`, "await Plans that wait for approval: 1.",
		`click form[action^="/approve/"] button`, "await pod default/" + pod.Name + ": Healed", `click nav a[href="/"]`, "await No fault is known in all namespaces",
	} {
		m.do(t, step)
	}
	e.Wait(t, "the pod to run again", func(ctx context.Context) bool {
		after := e.podOf(ctx, "core2")
		return after != nil && after.UID == pod.UID && running(after)
	})

	e.Kubectl(t, "", "delete", "recoverypolicy", "stale-subpaths")
	e.makeStale(t, pod, "third content")
	for _, step := range []string{
		"await StaleSubPath", "click main tbody th a", "click dd a[href^=\"/pod/default/\"]", `click form[action^="/plan/"] button`, "await Carry out exactly this plan",
		`click form[action^="/repair/"] button`, "await pod default/" + pod.Name + ": Healed", `click nav a[href="/"]`, "await No fault is known in all namespaces",
	} {
		m.do(t, step)
	}
	for _, mount := range e.mounts(t) {
		if strings.Contains(mount.Point, string(pod.UID)) && mountinfo.Mount.Deleted(mount) {
			t.Errorf("the bind at %q is still stale", mount.Point)
		}
	}
}
