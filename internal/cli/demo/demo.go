// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package demo is the verb demo of the kubediag command: it breaks a real mount, and has the code of the agent find and
// repair it. It touches nothing outside of a mount namespace of its own.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/config/samples"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

// insideVariable is set if the demo runs in namespaces of its own already.
const insideVariable = "KUBEDIAG_DEMO_INSIDE"

// errNoNamespace says what the demo needs.
var errNoNamespace = errors.New("a mount namespace of its own is not allowed here: run it as root with CAP_SYS_ADMIN, " +
	"or where users may make user namespaces (sysctls user.max_user_namespaces and kernel.unprivileged_userns_clone)")

// NewCommand makes the verb demo.
func NewCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Break a real mount in a namespace of its own, find out why, heal it, prove it",
		Long: "demo causes the failure of kubernetes#68211 with real mounts, in a mount namespace and on a tmpfs of its own,\n" +
			"and runs the Operations of the walkthrough against it, with the code that the agent runs on a node. Only the\n" +
			"kubelet is played by a stand-in. It takes a few seconds and leaves nothing behind.",
		Args: verb.NoArgs,
		RunE: verb.Interruptible(func(cmd *cobra.Command, _ []string) error {
			if os.Getenv(insideVariable) != "" {
				return demoInside(cmd.Context(), cmd.OutOrStdout())
			}
			return demoOutside(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
}

// demoOutside runs the demo as a child in namespaces of its own. Everything that the child mounts and writes goes with
// its mount namespace, however it ends.
func demoOutside(ctx context.Context, stdout, stderr io.Writer) error {
	if _, err := sys.Procfs(); err != nil {
		return fmt.Errorf("start itself in a namespace of its own: %w: %s", err, verb.MountProc)
	}
	var err error
	for _, clone := range []sys.Clone{{User: false}, {User: true}} {
		child := exec.CommandContext(ctx, "/proc/self/exe", "demo")
		child.Env = append(os.Environ(), insideVariable+"=1")
		child.Stdout, child.Stderr = stdout, stderr
		child.SysProcAttr = sys.PrivateMounts(clone)
		child.SysProcAttr.Setpgid = true // Ctrl-C reaches us alone, who end the child and say so once
		err = child.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil, errors.As(err, &exit):
			return err
		}
	}
	return fmt.Errorf("%w: %w", errNoNamespace, err)
}

// demoInside is the demo proper.
func demoInside(ctx context.Context, out io.Writer) error {
	if err := mount.SetPropagation("/", mount.Private, true); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	dir := os.TempDir()
	if err := mount.Tmpfs(dir, 64<<20); err != nil {
		return fmt.Errorf("mount a tmpfs for the demo: %w", err)
	}
	p := &demoRun{out: out, dir: dir}
	return p.runDemo(ctx)
}

// The content of the ConfigMap before and after its update.
const (
	oldContent = "rotate 7, the old content"
	newContent = "rotate 14, the new content"
)

// demoRun is one run of the demo, in a mount namespace of its own and below a directory of its own.
type demoRun struct {
	pipeline.Discard

	out io.Writer
	dir string

	node  *demoKubelet
	store store.Memory
}

// printText prints a line, and leaves the directory of the demo out of it.
func (g *demoRun) printText(format string, args ...any) {
	fmt.Fprintln(g.out, strings.ReplaceAll(fmt.Sprintf(format, args...), g.dir+"/", "/"))
}

func (g *demoRun) runDemo(ctx context.Context) error {
	if err := g.breakSubPath(ctx); err != nil {
		return fmt.Errorf("cause the fault: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go g.node.syncLoop(ctx)
	diagnosis, err := g.diagnosePod(ctx)
	if err != nil {
		return err
	}
	if diagnosis.Status.Phase != v1.DiagnosisSucceeded {
		return errors.Join(fmt.Errorf("the Diagnosis ended with phase %q", diagnosis.Status.Phase), g.printDiagnosis(diagnosis))
	}
	if err := g.checkContainer(); err != nil {
		return err
	}
	return g.printDiagnosis(diagnosis)
}

// breakSubPath plays the life of the pod up to where its container cannot start again.
func (g *demoRun) breakSubPath(ctx context.Context) (err error) {
	g.printText("kubernetes#68211, with real mounts in a mount namespace of its own. The kubelet is played by a stand-in.\n")
	if g.node, err = newDemoKubelet(g.dir, oldContent+"\n"); err != nil {
		return err
	}
	if err := g.node.startContainer(); err != nil {
		return err
	}
	g.printText("1. Pod %s/%s runs. Its container %s sees the item %s of a ConfigMap by subPath.", podNamespace, podName, containerName, subPath)
	g.printText("   the container reads:  %s", g.node.contentLine())
	if err := g.node.updateVolume(newContent + "\n"); err != nil {
		return err
	}
	state, err := mount.Inspect(g.node.point)
	if err != nil {
		return err
	}
	g.printText("2. The ConfigMap is updated. The kubelet puts the new content in place and deletes the old, which is still bound:")
	g.printText("   %s on %s, %d links left", state.Root, state.Point, state.Nlink)
	if err := g.node.stopContainer(ctx); err != nil {
		return err
	}
	err = g.node.startContainer()
	if !errors.Is(err, sys.ENOENT) {
		return fmt.Errorf("the container started: %w", err)
	}
	g.printText("3. The container ends. Its next start fails, and so would every one after it:")
	g.printText("   %s", err)
	return nil
}

// diagnosePod runs the manifests of the walkthrough, with the pipeline and the processors of the agent.
func (g *demoRun) diagnosePod(ctx context.Context) (*v1.Diagnosis, error) {
	for _, manifest := range []string{operations.SubPathRemount, samples.Diagnosis} {
		if err := g.store.Load(strings.NewReader(manifest)); err != nil {
			return nil, err
		}
	}
	node, err := kubelet.Local(g.node.root)
	if err != nil {
		return nil, err
	}
	registry, err := registry.New(registry.Deps{Pods: g.node, Kubelet: node, Runtime: g.node})
	if err != nil {
		return nil, err
	}
	data := filepath.Join(g.dir, "kubediag")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	e, err := pipeline.New(pipeline.Options{Node: nodeName, DataRoot: data, Registry: registry, Store: &g.store, Observer: g})
	if err != nil {
		return nil, err
	}
	d, err := g.store.Diagnosis("default", "subpath-remount-diagnosis")
	if err != nil {
		return nil, err
	}
	g.printText("4. Diagnosis %s runs OperationSet %s:", d.Name, d.Spec.OperationSet)
	g.store.Saved = g.printPlan
	return e.Run(ctx, d)
}

// printPlan prints the plan of a recoverer when it is stored, before anything of it is done.
func (g *demoRun) printPlan(d *v1.Diagnosis) {
	for _, run := range d.Status.Operations {
		for _, a := range run.Actions {
			if a.Phase != v1.ActionPlanned || run.Phase != v1.OperationRunning {
				continue
			}
			g.printText("   plan    %s %s", a.Kind, a.Target)
			g.printText("           safe: %s", a.Safety)
			g.printText("           lost: %s", a.Loss)
		}
	}
}

// OperationEnded prints how an operation went.
func (g *demoRun) OperationEnded(_ *v1.Diagnosis, run v1.OperationRun) {
	took := run.CompletionTime.Sub(run.StartTime.Time).Milliseconds()
	g.printText("   %-9s %s, %d ms %s", run.Phase, run.Operation, took, run.Message)
}

// ActionEnded prints what became of one action of a plan.
func (g *demoRun) ActionEnded(_ *v1.Diagnosis, _ string, a pipeline.ActionEnd) {
	g.printText("   %-7s %s %s %s", strings.ToLower(string(a.Phase)), a.Kind, a.Target, a.Message)
}

// checkContainer looks at the container, which has started again.
func (g *demoRun) checkContainer() error {
	content := g.node.contentLine()
	g.printText("5. The container runs again, with no stale mount in its way.")
	g.printText("   the container reads:  %s\n", content)
	if content != newContent {
		return fmt.Errorf("the container reads %q, not the new content", content)
	}
	return nil
}

func (g *demoRun) printDiagnosis(d *v1.Diagnosis) error {
	text, err := store.YAML(d)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(g.out, "---\n%s", text)
	return err
}
