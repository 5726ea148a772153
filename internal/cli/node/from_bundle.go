// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
)

// Names of the entries of a bundle that a scan from it reads beside the evidence of each search.
const (
	nodeEntry = "evidence/node.json"
	podsEntry = "pods.json"
)

// addFrom adds the flag that has a bundle looked at in place of the node.
func (o *scanOptions) addFrom(cmd *cobra.Command, others ...string) {
	cmd.Flags().StringVar(&o.from, "from", "", "look at a bundle (\"-\": standard input) instead of this node, see kubediag bundle")
	others = append(others, "kubelet-root", "kubelet-pid", "pods", "orphan-minimum-age")
	o.checkFrom = func() error {
		for _, flag := range others {
			if o.from != "" && cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s: cannot be with --from: a bundle is of one node, as it was", flag)
			}
		}
		return nil
	}
	if err := cmd.MarkFlagFilename("from", "gz"); err != nil {
		panic(err) // the flag is not there
	}
}

// openBundle makes a scan of the node that a bundle was made on. The bundle may come from anyone: all of it is data.
func openBundle(ctx context.Context, name string, stdin io.Reader) (*scan, error) {
	s, err := readInput(ctx, name, stdin, func(r io.Reader) (*scan, error) {
		content, err := bundle.Read(r)
		if err != nil {
			return nil, err
		}
		return scanOfBundle(content)
	})
	if err != nil {
		return nil, fmt.Errorf("read bundle %q (--from): %w", name, err)
	}
	return s, nil
}

// scanOfBundle is a scan that asks a bundle.
func scanOfBundle(content *bundle.Bundle) (*scan, error) {
	var n nodeRecord
	if content.File(nodeEntry) == nil {
		return nil, fmt.Errorf("%w: it has no entry %q, which says what node it is of", bundle.ErrRefused, nodeEntry)
	}
	if err := json.Unmarshal(content.File(nodeEntry), &n); err != nil {
		return nil, fmt.Errorf("%w: entry %q: %w", bundle.ErrRefused, nodeEntry, err)
	}
	s := &scan{node: kubelet.Elsewhere(n.KubeletRoot, n.PodsDir), seen: &n.Seen, start: time.Now()}
	of := searches.Node{Kubelet: s.node, PodUIDs: func(context.Context) ([]string, error) { return n.PodUIDs, nil }}
	if n.PodSpecs {
		s.specs = podFile{} // a bundle whose pods were left out has the answers about them alone
		if text := content.File(podsEntry); text != nil {
			specs, err := parsePods(bytes.NewReader(text))
			if err != nil {
				return nil, fmt.Errorf("%w: entry %q: %w", bundle.ErrRefused, podsEntry, err)
			}
			s.specs = specs
		}
		of.Specs = s.specs
	}
	from := recordedSource{n, map[string]mountstate.Inspector{}}
	for _, search := range searches.All() {
		text := content.File(search.Entry)
		if text == nil {
			continue
		}
		again, err := search.Read(text, of)
		if err != nil {
			return nil, fmt.Errorf("%w: entry %q: %w", bundle.ErrRefused, search.Entry, err)
		}
		from.evidence[search.Entry] = again
	}
	s.source = from
	s.looked = scanCoverage{
		Kubelet:       scannedKubelet{n.KubeletRoot, n.KubeletPID, n.KubeletDown, n.MountNamespace},
		KubeletRenews: replacesUnknown, Notes: n.Notes,
	}
	return s, nil
}

// bundleHeading is the line above the findings of a bundle.
func bundleHeading(node string, made time.Time) string {
	return printable.Line(fmt.Sprintf("On node %s: from the bundle that was made on %s at %s.", node, node, made.Format(time.RFC3339))) + "\n"
}

// printBundled prints the Diagnosis of the node that a bundle was made on.
func (o diagnoseOptions) printBundled(cmd *cobra.Command) error {
	ctx := cmd.Context()
	scan, err := openBundle(ctx, o.scan.from, cmd.InOrStdin())
	if err != nil {
		return err
	}
	found, err := scan.findFaults(ctx, o.scan)
	if err != nil {
		return err
	}
	diagnosis := &v1.Diagnosis{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis"},
		ObjectMeta: metav1.ObjectMeta{Name: "bundle", CreationTimestamp: metav1.NewTime(scan.seen.Time)},
		Spec:       o.spec(),
	}
	diagnosis.Spec.NodeName = scan.seen.Node
	var unjudged []string
	for _, place := range scan.sum.Unknown.Places {
		unjudged = append(unjudged, place.String())
	}
	pipeline.Conclude(diagnosis, found, unjudged, "no fault was found in what the bundle has")
	story := o.story(cmd.OutOrStdout())
	story.printText(bundleHeading(scan.seen.Node, scan.seen.Time))
	return o.finish(cmd, diagnosis, story, scan.looked.Gaps.NotLookedAt)
}
