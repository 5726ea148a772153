// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// resourceNames are the names of a resource in the namespace of the call; none if the API server does not give them.
func (c *connection) resourceNames(r apiResource) verb.Choices {
	return func() (names []string) {
		client, err := c.newClient()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout) // cobra gives a completion none
		defer cancel()
		list := &metav1.Table{}
		if err := client.listTableOf(ctx, r.inNamespace(client.namespace), metav1.ListOptions{}, list); err != nil {
			return nil
		}
		for _, row := range list.Rows {
			of, ok := row.Object.Object.(*metav1.PartialObjectMetadata)
			if ok && printable.Quoted(of.Name) == of.Name {
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
	device, _, isDevice := strings.Cut(begun, "@")
	for _, kind := range []struct {
		prefix string
		of     apiResource
	}{{"pod/", pods}, {"node/", nodes}, {"pvc/", volumeClaims}, {device + "@", nodes}} {
		if !strings.HasPrefix(begun, kind.prefix) || kind.prefix == "@" && !isDevice {
			continue
		}
		var values []string
		for _, name := range c.resourceNames(kind.of)() {
			values = append(values, kind.prefix+name)
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"pod/", "node/", "pvc/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
