// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// resourceNames are the names of a kind in the namespace of the call; none if the API server does not give them.
func (c *connection) resourceNames(kind schema.GroupVersionKind) verb.Choices {
	return func() (names []string) {
		client, err := c.newClient()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout) // cobra gives a completion none
		defer cancel()
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := client.server.List(ctx, list, ctrlclient.InNamespace(client.namespace)); err != nil {
			return nil
		}
		for _, of := range list.Items {
			if printable.Quoted(of.Name) == of.Name {
				names = append(names, of.Name)
			}
		}
		return names
	}
}

// completeTargets completes kinds first, and then names.
func (c *connection) completeTargets(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if device, _, ok := strings.Cut(begun, "@"); ok && !strings.Contains(device, "/") {
		return c.completeKinds(begun, targetKind{device + "@", nodeKind})
	}
	return c.completeKinds(begun, targetKind{"pod/", podKind}, targetKind{"deploy/", appsv1.SchemeGroupVersion.WithKind("Deployment")},
		targetKind{"sts/", appsv1.SchemeGroupVersion.WithKind("StatefulSet")}, targetKind{"ds/", daemonSetKind}, targetKind{"node/", nodeKind}, targetKind{"pvc/", claimKind})
}

// completeImpact completes the targets of impact.
func (c *connection) completeImpact(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeKinds(begun, targetKind{"ds/", daemonSetKind}, targetKind{"node/", nodeKind}, targetKind{"pvc/", claimKind})
}

// targetKind is a kind of targets, and how they begin.
type targetKind struct {
	prefix string
	of     schema.GroupVersionKind
}

// completeKinds completes the names of the kind that has begun, or else the kinds.
func (c *connection) completeKinds(begun string, kinds ...targetKind) (values []string, _ cobra.ShellCompDirective) {
	for _, kind := range kinds {
		if !strings.HasPrefix(begun, kind.prefix) {
			values = append(values, kind.prefix)
			continue
		}
		values = nil
		for _, name := range c.resourceNames(kind.of)() {
			values = append(values, kind.prefix+name)
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	return values, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
