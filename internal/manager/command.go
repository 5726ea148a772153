// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/kubeclient"
)

// otherEnv are variables that have other names than their flags: that of the downward API, and kubectl's.
var otherEnv = map[string]string{"namespace": "POD_NAMESPACE", "kubeconfig": clientcmd.RecommendedConfigPathEnvVar}

// NewCommand is the command kubediag-manager. It runs until the context that it is executed with is done, or it is no longer the leader. The process must
// end after it returns: see kubeclient.Run for the goroutines that may stay behind.
func NewCommand() *cobra.Command {
	settings := defaultOptions()
	var kubeconfig string
	cmd := flags.Program{
		Name: "kubediag-manager", Short: "Binds Diagnoses to nodes, makes them when Triggers fire, and deletes old ones",
		OtherEnv: otherEnv, Validate: settings.validate,
		Run: func(ctx context.Context) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
			}
			m, err := newManager(config, settings)
			if err != nil {
				return err
			}
			if err := kubeclient.Run(ctx, m); err != nil {
				return fmt.Errorf("running manager: %w", err)
			}
			return nil
		},
	}.Command()
	settings.bind(cmd.Flags())
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file, where the manager runs outside the cluster [$KUBECONFIG]")
	return cmd
}
