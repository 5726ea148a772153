// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/bounded"
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
			"Interrupted (Ctrl-C), it prints what it has found so far.\n\n" +
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
	choice, err := o.node(ctx)
	if err != nil {
		return nil, err
	}
	s.node, s.looked.Notes = choice.Node, notes(o.root, choice)
	faults, err := s.run(ctx, kinds)
	if err != nil {
		return nil, err
	}
	if !s.looked.Interrupted {
		s.name(ctx, faults)
	}
	s.conclude()
	s.looked.Milliseconds = float64(time.Since(start).Microseconds()) / 1000
	r := newReport(faults, s.looked)
	r.blind = shortSighted()
	return r, nil
}

// kind looks for faults of one kind, and writes down in s.looked what it has looked at.
type kind struct {
	// what it looks for, as people say it.
	what string
	find func(ctx context.Context, s *scan) ([]fault.Finding, error)
}

// kinds are all that is looked for.
var kinds = []kind{
	{"subPath binds", staleSubPaths}, {"sources of hostPath volumes", badSources}, {"devices", heldDevices}, {"volumes", brokenVolumes}, {"directories of pods that are gone", orphanedPods},
}

// scan is one pass over a node.
type scan struct {
	node      *kubelet.Node
	runtime   *boundedRuntime
	specs     podFile
	orphanAge time.Duration
	looked    looked
}

// run looks for one kind after the other. Where ctx ends, what was found by then counts, and the rest was not looked for.
func (s *scan) run(ctx context.Context, kinds []kind) ([]fault.Finding, error) {
	s.runtime = newBoundedRuntime(s.node)
	s.looked.KubeletRoot, s.looked.KubeletPID, s.looked.KubeletRenews = s.node.Root, s.node.PID, renewsUnknown
	ns, err := s.node.Namespace()
	if err != nil {
		return nil, err
	}
	s.looked.MountNamespace = ns.Inode
	_, err = s.step(ctx, func(ctx context.Context, s *scan) ([]fault.Finding, error) { return nil, s.node.Do(ctx, s.countPods) })
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	var all []fault.Finding
	for i, kind := range kinds {
		found, err := s.step(ctx, kind.find)
		switch {
		case err == nil:
			all = append(all, found...)
		case ctx.Err() != nil:
			s.interrupt(kinds[i:])
			return all, nil //nolint:nilerr // what was found counts, and the report says that it was interrupted
		default:
			return nil, err
		}
	}
	return all, nil
}

// step does one step on a copy of s, which counts once it is done: where ctx ends first, nobody waits for it.
func (s *scan) step(ctx context.Context, find func(context.Context, *scan) ([]fault.Finding, error)) ([]fault.Finding, error) {
	own := *s
	own.looked.Unproven, own.looked.NotLookedAt = slices.Clip(own.looked.Unproven), slices.Clip(own.looked.NotLookedAt)
	faults, err := bounded.Do(ctx, &bounded.Calls{}, bounded.Call{}, func() ([]fault.Finding, error) { return find(ctx, &own) })
	switch {
	case errors.Is(err, bounded.ErrLeft):
		return nil, ctx.Err()
	case err == nil:
		s.looked = own.looked
	}
	return faults, err
}

// interrupt notes what was not looked for.
func (s *scan) interrupt(left []kind) {
	s.looked.Interrupted = true
	var what []string
	for _, kind := range left {
		what = append(what, kind.what)
	}
	s.looked.NotLookedAt = append(s.looked.NotLookedAt, gap{strings.Join(what, ", "), "the scan was interrupted", "run it again"})
}

// conclude adds what else was not looked at.
func (s *scan) conclude() {
	l := &s.looked
	l.Denied = refused(l.Denied)
	l.NotLookedAt = append(l.NotLookedAt, sightGaps(l.Denied, l.Partial)...)
	l.NotLookedAt = append(l.NotLookedAt, s.runtime.gaps()...)
}

// countPods runs inside the kubelet's namespace. A root without a directory of pods is not that of a kubelet: a clean
// result from there would be a lie.
func (s *scan) countPods() error {
	entries, err := os.ReadDir(s.node.PodsDir())
	if err != nil {
		return fmt.Errorf("list pods of kubelet root %q in the mount namespace of %s: %w", s.node.Root, whose(s.node.PID), err)
	}
	s.looked.PodSpecs.Given = s.specs != nil
	for _, e := range entries {
		if s.specs.pod(e.Name()) != nil {
			s.looked.PodSpecs.Pods++
		}
	}
	return nil
}

// whose is the mount namespace that is looked at, as people say it.
func whose(kubelet int) string {
	if kubelet == 0 {
		return "this shell"
	}
	return fmt.Sprintf("kubelet %d", kubelet)
}
