// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// insideVariable is set if the demo runs in namespaces of its own already.
const insideVariable = "KUBEDIAG_DEMO_INSIDE"

// errNoNamespace says what the demo needs.
var errNoNamespace = errors.New("a mount namespace of its own is not allowed here: run it as root with CAP_SYS_ADMIN, " +
	"or where users may make user namespaces (sysctls user.max_user_namespaces and kernel.unprivileged_userns_clone)")

// NewDemoCommand makes the verb demo.
func NewDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Break a real mount in a namespace of its own, find out why, heal it, prove it",
		Long: "demo causes the failure of kubernetes#68211 with real mounts, in a mount namespace and on a tmpfs of its own,\n" +
			"and runs the Operations of the walkthrough against it, with the code that the agent runs on a node. Only the\n" +
			"kubelet is played by a stand-in. It takes a few seconds and leaves nothing behind.",
		Args: verb.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getenv(insideVariable) != "" {
				return demoInside(cmd.Context(), cmd.OutOrStdout())
			}
			return demoOutside(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// demoOutside runs the demo as a child in namespaces of its own. Everything that the child mounts and writes goes with
// its mount namespace, however it ends.
func demoOutside(ctx context.Context, stdout, stderr io.Writer) error {
	if _, err := sys.Procfs(); err != nil {
		return fmt.Errorf("demo: start itself in a namespace of its own: %w: %s", err, mountProc)
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
		case ctx.Err() != nil:
			return fmt.Errorf("demo: %w", interrupted(ctx, err))
		case errors.As(err, &exit):
			return fmt.Errorf("demo: %w", err)
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
	p := &play{out: out, dir: dir}
	return p.run(ctx)
}
