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
	"sync"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/ui"
)

// NewScanCommand makes the verb scan. It looks for kubelets in the process file system at proc; empty: /proc.
func NewScanCommand(proc string) *cobra.Command {
	options := scanOptions{nodeOptions: nodeOptions{proc: proc}}
	cmd := &cobra.Command{
		Use:   "scan",
		Short: "Find every broken mount of this node's pods",
		Long: "scan looks at the mounts of all pods of this node for the faults that kubediag knows. It asks the kubelet's\n" +
			"directories and the kernel, needs no API server, and changes nothing. First it prints the verdict, then a table in\n" +
			"which faults of one cause share a row and the worst come first, then commands to type, and what it could not see.\n\n" +
			"HURTS is when a fault hurts: now, at the next start of a container, when a device is detached, or only when the\n" +
			"kubelet cleans up. HEAL is what repairs it: kubediag with nothing lost (safe), the volume's driver, or a person.\n\n" +
			"It looks in the mount namespace of the kubelet, which takes root. If no kubelet runs, it says so and looks at\n" +
			"the default root directory. --kubelet-root has it look at another one in the mount namespace of the shell.\n\n" +
			"--from looks into a bundle that was made on any node (kubediag bundle): its evidence is judged again here.\n\n" +
			"Interrupted (Ctrl-C), it prints what it has found so far.\n\n" +
			"Exit status: 0 no faults, 1 faults found or no kubelet runs, 2 could not look, or not everywhere, or something\n" +
			"that was found could not be judged.",
		Example: "  kubediag scan\n" +
			"  kubediag scan --watch --only HungMount,DisconnectedFUSE\n" +
			"  kubediag scan --pod shop/web-0 -v\n" +
			"  kubectl get pods -A -o json | kubediag scan --pods - -o html > node.html",
		Args: func(cmd *cobra.Command, args []string) error {
			if _, err := time.ParseDuration(strings.Join(args, " ")); err == nil && options.watch != 0 {
				return fmt.Errorf("takes no arguments, not %q: type --watch=%s", args, args[0])
			}
			return verb.NoArgs(cmd, args)
		},
	}
	f := cmd.Flags()
	options.addSelection(cmd)
	options.addFrom(cmd)
	f.DurationVar(&options.watch, "watch", 0, "scan again and again, with this time between, 1s to 1h, and show what changes")
	f.Lookup("watch").NoOptDefVal = "5s"
	f.BoolVar(&options.brief, "brief", false, fmt.Sprintf("one line of at most %d bytes", maxBriefLength))
	f.BoolVarP(&options.verbose, "verbose", "v", false, "with the evidence of each fault")
	options.addPage(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := options.validate(); err != nil {
			return err
		}
		if options.watch != 0 {
			return options.watchNode(cmd)
		}
		return options.runScan(cmd)
	}
	return cmd
}

// scanOptions are the flags of scan.
type scanOptions struct {
	nodeOptions
	pods      string
	from      string
	checkFrom func() error // nil if the verb has no --from
	orphanAge time.Duration
	only      []string
	pod       string
	watch     time.Duration
	brief     bool
	verbose   bool
	out       *verb.Format

	language ui.Language // of a page
}

// addSelection adds the flags that choose the node and the faults.
func (o *scanOptions) addSelection(cmd *cobra.Command) {
	f := cmd.Flags()
	o.nodeOptions.addFlags(f)
	f.StringVar(&o.pods, "pods", "", "pods in JSON or YAML (\"-\": stdin); finds moved sources, adds pod names")
	f.DurationVar(&o.orphanAge, "orphan-minimum-age", orphan.DefaultMinimumAge,
		"how long a pod's directory must be unchanged before the pod counts\nas gone, 5m to 720h")
	f.StringSliceVar(&o.only, "only", nil, "only faults of these codes, with commas between them")
	f.StringVar(&o.pod, "pod", "", "only faults of this pod: NAMESPACE/NAME, or its UID")
	verb.CompleteFlag(cmd, "only", verb.Codes)
	verb.CompleteFlag(cmd, "pod", lastPods)
}

// validateSource checks the flags that choose the source: a node or a bundle.
func (o *scanOptions) validateSource() error {
	if o.checkFrom != nil {
		if err := o.checkFrom(); err != nil {
			return err
		}
	}
	if err := o.nodeOptions.validate(); err != nil {
		return err
	}
	if err := orphan.CheckMinimumAge(o.orphanAge); err != nil {
		return fmt.Errorf("--orphan-minimum-age=%s: %w", o.orphanAge, err)
	}
	return nil
}

func (o *scanOptions) validate() error {
	if err := o.validateSource(); err != nil {
		return err
	}
	for i, word := range o.only {
		code, err := verb.CodeOfWord(word)
		if err != nil {
			return fmt.Errorf("--only=%w", err)
		}
		o.only[i] = string(code)
	}
	if namespace, name, ok := strings.Cut(o.pod, "/"); ok && (namespace == "" || name == "") {
		return fmt.Errorf("--pod=%q: must be NAMESPACE/NAME, or a UID", o.pod)
	}
	switch {
	case o.watch != 0 && (o.watch < time.Second || o.watch > time.Hour):
		return fmt.Errorf("--watch=%s: must be between 1s and 1h", o.watch)
	case o.watch != 0 && o.from != "":
		return errors.New("--watch: cannot be with --from: a bundle does not change")
	case o.watch != 0 && o.pods == "-":
		return errors.New("--watch: cannot be with --pods=-: standard input is read once")
	case o.watch != 0 && *o.out == verb.HTML:
		return errors.New("--watch: cannot be with --output=html")
	case o.brief && *o.out != verb.Text:
		return fmt.Errorf("--brief: cannot be with --output=%s", *o.out)
	case o.brief && o.verbose:
		return errors.New("--brief: cannot be with --verbose")
	}
	return nil
}

// runScan scans once, and writes the result.
func (o scanOptions) runScan(cmd *cobra.Command) error {
	report, err := o.scanNode(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	output := cmd.OutOrStdout()
	switch {
	case o.brief:
		err = verb.Write(output, report.briefLine())
	case *o.out == verb.JSON:
		err = render.WriteJSON(output, report)
	case *o.out == verb.HTML:
		if o.from == "" {
			saveLastScan(report, o.keptFlags())
		}
		err = ui.Write(output, o.newView(output, report).asPages(o.language).reportPage())
	case o.from != "":
		err = verb.Write(output, bundleHeading(report.Node, report.Time)+o.newView(output, report).reportText())
	default:
		saveLastScan(report, o.keptFlags())
		err = verb.Write(output, o.newView(output, report).reportText())
	}
	if err != nil {
		return err
	}
	return report.finalError()
}

// newView is the report as it is shown where w leads.
func (o scanOptions) newView(w io.Writer, r *scanReport) scanView {
	v := scanView{Screen: terminal.New(w, os.Getenv), report: r, program: thisProgram(), verbose: o.verbose}
	v.flags, v.piped, v.from = o.flagsText()+o.podsFlag(), o.pods == "-", o.from
	if o.from != "" {
		v.flags = " " + fault.Quote("--from="+o.from)
	}
	return v
}

// scanNode looks at the node. An error means that it could not, and nothing is said about faults then.
func (o scanOptions) scanNode(ctx context.Context, stdin io.Reader) (*scanReport, error) {
	if o.from != "" {
		s, err := openBundle(ctx, o.from, stdin)
		if err != nil {
			return nil, err
		}
		return s.newScanReport(ctx, o)
	}
	o.readAhead = true
	at, err := o.newSite(ctx, stdin)
	if err != nil {
		return nil, err
	}
	return o.scanSite(ctx, at)
}

// scanSite is one look at a site.
func (o scanOptions) scanSite(ctx context.Context, at scanSite) (*scanReport, error) {
	return o.newScan(at).newScanReport(ctx, o)
}

// newScan begins a look at a site.
func (o scanOptions) newScan(at scanSite) *scan {
	s := &scan{node: at.local.Node, start: at.start, specs: at.specs, orphanAge: o.orphanAge}
	s.looked.Notes, s.looked.Kubelet.Down = nodeNotes(o.root, at.local), at.local.Down
	return s
}

// newScanReport scans, and puts the result together.
func (s *scan) newScanReport(ctx context.Context, o scanOptions) (*scanReport, error) {
	faults, err := s.findFaults(ctx, o)
	if err != nil {
		return nil, err
	}
	r := newReport(faults, s.looked, s.seen.Caller)
	if o.from != "" { // what is typed here changes another machine than the bundle's
		r.removeEffects()
	}
	r.blind, r.specs, r.Time, r.Node = s.seen.Blind, s.specs, s.seen.Time, s.seen.Node
	if len(o.only) == 0 && o.pod == "" && !s.looked.Gaps.Interrupted { // all faults of all pods were looked for
		r.links = sync.OnceValue(func() []nodeLink { return linksOf(&s.node.Layout, &s.sum) })
	}
	return r, nil
}

// findFaults scans. Then s has the place, the time and the coverage.
func (s *scan) findFaults(ctx context.Context, options scanOptions) ([]fault.Finding, error) {
	if err := s.search(ctx, searchesFor(options.only)); err != nil {
		return nil, err
	}
	s.sum.Attribute()
	s.looked.Classes = s.sum.Account()
	faults := s.sum.Findings
	if !s.looked.Gaps.Interrupted {
		s.addPodNames(ctx, faults)
		s.addContainerStates(ctx, faults)
	}
	if len(options.only) > 0 {
		faults = slices.DeleteFunc(faults, func(f fault.Finding) bool { return !slices.Contains(options.only, string(f.Code)) })
	}
	if options.pod != "" {
		uids, err := s.podUIDsOf(ctx, options.pod)
		if err != nil {
			return nil, err
		}
		s.sum.Unknown.Places = slices.DeleteFunc(s.sum.Unknown.Places, func(p mountstate.Place) bool {
			return p.Pod.UID != "" && !slices.Contains(uids, p.Pod.UID)
		})
		faults = slices.DeleteFunc(faults, func(f fault.Finding) bool { return !slices.Contains(uids, f.Pod.UID) })
	}
	s.looked.addSurvey(s.sum)
	refusing, gaps := s.source.unseen(s.looked.Gaps.Denied, s.looked.Gaps.Partial)
	s.looked.Gaps.Denied, s.looked.Gaps.NotLookedAt = refusing, append(s.looked.Gaps.NotLookedAt, gaps...)
	if s.seen != nil { // a bundle's advice is of another machine, and anyone's
		for i := range s.looked.Gaps.NotLookedAt {
			s.looked.Gaps.NotLookedAt[i].Do = ""
		}
	}
	s.looked.Milliseconds = float64(time.Since(s.start).Microseconds()) / 1000
	if s.seen == nil {
		s.seen = &scanOrigin{Node: machineName(), Time: time.Now().UTC().Truncate(time.Second), Blind: processesHidden(),
			Caller: s.newCaller(faults, options)}
	}
	return faults, nil
}

// scan is one pass over a node.
type scan struct {
	node      *kubelet.Node
	source    scanSource
	seen      *scanOrigin // nil: this process sees the node now
	start     time.Time   // of the search for the node
	specs     podFile
	orphanAge time.Duration
	looked    scanCoverage      // beside sum
	sum       mountstate.Survey // of all searches
}

// searchesFor are the searches that can find faults of these codes; all if there are none.
func searchesFor(codes []string) []searches.Search {
	if len(codes) == 0 {
		return searches.All()
	}
	return slices.DeleteFunc(searches.All(), func(s searches.Search) bool {
		return !slices.ContainsFunc(fault.Known().FoundBy(s.Kind), func(c fault.Code) bool { return slices.Contains(codes, string(c)) })
	})
}

// search makes one search after the other. If ctx ends, the faults found by then count, and the rest was not looked for:
// scan does not wait for a search that does not end.
func (s *scan) search(ctx context.Context, list []searches.Search) error {
	if s.source == nil {
		if err := s.useNode(nil); err != nil {
			return err
		}
	}
	directories, err := verb.Await(ctx, func() ([]string, error) {
		entries, err := s.source.entries(ctx)
		if err != nil { // a root without a directory of pods is not that of a kubelet: a clean result from there would be a lie
			owner := "this shell"
			if s.node.PID != 0 {
				owner = fmt.Sprintf("kubelet %d", s.node.PID)
			}
			return nil, fmt.Errorf("list pods of kubelet root %q in the mount namespace of %s: %w", s.node.Root, owner, err)
		}
		return entries, nil
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	s.looked.PodSpecs.Given, s.looked.directories = s.specs != nil, directories
	for _, uid := range directories {
		if s.specs.PodByUID(uid) != nil {
			s.looked.PodSpecs.Pods++
		}
	}
	node := searches.Node{Kubelet: s.node, PodUIDs: s.source.podUIDs, OrphanAge: s.orphanAge}
	if s.specs != nil {
		node.Specs = s.specs
	}
	for i, one := range list {
		found, err := verb.Await(ctx, func() (mountstate.Survey, error) { return s.source.look(ctx, one, node) })
		switch {
		case err == nil:
			s.sum.Merge(found)
		case errors.Is(err, errNotRecorded):
			s.sum.Unknown.AddGap(one.Description, err.Error())
		case ctx.Err() != nil:
			s.looked.Gaps.Interrupted = true
			var left []string
			for _, search := range list[i:] {
				left = append(left, search.Description)
			}
			s.sum.Unknown.Gaps = append(s.sum.Unknown.Gaps, mountstate.Gap{What: strings.Join(left, ", "), Why: "the scan was interrupted", Do: "run it again"})
			return nil // the findings count, and the report says that it was interrupted
		default:
			return err
		}
	}
	return nil
}

// useNode has the scan ask the node that was found, and the recorder write down the answers.
func (s *scan) useNode(recorder *nodeRecorder) error {
	node := s.node.ReadOnce()
	s.source = nodeSource{node, newBoundedRuntime(s.node), &asking.Prober{Known: node.KnownTable, Looks: asking.OneLook}, recorder}
	s.looked.Kubelet.Root, s.looked.Kubelet.PID, s.looked.KubeletRenews = s.node.Root, s.node.PID, replacesUnknown
	ns, err := s.node.Namespace()
	if err != nil {
		return err
	}
	s.looked.Kubelet.MountNamespace = ns.Inode
	return nil
}
