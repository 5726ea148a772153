// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package demo is the verb demo of the kubediag command: it breaks two real mounts, and has the code of the agent find and
// repair them. It touches nothing outside of a mount namespace of its own.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/store"
)

// roleVariable is set in the processes that the demo starts: it is the part that such a process plays.
const roleVariable = "KUBEDIAG_DEMO_ROLE"

// Roles of processes.
const (
	roleInside    = "inside"    // the demo proper, in namespaces of its own
	roleDaemon    = "daemon"    // serves a FUSE file system
	roleContainer = "container" // has a volume in a mount namespace of its own
)

// noProcStatus is the exit status of a child that may not mount /proc for its PID namespace.
const noProcStatus = 77

// errNoNamespace says what the demo needs.
var errNoNamespace = errors.New("a mount namespace of its own is not allowed here: run it as root with CAP_SYS_ADMIN, " +
	"or where users may make user namespaces (sysctls user.max_user_namespaces and kernel.unprivileged_userns_clone)")

// storyFormat has the demo write for people.
const storyFormat verb.Format = "story"

// NewCommand makes the verb demo.
func NewCommand() *cobra.Command {
	output := storyFormat
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Break two real mounts in a namespace of its own, find out why, heal them, prove it",
		Long: "demo plays two acts with real mounts, in a mount namespace and on a tmpfs of its own. In the first, a ConfigMap\n" +
			"changes under a subPath (kubernetes#68211). In the second, the daemon of a FUSE volume is killed under a running\n" +
			"container. The code that the agent runs on a node diagnoses and repairs both. A stand-in plays the kubelet, the\n" +
			"container runtime and the CSI driver. It takes a few seconds and leaves nothing behind.",
		Args: cobra.ArbitraryArgs,
		RunE: verb.Interruptible(func(cmd *cobra.Command, args []string) error {
			role := os.Getenv(roleVariable)
			if begin := map[string]func([]string) error{roleDaemon: serveVolume, roleContainer: beContainer}[role]; begin != nil {
				if err := begin(args); err != nil {
					return fmt.Errorf("play the %s: %w", role, err)
				}
				if _, err := os.Stdout.WriteString(readyLine); err != nil {
					return err
				}
				_, err := io.Copy(io.Discard, os.Stdin) // until the demo ends
				return err
			}
			if err := verb.NoArgs(cmd, args); err != nil {
				return err
			}
			if role == roleInside {
				return demoInside(cmd.Context(), cmd.OutOrStdout(), output)
			}
			return demoOutside(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), output)
		}),
	}
	verb.AddFormat(cmd, &output, "what to write: the story, or both Diagnoses as yaml", `must be "story" or "yaml"`, storyFormat, verb.YAML)
	return cmd
}

// demoOutside runs the demo as a child in namespaces of its own. Everything that the child mounts and writes goes with
// its mount namespace, however it ends.
func demoOutside(ctx context.Context, stdout, stderr io.Writer, output verb.Format) error {
	if _, err := sys.Procfs(); err != nil {
		return fmt.Errorf("start itself in a namespace of its own: %w: %s", err, verb.MountProc)
	}
	var err error
	for _, clone := range []sys.Clone{{Processes: true}, {}, {User: true, Processes: true}, {User: true}} {
		child := exec.CommandContext(ctx, "/proc/self/exe", "demo", "-o", string(output))
		child.Args[0] = os.Args[0] // for the lines to paste
		child.Env = append(os.Environ(), roleVariable+"="+roleInside)
		child.Stdout, child.Stderr = stdout, stderr
		child.SysProcAttr = sys.PrivateMounts(clone)
		child.SysProcAttr.Setpgid = true // Ctrl-C reaches us alone, who end the child and say so once
		err = child.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &exit) && exit.ExitCode() == noProcStatus:
			continue
		case ctx.Err() != nil, errors.As(err, &exit):
			return err
		}
	}
	return fmt.Errorf("%w: %w", errNoNamespace, err)
}

// demoInside is the demo proper. In a PID namespace of its own, processes of the machine are not mistaken for the demo's.
func demoInside(ctx context.Context, out io.Writer, output verb.Format) error {
	if err := mount.SetPropagation("/", mount.Private, true); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if os.Getpid() == 1 && sys.NewMount("proc", "/proc", "proc", "") != nil {
		os.Exit(noProcStatus)
	}
	dir := os.TempDir()
	if err := mount.Tmpfs(dir, 64<<20); err != nil {
		return fmt.Errorf("mount a tmpfs for the demo: %w", err)
	}
	s := &story{out: out, screen: terminal.New(out, os.Getenv), dir: dir}
	if output == verb.YAML {
		s.out = io.Discard
	}
	acts := []func(context.Context, *story) (*v1.Diagnosis, error){subPathAct, fuseAct}
	var diagnoses []*v1.Diagnosis
	for _, act := range acts {
		diagnosis, err := act(ctx, s)
		if err != nil {
			return err
		}
		if diagnosis != nil { // nil: the act cannot be shown here
			diagnoses = append(diagnoses, diagnosis)
		}
	}
	program := "kubediag"
	if strings.Contains(os.Args[0], "/") {
		program = fault.Quote(os.Args[0])
	}
	summary := "Two mounts of pods broke; kubediag found out why, healed both, and proved it."
	if len(diagnoses) < len(acts) {
		summary = "A mount of a pod broke; kubediag found out why, healed it, and proved it."
	}
	s.line(summary)
	s.line("Real mounts, and nothing is left. Next: sudo " + program + " scan")
	if output != verb.YAML {
		return nil
	}
	return printDiagnoses(out, diagnoses...)
}

func printDiagnoses(out io.Writer, all ...*v1.Diagnosis) error {
	var b strings.Builder
	for _, d := range all {
		text, err := store.YAML(d)
		if err != nil {
			return err
		}
		b.WriteString("---\n" + string(text))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
