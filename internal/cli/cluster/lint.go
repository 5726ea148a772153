// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/render"
)

// podSpecOf is the spec of the pods of an object; nil if it has none.
func podSpecOf(o runtime.Object) *corev1.PodSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return &o.Spec.Template.Spec
	case *appsv1.ReplicaSet:
		return &o.Spec.Template.Spec
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	case *batchv1.Job:
		return &o.Spec.Template.Spec
	case *corev1.ReplicationController:
		if o.Spec.Template != nil {
			return &o.Spec.Template.Spec
		}
	case *corev1.Pod:
		return &o.Spec
	}
	return nil
}

// lintResult is the result of lint, as it is in JSON.
type lintResult struct {
	SchemaVersion int `json:"schemaVersion"`
	// Findings and NotLookedAt are never null.
	Findings    []lint.Finding `json:"findings"`
	Workloads   int            `json:"workloads"`
	NotLookedAt []string       `json:"notLookedAt"`
	// KubeletVersion is the oldest of the cluster. Empty: not known, and the oldest that there is was assumed.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
}

func newLintCommand(conn *connection) *cobra.Command {
	var all bool
	var out *verb.Format
	cmd := &cobra.Command{
		Use:   "lint",
		Short: "Find workloads of the cluster at risk of a mount fault, and write the change that cures each",
		Long: "lint reads the workloads of a namespace, or of all, and the versions of the kubelets. Each change is printed as a strategic\n" +
			"merge patch for kubectl patch. For manifests, without a cluster: kubediag lint -f.\n\n" +
			"Exit status: 0 no risk, 1 risks, 2 it could not look.",
		Example: "  kubectl kubediag lint -A",
		Args:    verb.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := conn.newClient()
			if err != nil {
				return err
			}
			r, err := (&workloadLinter{api: client, namespace: client.namespaceUnless(all)}).lint(cmd.Context())
			if err != nil {
				return err
			}
			return r.finalError(cmd, *out)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "workloads of all namespaces")
	out = addFormat(cmd, verb.JSON)
	return cmd
}

// lintedWorkload is an object with pods.
type lintedWorkload struct {
	kind string
	metav1.Object
	spec *corev1.PodSpec // of its pods
}

// workloadLinter looks at the workloads of a namespace, or of all.
type workloadLinter struct {
	api       *client
	namespace string
}

// lint looks at all kinds that the user may list.
func (l *workloadLinter) lint(ctx context.Context) (*lintResult, error) {
	r := &lintResult{SchemaVersion: 1, Findings: []lint.Finding{}, NotLookedAt: []string{}}
	options := lint.Options{KubeletVersion: l.oldestKubelet(ctx)}
	if options.KubeletVersion != nil {
		r.KubeletVersion = options.KubeletVersion.String()
	}
	var workloads []lintedWorkload
	for _, list := range []ctrlclient.ObjectList{
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}, &batchv1.CronJobList{}, &batchv1.JobList{},
		&corev1.ReplicationControllerList{}, &corev1.PodList{},
	} {
		found, err := l.listWorkloads(ctx, list)
		switch {
		case errors.Is(err, verb.ErrRefused), errors.Is(err, errNotServed):
			r.NotLookedAt = append(r.NotLookedAt, err.Error())
		case err != nil:
			return nil, err
		}
		workloads = append(workloads, found...)
	}
	for _, w := range workloads {
		options.MountDirs.Add(lint.MountDirs(w.spec)...)
	}
	immutable, unread := map[lint.Content]bool{}, map[string]error{} // of each ConfigMap that was read, and why others could not be, by namespace
	options.Immutable = func(of lint.Content) bool {
		fixed, asked := immutable[of]
		if of.Kind != "ConfigMap" || asked || unread[of.Namespace] != nil { // Secrets are not read: they count as changing
			return fixed
		}
		var found corev1.ConfigMap
		if err := l.api.server.Get(ctx, ctrlclient.ObjectKey{Namespace: of.Namespace, Name: of.Name}, &found); err != nil && !errors.Is(err, errMissing) {
			unread[of.Namespace] = err
		}
		immutable[of] = found.Immutable != nil && *found.Immutable
		return immutable[of]
	}
	r.Workloads = len(workloads)
	for _, w := range workloads {
		r.Findings = append(r.Findings, lint.Check(w.kind, w.GetNamespace(), w.GetName(), w.spec, options)...)
	}
	for _, namespace := range slices.Sorted(maps.Keys(unread)) {
		r.NotLookedAt = append(r.NotLookedAt, fmt.Sprintf("whether ConfigMaps of namespace %s are immutable: %v", namespace, unread[namespace]))
	}
	return r, nil
}

func (l *workloadLinter) listWorkloads(ctx context.Context, list ctrlclient.ObjectList) (all []lintedWorkload, err error) {
	if err := l.api.server.List(ctx, list, ctrlclient.InNamespace(l.namespace)); err != nil {
		return nil, err
	}
	kind, err := l.api.server.GroupVersionKindFor(list)
	if err != nil {
		return nil, err
	}
	return all, meta.EachListItem(list, func(item runtime.Object) error {
		o, ok := item.(metav1.Object)
		spec := podSpecOf(item) // of an object that another one controls, it is in that one
		if ok && spec != nil && metav1.GetControllerOf(o) == nil {
			all = append(all, lintedWorkload{strings.TrimSuffix(kind.Kind, "List"), o, spec})
		}
		return nil
	})
}

// oldestKubelet is the oldest version of a kubelet; nil if it is not known.
func (l *workloadLinter) oldestKubelet(ctx context.Context) (oldest *version.Version) {
	var list corev1.NodeList
	if err := l.api.server.List(ctx, &list); err != nil {
		return nil
	}
	for _, n := range list.Items {
		v, err := version.ParseGeneric(n.Status.NodeInfo.KubeletVersion)
		if err != nil {
			return nil
		}
		if oldest == nil || v.LessThan(oldest) {
			oldest = v
		}
	}
	return oldest
}

func (r *lintResult) finalError(cmd *cobra.Command, out verb.Format) error {
	if err := render.Write(cmd.OutOrStdout(), out, r, r.resultText); err != nil {
		return err
	}
	switch {
	case len(r.Findings) > 0:
		return verb.ErrFaults
	case len(r.NotLookedAt) > 0:
		return errors.New("not all workloads were looked at")
	}
	return nil
}

func (r *lintResult) resultText(screen terminal.Screen) string {
	var risks []string
	for _, f := range r.Findings {
		risks = append(risks, render.Risk(screen, fmt.Sprintf("%s %s %s/%s", f.Rule, f.Kind, f.Namespace, f.Name), f))
	}
	mark, colour, text := "✓", terminal.Green, "No risk found in "+verb.Count(r.Workloads, "workload")
	if len(r.Findings) > 0 {
		mark, colour, text = "✗", terminal.Red, verb.Count(len(r.Findings), "risk")+" in "+verb.Count(r.Workloads, "workload")
	}
	if r.KubeletVersion != "" {
		text += "; the oldest kubelet is " + r.KubeletVersion
	} else {
		text += "; the versions of the kubelets are not known, and the oldest was assumed"
	}
	text = screen.Marked("", mark, colour, text+".")
	for _, gap := range r.NotLookedAt {
		text += screen.Marked("", "!", terminal.Yellow, "Not looked at: "+gap)
	}
	p := &render.Page{Screen: screen}
	p.List(risks, strings.Count(text, "\n"), "risk")
	return screen.Text(p.String() + text)
}
