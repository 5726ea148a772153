// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// NewBundleCommand makes the verb bundle. It looks for kubelets in the process file system at proc; empty: /proc.
func NewBundleCommand(proc string) *cobra.Command {
	o := bundleOptions{scan: scanOptions{nodeOptions: nodeOptions{proc: proc}}}
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Collect evidence into one file for a ticket",
		Long: "bundle scans the node and writes one file (tar.gz): the result, what the node has answered, the mount tables of the\n" +
			"kubelet and of the mount namespaces that hold something, block devices, log lines about mounts, names of pods,\n" +
			"and what this kernel can do. kubediag scan --from FILE reaches the same findings from it on any machine.\n\n" +
			"Of the pods of --pods it has names, labels, volumes, mounts and states, and with --whole-pods all but the values of\n" +
			"variables, arguments and headers. Values that look like credentials are taken out. The manifest has the SHA-256 of each entry, and says what was left out and why.\n" +
			"The file has mode 0600. It changes nothing on the node.\n\n" +
			"Exit status: 0 written, with or without faults in it; 2 not written, or the scan failed.",
		Example: "  kubediag bundle\n" +
			"  kubectl get pods -A -o json | kubediag bundle --pods - -o ticket.tar.gz\n" +
			"  journalctl -u kubelet --since -1d | kubediag bundle --log -\n" +
			"  kubediag scan --from ticket.tar.gz",
		Args: verb.NoArgs,
	}
	f := cmd.Flags()
	o.scan.nodeOptions.addFlags(f)
	f.StringVarP(&o.file, "output", "o", "", "file to write, \"-\": standard output (default kubediag-NODE-TIME.tar.gz in this directory)")
	f.BoolVar(&o.force, "force", false, "replace a file that is there")
	f.StringVar(&o.scan.pods, "pods", "", "file of pods in JSON or YAML (\"-\": standard input), as for kubediag scan")
	f.BoolVar(&o.whole, "whole-pods", false, "have variables, arguments and annotations of the pods of --pods, without their values")
	f.StringVar(&o.log, "log", "", "file with lines of the kubelet's log (\"-\": standard input)\n(default: /var/log/kubelet.log, messages or syslog of the kubelet)")
	f.DurationVar(&o.scan.orphanAge, "orphan-minimum-age", orphan.DefaultMinimumAge, "as for kubediag scan")
	if err := errors.Join(cmd.MarkFlagFilename("output", "gz"), cmd.MarkFlagFilename("pods", "json", "yaml"), cmd.MarkFlagFilename("log")); err != nil {
		panic(err) // a flag is not there
	}
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, _ []string) error { return o.runBundle(cmd) })
	return cmd
}

// bundleOptions are the flags of bundle.
type bundleOptions struct {
	scan  scanOptions
	file  string
	force bool
	log   string
	whole bool
}

// runBundle scans, collects and writes.
func (o *bundleOptions) runBundle(cmd *cobra.Command) error {
	if err := o.scan.validateSource(); err != nil {
		return err
	}
	if o.scan.pods == "-" && o.log == "-" {
		return errors.New("--pods=- cannot be with --log=-: standard input is read once")
	}
	if o.whole && o.scan.pods == "" {
		return errors.New("--whole-pods: needs --pods")
	}
	ctx := cmd.Context()
	if o.file == "" {
		o.file = bundle.FileName(machineName(), time.Now())
	}
	if o.file != "-" { // before the work, and again when it is written
		if err := bundle.Check(o.file, o.force); err != nil {
			return err
		}
	}
	content, failed, err := o.collectBundle(ctx, cmd.InOrStdin())
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	if o.file == "-" {
		return errors.Join(content.Write(cmd.OutOrStdout()), failed)
	}
	size, err := content.Create(o.file, o.force)
	if err != nil {
		return err
	}
	return errors.Join(verb.Write(cmd.OutOrStdout(), describeBundle(content, o.file, size)), failed)
}

// describeBundle lists the contents of the file for people, with the entries that were left out.
func describeBundle(b *bundle.Bundle, name string, size int64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Wrote %s: %s, %d KiB.\n", printable.Quoted(name), verb.Plural(len(b.Manifest.Entries), "entry", "entries"), (size+1023)>>10)
	for _, out := range b.Manifest.LeftOut {
		fmt.Fprintf(&text, "Left out: %s: %s.\n", printable.Quoted(out.What), printable.Quoted(out.Why))
	}
	fmt.Fprintf(&text, "Read it with: kubediag scan --from %s\n", fault.Quote(name))
	return text.String()
}

// collectBundle scans and puts everything together. failed is why the scan failed; then the bundle has the rest.
func (o *bundleOptions) collectBundle(ctx context.Context, stdin io.Reader) (b *bundle.Bundle, failed, err error) {
	at, err := o.scan.newSite(ctx, stdin)
	if err != nil {
		return nil, nil, err
	}
	scan := o.scan.newScan(at)
	recorder := &nodeRecorder{recorded: nodeRecording{evidence: map[string]any{}}}
	recorder.recorded.node.Notes = scan.looked.Notes
	if err := scan.useNode(recorder); err != nil {
		return nil, nil, err
	}
	c := &bundleCollection{scan: scan, Bundle: &bundle.Bundle{Manifest: bundle.Manifest{
		Program: version.String(), Node: printable.Line(machineName()), Time: time.Now().UTC().Truncate(time.Second),
	}}}
	report, err := scan.newScanReport(ctx, o.scan)
	if err != nil {
		failed = fmt.Errorf("the scan failed: %w", err)
		c.Omit("scan.json and scan.txt", err.Error())
	} else {
		report.removeEffects() // it is read on another machine
		c.addJSON("scan.json", "result of the scan", report)
		view := scanView{report: report, program: thisProgram(), verbose: true, from: "-"}
		view.Width = reportWidth
		c.addText("scan.txt", "result of the scan, for people", view.reportText())
	}
	has := recorder.finish(ctx, scan)
	c.addEvidence(has)
	c.addPods(scan.specs, has.node, o.whole)
	c.addNode(ctx, has)
	c.addLogs(ctx, o.log, stdin)
	return c.Bundle, failed, c.failed
}

// reportWidth is for how many columns the report in a bundle is written.
const reportWidth = 120
