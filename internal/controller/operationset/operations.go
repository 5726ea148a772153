// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package operationset

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/printable"
)

// operationIndex finds the OperationSets that name an Operation.
const operationIndex = "spec.adjacencyList.operation"

// maxProblems is how many Operations a condition lists, maxProblemBytes how much of the message of each.
const (
	maxProblems     = 10
	maxProblemBytes = 512
)

// readOperations says why the Operations of a set cannot be used; the reason is empty if all of them can. Missing
// Operations come before those that are not ready.
func (r *Reconciler) readOperations(ctx context.Context, set *v1.OperationSet) (reason, message string, err error) {
	var missing, unready []string
	seen := map[string]bool{"": true}
	for i, node := range set.Spec.AdjacencyList {
		if seen[node.Operation] {
			continue
		}
		seen[node.Operation] = true
		at := fmt.Sprintf("adjacencyList[%d].operation: %q: ", i, node.Operation)
		var op v1.Operation
		err := r.Client.Get(ctx, client.ObjectKey{Name: node.Operation}, &op)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, at+"there is no Operation of this name")
		case err != nil:
			return "", "", fmt.Errorf("reading operation %q: %w", node.Operation, err)
		default:
			if why := notReadyReason(&op); why != "" {
				unready = append(unready, at+why)
			}
		}
	}
	switch {
	case len(missing) > 0:
		return v1.ReasonOperationNotFound, joinProblems(append(missing, unready...)), nil
	case len(unready) > 0:
		return v1.ReasonOperationNotReady, joinProblems(unready), nil
	}
	return "", "", nil
}

// notReadyReason says why an Operation cannot be used. A condition of an older generation does not count.
func notReadyReason(op *v1.Operation) string {
	ready := meta.FindStatusCondition(op.Status.Conditions, v1.ConditionReady)
	switch {
	case ready == nil || op.Status.ObservedGeneration != op.Generation:
		return "the Operation has not been checked yet"
	case ready.Status != metav1.ConditionTrue:
		return printable.Clip("the Operation is not ready: "+ready.Message, maxProblemBytes)
	}
	return ""
}

func joinProblems(problems []string) string {
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(problems, "; ")
}

// operationsOf lists the names of the Operations of a set, each once.
func operationsOf(o client.Object) []string {
	set, ok := o.(*v1.OperationSet)
	if !ok {
		return nil
	}
	var names []string
	for _, n := range set.Spec.AdjacencyList {
		if n.Operation != "" {
			names = append(names, n.Operation)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readinessChanged lets a change of an Operation through if it may change the verdict on a set.
func readinessChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*v1.Operation)
		is, ok2 := e.ObjectNew.(*v1.Operation)
		return ok && ok2 && notReadyReason(was) != notReadyReason(is)
	}}
}

// listedPaths returns the first paths for the status, within the bounds of their number and of their size: the API server limits an object. A path of the largest set can have a thousand nodes.
func listedPaths(g *graph.Graph, list []v1.Node) []v1.Path {
	byID := map[int32]v1.Node{}
	for i, n := range g.Nodes() {
		named := list[i]
		named.ID = n.ID
		byID[n.ID] = named
	}
	const idBytes, nameBytes = 5, 40 // of an identifier, and of the names of the fields of a node, as JSON
	var paths []v1.Path
	size := 0
	for _, ids := range g.Paths(v1.MaxListedPaths) {
		path := make(v1.Path, len(ids))
		for i, id := range ids {
			path[i] = byID[id]
			size += nameBytes + len(path[i].Operation) + idBytes*(1+len(path[i].To)+len(path[i].Dependences))
		}
		if size > v1.MaxPathsBytes {
			break
		}
		paths = append(paths, path)
	}
	return paths
}
