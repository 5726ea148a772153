// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/render"
)

const (
	impactSet = "mount-impact-op-set"
	// nodesAtOnce bounds the nodes that work on the question at the same time, maxImpactNodes all of them.
	nodesAtOnce    = 20
	maxImpactNodes = 200
)

// errUnanswered is the error of an answer that is not complete.
var errUnanswered = errors.New("not all of it was looked at")

// impactReport is the answer for all nodes.
type impactReport struct {
	SchemaVersion int    `json:"schemaVersion"`
	Target        string `json:"target"`
	// Nodes are those that have answered.
	Nodes []string `json:"nodes"`
	// Volumes are those that the target may take away or that cannot be unmounted; of a claim, all of its volumes.
	Volumes []impactVolume `json:"volumes"`
	// Unknown has the nodes and the parts of nodes that were not looked at.
	Unknown []impactGap `json:"unknown"`
}

// impactVolume is a volume of a pod on a node.
type impactVolume struct {
	Node  string       `json:"node"`
	Loses impactAnswer `json:"loses"`
	fault.MountImpact
}

// impactAnswer says whether a pod loses a volume.
type impactAnswer string

// Answers, the worst first.
const (
	loses    impactAnswer = "Yes"
	mayLose  impactAnswer = "Unknown"
	losesNot impactAnswer = "No"
)

// impactGap is a part of a node that was not looked at.
type impactGap struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

func newImpactCommand(conn *connection) *cobra.Command {
	var patience time.Duration
	var out *verb.Format
	cmd := &cobra.Command{
		Use:   "impact TARGET",
		Short: "Show which pods lose a volume when a driver, a node or the daemon of a claim ends",
		Long: "impact asks the nodes, before an upgrade of a driver, a drain or a reboot. TARGET is " + impactForms + ".\n" +
			"It says which pods that run lose a volume when those daemons end, which of the volumes come back, and which cannot be\n" +
			"unmounted now. It changes nothing: it makes a Diagnosis for each node, 200 at most, and deletes it again.\n\n" +
			"Exit status: 0 no pod loses a volume; 1 some do, or may, or a volume cannot be unmounted; 2 it could not look at everything;\n" +
			"3 it was refused.",
		Example: "  kubectl kubediag impact ds/juicefs-csi-node -n kube-system\n  kubectl kubediag impact node/worker-7\n" +
			"  kubectl kubediag impact pvc/data -n shop",
		Args:              verb.Takes("TARGET", 1),
		ValidArgsFunction: conn.completeImpact,
		RunE: func(cmd *cobra.Command, args []string) error {
			if patience < time.Second {
				return fmt.Errorf("--timeout=%s: must be at least 1s", patience)
			}
			apiClient, err := conn.newClient()
			if err != nil {
				return err
			}
			q, err := apiClient.impactQuestion(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			asker := &impactAsker{cmd: cmd, api: apiClient, patience: patience}
			report, err := asker.askNodes(cmd.Context(), q)
			if err != nil {
				return err
			}
			err = render.Write(cmd.OutOrStdout(), *out, report, func(s terminal.Screen) string {
				return impactView{screen: s, api: apiClient, question: q, report: report}.text()
			})
			return cmp.Or(err, report.finalError())
		},
	}
	cmd.Flags().DurationVar(&patience, "timeout", time.Minute, "how long to wait for the answer of a node")
	out = addFormat(cmd, verb.JSON)
	return cmd
}

// finalError says how the verb ends.
func (r *impactReport) finalError() error {
	switch {
	case slices.ContainsFunc(r.Volumes, func(v impactVolume) bool { return v.Loses != losesNot || v.UnmountRefusal != "" }):
		return verb.ErrFaults
	case len(r.Unknown) > 0:
		return errUnanswered
	}
	return nil
}

// impactAsker asks nodes, with the rights of the caller.
type impactAsker struct {
	cmd      *cobra.Command
	api      *client
	patience time.Duration
}

// nodeAnswer is the answer of a node.
type nodeAnswer struct {
	volumes []fault.MountImpact
	unknown []string
	err     error
}

// askNodes asks all nodes of a question, some at a time. A missing right ends it.
func (a *impactAsker) askNodes(ctx context.Context, q *impactQuestion) (*impactReport, error) {
	asked := q.nodes[:min(len(q.nodes), maxImpactNodes)]
	answers := make([]nodeAnswer, len(asked))
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(nodesAtOnce)
	for i, node := range asked {
		workers.Go(func() error {
			if answers[i].err = ctx.Err(); answers[i].err == nil {
				answers[i] = a.askNode(ctx, node)
			}
			if err := answers[i].err; errors.Is(err, verb.ErrRefused) {
				return err
			}
			return nil
		})
	}
	if err := workers.Wait(); err != nil {
		return nil, err
	}
	r := &impactReport{SchemaVersion: 1, Target: q.target, Nodes: []string{}, Volumes: []impactVolume{}, Unknown: []impactGap{}}
	for i, answer := range answers {
		r.add(q, asked[i], answer)
	}
	if err := a.cmd.Context().Err(); err != nil {
		return nil, errors.New("interrupted")
	}
	for _, node := range q.nodes[len(asked):] {
		r.Unknown = append(r.Unknown, impactGap{node, fmt.Sprintf("not asked: %d nodes are asked at most", maxImpactNodes)})
	}
	rank := []impactAnswer{loses, mayLose, losesNot}
	slices.SortStableFunc(r.Volumes, func(a, b impactVolume) int { return slices.Index(rank, a.Loses) - slices.Index(rank, b.Loses) })
	return r, nil
}

// add takes the answer of a node, and of the volumes those that the question is about.
func (r *impactReport) add(q *impactQuestion, node string, answer nodeAnswer) {
	if answer.err != nil {
		r.Unknown = append(r.Unknown, impactGap{node, answer.err.Error()})
	} else {
		r.Nodes = append(r.Nodes, node)
	}
	for _, why := range answer.unknown {
		r.Unknown = append(r.Unknown, impactGap{node, why})
	}
	for _, m := range answer.volumes {
		v := impactVolume{node, q.loses(m), m}
		about := v.Loses != losesNot
		switch {
		case q.claim != "":
			about = v.Volume == q.claim && q.pods[v.Pod.UID]
		case q.driver == nil:
			about = about || v.UnmountRefusal != ""
		}
		if about {
			r.Volumes = append(r.Volumes, v)
		}
	}
}

// askNode has the agent of a node answer, by a Diagnosis that is deleted again.
func (a *impactAsker) askNode(ctx context.Context, node string) (answer nodeAnswer) {
	d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: a.api.namespace, GenerateName: "impact-"},
		Spec: v1.DiagnosisSpec{NodeName: node, OperationSet: impactSet, Mode: v1.ModePlan}}
	if err := a.api.server.Create(ctx, d); err != nil {
		return nodeAnswer{err: err}
	}
	uid := d.UID
	defer func() {
		err := a.api.server.Delete(context.WithoutCancel(ctx), d, ctrlclient.Preconditions{UID: &uid})
		if err != nil && !errors.Is(err, errMissing) {
			answer.unknown = append(answer.unknown, fmt.Sprintf("Diagnosis %s/%s was not deleted: %v", d.Namespace, d.Name, err))
		}
	}()
	limited, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	r := &targetRunner{options: &runOptions{out: new(verb.Format)}, api: a.api, cmd: a.cmd, out: io.Discard}
	err := r.followDiagnosis(limited, r.newWatcher(d), newStory(terminal.Screen{}, d), d)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", a.patience)
		if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted); c != nil && c.Status == metav1.ConditionFalse {
			err = fmt.Errorf("%w: %s", err, c.Message)
		}
	}
	if err != nil {
		return nodeAnswer{err: err}
	}
	return readNodeAnswer(d)
}

// readNodeAnswer reads the answer from the results of a Diagnosis that has ended.
func readNodeAnswer(d *v1.Diagnosis) (answer nodeAnswer) {
	text, ok := d.Status.OperationResults[fault.KeyMountImpact]
	if !ok {
		return nodeAnswer{err: errors.New(cmp.Or(d.Status.Summary, "the Diagnosis has no answer"))}
	}
	list := json.NewDecoder(strings.NewReader(text))
	if err := list.Decode(&answer.volumes); err != nil {
		return nodeAnswer{err: fmt.Errorf("read result %s: %w", fault.KeyMountImpact, err)}
	}
	if list.More() {
		answer.unknown = append(answer.unknown, "its list of volumes was cut: a Diagnosis has no room for more")
	}
	if text := d.Status.OperationResults[fault.KeyMountImpactUnknown]; text != "" {
		var gaps []string
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&gaps); err != nil {
			gaps = []string{fmt.Sprintf("read result %s: %v", fault.KeyMountImpactUnknown, err)}
		}
		answer.unknown = append(answer.unknown, gaps...)
	}
	return answer
}
