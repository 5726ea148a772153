// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/render"
)

// Bounds of probe's --timeout.
const (
	minProbeTimeout = 100 * time.Millisecond
	maxProbeTimeout = 5 * time.Minute
)

// NewProbeCommand makes the verb probe.
func NewProbeCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "probe PATH",
		Short: "Test a path without hanging",
		Long: "probe asks the file system at PATH whether it answers, and whether a container could be started with it. It does\n" +
			"not hang if the file system does: another process asks, and probe gives up on it after --timeout. It changes\n" +
			"nothing, and looks at PATH alone, not at the files below it.\n\n" +
			"It looks in the mount namespace of the shell, which takes root. PATH need not be a mount point; then the mount\n" +
			"that it lies on is asked first, and PATH after that.\n\n" +
			"Exit status: 0 alive, 1 a fault, 2 could not look, or not try to bind it.",
		Example: "  kubediag probe /var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/NAME/mount\n" +
			"  kubediag probe --timeout 10s -o json /mnt/shared",
		Args: verb.Takes("PATH", 1),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", asking.DefaultDeadline,
		fmt.Sprintf("how long the file system may take to answer, %dms to %.0fm", minProbeTimeout.Milliseconds(), maxProbeTimeout.Minutes()))
	out := addFormat(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		report, err := probePath(cmd.Context(), args[0], timeout)
		if err != nil {
			if searches.IsDenied(err) && !sys.LooksAnywhere() {
				err = fmt.Errorf("%w: %s", err, asRootRemedy)
			}
			return fmt.Errorf("%q: %w", args[0], err)
		}
		if err := render.Write(cmd.OutOrStdout(), *out, report, report.reportText); err != nil {
			return err
		}
		if report.Code != "" {
			return verb.ErrFaults
		}
		if report.bindUntried {
			return fmt.Errorf("%q: it answers, but could not be bound in a trial, so that it may be a %s: %s", args[0],
				report.codeIfUnbindable, asRootRemedy)
		}
		return nil
	})
	return cmd
}

// probeReport is the report of probe, as it is in JSON.
type probeReport struct {
	SchemaVersion int    `json:"schemaVersion"`
	Path          string `json:"path"`
	// Code is empty if the path is healthy.
	Code fault.Code `json:"code"`
	// Evidence is never null.
	Evidence     []string  `json:"evidence"`
	Mount        scanMount `json:"mount"`
	Milliseconds float64   `json:"milliseconds"`

	program          programName
	bindUntried      bool       // it is alive, and whether it can be bound is not known
	codeIfUnbindable fault.Code // what it would be that it cannot
}

// probePath asks. An error means that nothing can be said.
func probePath(ctx context.Context, name string, timeout time.Duration) (*probeReport, error) {
	if timeout < minProbeTimeout || timeout > maxProbeTimeout {
		return nil, fmt.Errorf("--timeout=%s: must be between %s and %s", timeout, minProbeTimeout, maxProbeTimeout)
	}
	if name == "" {
		return nil, errors.New("path is empty")
	}
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	// Links are followed as far as they lie on file systems that cannot hang. Beyond that a child process asks, and never this process.
	fd, name, err := sys.Walk{Check: mountns.View{}.NotHanging}.Resolve(name)
	fd.Close()
	if err != nil && !errors.Is(err, mountns.ErrMayBlock) {
		return nil, fmt.Errorf("look up %q: %w", name, err)
	}
	table, err := mountns.Table(0)
	if err != nil {
		return nil, err
	}
	mount, ok := table.On(name)
	if !ok {
		return nil, errors.New("no mount of this mount namespace has it")
	}
	below := strings.Trim(strings.TrimPrefix(name, mount.Point), "/")
	start := time.Now()
	prober := asking.Prober{Deadline: timeout}
	answers, err := prober.Ask(ctx, []asking.Target{{Point: mount.Point, Below: below, Bind: true}})
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	verdict := volume.JudgeAnswer(answers[0], mount)
	code, why := verdict.Code, verdict.Reason()
	if verdict.UnknownReason != "" || below != "" && answers[0].State == asking.Missing {
		return nil, errors.New(cmp.Or(strings.Join(answers[0].Evidence, "; "), strings.ToLower(string(answers[0].State))))
	}
	report := &probeReport{
		SchemaVersion: schemaVersion, Path: name, program: thisProgram(), Code: code, Evidence: append([]string{}, answers[0].Evidence...),
		Mount:        newScanMount(faults.MountOf(mountns.Mount{Mount: mount, Unique: answers[0].ID.UniqueID})),
		Milliseconds: float64(took.Microseconds()) / 1000,
		bindUntried:  code == "" && bindUntried(answers[0]), codeIfUnbindable: fault.DeletedVolumeSource,
	}
	if below == "" {
		report.Code, why, report.codeIfUnbindable, err = judgeAsSubPath(ctx, &prober, mount.Point, code, why)
		if err != nil {
			return nil, err
		}
	}
	report.bindUntried = report.bindUntried && report.Code == ""
	if why != "" {
		report.Evidence = append([]string{why}, report.Evidence...)
	}
	return report, nil
}

// judgeAsSubPath names a fault of the mount at point as scan does, if that is the place of a subPath bind. The source
// of such a bind is a file or directory in a volume, and not a volume. suspected is how it would be called that it
// cannot be bound. An error means that the bind cannot be judged.
func judgeAsSubPath(ctx context.Context, prober *asking.Prober, point string, code fault.Code, why string) (fault.Code, string, fault.Code, error) {
	n, ok := kubelet.NodeOfSubPath(point)
	if !ok || code != "" && code != fault.DeletedVolumeSource && code != fault.StaleFileHandle {
		return code, why, fault.DeletedVolumeSource, nil
	}
	asked, err := subpath.Ask(ctx, prober, n, nil, []string{point})
	if err != nil {
		return "", "", "", err
	}
	b, there, err := subpath.InspectBind(n, nil, point, asked)
	switch {
	case err != nil:
		return "", "", "", err
	case !there:
		return "", "", "", errors.New("it is not mounted any more")
	case b.Verdict == subpath.Unproven:
		return "", "", "", errors.New(b.Reason)
	case b.Code() != "":
		return b.Code(), b.Reason, fault.StaleSubPath, nil
	case code == fault.DeletedVolumeSource && b.Verdict != subpath.OfVolume:
		return fault.StaleSubPath, why, fault.StaleSubPath, nil
	}
	return code, why, fault.StaleSubPath, nil
}

// reportText is for people.
func (r *probeReport) reportText(s terminal.Screen) string {
	p := &render.Page{Screen: s}
	entry, known := fault.Known().Lookup(r.Code)
	label := "why"
	switch {
	case known:
		p.Line(0, "%s (%s): %s", r.Code, entry.Severity, entry.Title)
	case r.bindUntried:
		p.Line(0, "Alive, but whether a container could be started with it is not known")
	default:
		p.Line(0, "Alive")
	}
	p.Row(2, "path", r.Path)
	p.Row(2, "mount", fmt.Sprintf("%s, %s, device %s, root %s", r.Mount.Point, r.Mount.FSType, r.Mount.Device, r.Mount.Root))
	if r.Code == "" {
		label = "note"
	}
	for _, e := range r.Evidence {
		p.Row(2, label, e)
		label = ""
	}
	if known {
		addRemedy(p, entry, r.program)
	}
	p.Line(0, "Took %s.", render.Milliseconds(r.Milliseconds))
	return p.String()
}
