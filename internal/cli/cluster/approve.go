// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/approval"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/render"
)

// maxApproverLength bounds the name of an approver, in bytes.
const maxApproverLength = 253

// approveOptions are the flags of the verb approve.
type approveOptions struct {
	*connection
	plan       string
	verbose    bool
	expiration time.Duration
}

func newApproveCommand(conn *connection) *cobra.Command {
	o := &approveOptions{connection: conn}
	cmd := &cobra.Command{
		Use:   "approve NAME",
		Short: "Approve the plan of a Diagnosis that waits for it",
		Long: "approve shows the plan of a Diagnosis with mode Approve. On a terminal it then asks, and creates a RecoveryApproval of\n" +
			"exactly that plan. The agent repairs if the plan still fits. The role kubediag-approver has the rights.\n\n" +
			"Exit status: 0 approved; 1 not approved; 2 it could not look; 3 it was refused.",
		Example: "  kubectl kubediag approve web-0a1b2c3d4e -n kubediag\n" +
			"  kubectl get diag -n kubediag -l diagnosis.kubediag.org/origin=policy",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(conn.resourceNames(diagnosisKind)),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.runApprove(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.plan, "plan-hash", "", "approve the plan with this hash, and no other, without a question")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show each action of the plan, why it is safe, and the lines of its hash")
	f.DurationVar(&o.expiration, "expires", time.Hour, "how long the approval counts, 1s to 24h")
	return cmd
}

func (o *approveOptions) runApprove(cmd *cobra.Command, name string) error {
	if o.plan != "" && !planHashPattern.MatchString(o.plan) {
		return fmt.Errorf("--plan-hash=%q: must be the 64 hexadecimal digits of a plan", o.plan)
	}
	apiClient, err := o.newClient()
	if err != nil {
		return err
	}
	diagnosis := &v1.Diagnosis{}
	if err := apiClient.server.Get(cmd.Context(), apiClient.keyOf(name), diagnosis); err != nil {
		return err
	}
	a, err := approval.For(diagnosis, approval.Options{PlanHash: o.plan, Expiration: o.expiration})
	if errors.Is(err, approval.ErrNotWaiting) {
		return fmt.Errorf("%w: %w", verb.ErrRefused, err)
	}
	if err != nil {
		return fmt.Errorf("--expires: %w", err)
	}
	screen := screenOf(cmd)
	shown := newStory(screen, diagnosis)
	shown.verbose = o.verbose
	if p := diagnosis.Status.Plan; o.plan == "" && (p == nil || len(p.Changes) == 0) { // a person approves the lines that are shown
		return fmt.Errorf("%w: the status does not list the changes of plan %s: update the agent and config/crd, or give --plan-hash", verb.ErrRefused, a.Spec.PlanHash)
	}
	if err := checkChanges(diagnosis.Status.Plan, a.Spec.PlanHash); err != nil {
		return err
	}
	text := shown.headline(diagnosis.Spec.Target()) + shown.newsText(diagnosis)
	if p := diagnosis.Status.Plan; p != nil && !o.verbose {
		text += screen.Text(render.Changes(screen, p.Changes, true)) // all, as these lines are approved, and no other text
	}
	if err := verb.Write(cmd.OutOrStdout(), text); err != nil {
		return err
	}
	if o.plan == "" {
		agreed, err := agreesOnTerminal(cmd, cmd.OutOrStdout(), "Approve?", shown.details(diagnosis))
		if err != nil {
			return err
		}
		if !agreed {
			command := apiClient.commandLine("approve", diagnosis.Name, "-n", diagnosis.Namespace, "--plan-hash="+a.Spec.PlanHash)
			return cmp.Or(verb.Write(cmd.OutOrStdout(), screen.Text("\nNothing was approved. To approve exactly this:\n  "+command+"\n")), verb.ErrFaults)
		}
	}
	if a.Spec.Approver, err = apiClient.userName(cmd.Context()); err != nil {
		return err
	}
	if err := apiClient.server.Create(cmd.Context(), a); err != nil {
		return err
	}
	return verb.Write(cmd.OutOrStdout(), screen.Text(screen.Marked("", "✓", terminal.Green,
		fmt.Sprintf("Created RecoveryApproval %s/%s of plan %.12s", a.Namespace, a.Name, a.Spec.PlanHash))+
		screen.Hints([]terminal.Hint{{Line: apiClient.commandLine("get", diagnosis.Name, "-n", diagnosis.Namespace, "-w"), Purpose: "follows the repair"}}, nil)))
}

// checkChanges refuses a plan whose lines have another hash. An agent of an older release lists none.
func checkChanges(p *v1.Plan, hash string) error {
	if p != nil && len(p.Changes) > 0 && v1.PlanHash(p.Changes) != hash {
		return fmt.Errorf("%w: the changes in the status do not have the hash %s: do not approve it", verb.ErrRefused, hash)
	}
	return nil
}

// userName is the name of the user as the API server knows it. It is empty for a server before Kubernetes 1.28, which
// does not say it, and for a name that is too long for an approval.
func (c *client) userName(ctx context.Context) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	err := c.server.Create(ctx, review)
	if err != nil && !errors.Is(err, errNotServed) && !errors.Is(err, verb.ErrRefused) {
		return "", err
	}
	if name := review.Status.UserInfo.Username; len(name) <= maxApproverLength {
		return name, nil
	}
	return "", nil
}
