// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/orphan"
)

// ErrFaults is how a verb ends that has looked and found faults. What they are has been written by then.
var ErrFaults = errors.New("faults found")

// NewScanCommand makes the verb scan. It looks for kubelets in the process file system at proc; empty: /proc.
func NewScanCommand(proc string) *cobra.Command {
	o := scanOptions{nodeOptions: nodeOptions{proc: proc}}
	cmd := &cobra.Command{
		Use:   "scan",
		Short: "Find every broken mount of this node's pods",
		Long: "scan looks at the mounts of all pods of this node for the faults that kubediag knows. It asks the kubelet's\n" +
			"directories and the kernel, needs no API server, and changes nothing.\n\n" +
			"It looks in the mount namespace of the kubelet, which takes root. Where no kubelet runs, or it may not be looked\n" +
			"into, --kubelet-root has it look at that directory in the mount namespace of the shell.\n\n" +
			"Exit status: 0 no faults, 1 faults found, 2 could not look, or not everywhere.",
		Example: "  kubediag scan\n" +
			"  kubectl get pods -A -o json | kubediag scan --pods - -o json",
		Args: cobra.NoArgs,
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.pods, "pods", "", "file of pods in JSON or YAML (\"-\": standard input), for what only their specs tell:\n"+
		"sources that were moved away, and names")
	cmd.Flags().DurationVar(&o.orphanAge, "orphan-minimum-age", orphan.DefaultMinimumAge,
		"for how long nothing must have changed in a pod's directory before the\npod can be gone, 5m to 720h")
	out := addFormat(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := o.scan(cmd.Context(), cmd.InOrStdin())
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		if err = r.write(cmd.OutOrStdout(), *out); err != nil && !errors.Is(err, ErrFaults) {
			return fmt.Errorf("scan: %w", err)
		}
		return err
	}
	return cmd
}

// scanOptions are the flags of scan.
type scanOptions struct {
	nodeOptions
	pods      string
	orphanAge time.Duration
}

func (o scanOptions) validate() error {
	if err := o.nodeOptions.validate(); err != nil {
		return err
	}
	if err := orphan.CheckMinimumAge(o.orphanAge); err != nil {
		return fmt.Errorf("--orphan-minimum-age=%s: %w", o.orphanAge, err)
	}
	return nil
}

// scan looks at the node. An error means that it could not, and nothing is said about faults then.
func (o scanOptions) scan(ctx context.Context, stdin io.Reader) (*scanReport, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &scan{orphanAge: o.orphanAge}
	if o.pods != "" {
		var err error
		if s.specs, err = readPods(ctx, o.pods, stdin); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	var err error
	if s.node, err = o.node(ctx); err != nil {
		return nil, err
	}
	faults, err := s.run(ctx, kinds)
	if err != nil {
		return nil, err
	}
	s.name(ctx, faults)
	s.looked.Milliseconds = float64(time.Since(start).Microseconds()) / 1000
	return newReport(faults, s.looked), nil
}

// kind looks for faults of one kind, and writes down in s.looked what it has looked at.
type kind func(ctx context.Context, s *scan) ([]fault.Finding, error)

// kinds are all that is looked for.
var kinds = []kind{staleSubPaths, badSources, heldDevices, brokenVolumes, orphanedPods}

// scan is one pass over a node.
type scan struct {
	node      *kubelet.Node
	runtime   *boundedRuntime
	specs     podFile
	orphanAge time.Duration
	looked    looked
}

func (s *scan) run(ctx context.Context, kinds []kind) ([]fault.Finding, error) {
	s.runtime = newBoundedRuntime(s.node)
	s.looked.KubeletRoot, s.looked.KubeletPID = s.node.Root, s.node.PID
	if err := s.node.Do(ctx, s.countPods); err != nil {
		return nil, err
	}
	var all []fault.Finding
	for _, look := range kinds {
		found, err := look(ctx, s)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	s.looked.Denied = refused(s.looked.Denied)
	return all, nil
}

// countPods runs inside the kubelet's namespace. A root without a directory of pods is not that of a kubelet: a clean
// result from there would be a lie.
func (s *scan) countPods() error {
	entries, err := os.ReadDir(s.node.PodsDir())
	if err != nil {
		return fmt.Errorf("list pods of kubelet root %q: %w", s.node.Root, err)
	}
	s.looked.PodSpecs.Given = s.specs != nil
	for _, e := range entries {
		if s.specs.pod(e.Name()) != nil {
			s.looked.PodSpecs.Pods++
		}
	}
	return nil
}
