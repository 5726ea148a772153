// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
)

// bundled prints the Diagnosis of the node that a bundle was made on.
func (o diagnoseOptions) bundled(cmd *cobra.Command) error {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	s, err := openBundle(ctx, o.from, cmd.InOrStdin())
	if err != nil {
		return err
	}
	found, err := s.findings(ctx, o.scanOptions)
	if err != nil {
		return err
	}
	d := &v1.Diagnosis{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis"},
		ObjectMeta: metav1.ObjectMeta{Name: "bundle", CreationTimestamp: metav1.NewTime(s.seen.Time)},
		Spec:       o.spec(),
	}
	d.Spec.NodeName = s.seen.Node
	pipeline.Conclude(d, found, "no fault was found in what the bundle has")
	story := &story{view: recoverView{scanView{Screen: terminal.New(w, os.Getenv), program: thisProgram(), verbose: o.verbose}}, out: io.Discard}
	if o.output == "text" {
		story.out = w
		story.say("%s\n", printable.Line(fmt.Sprintf("From the bundle that was made on %s at %s:", s.seen.Node, s.seen.Time.Format(time.RFC3339))))
	}
	if err := o.print(w, d, story, cmd); err != nil {
		return err
	}
	var b strings.Builder
	gapLines(&b, s.looked.NotLookedAt)
	if err := writeThen(story.out, story.view.Text(b.String()), endOf(d)); err != nil {
		return err
	}
	return unseen(s.looked.NotLookedAt)
}
