// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/memlimit"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// otherEnv are variables that have other names than their flags: that of the downward API, and kubectl's.
var otherEnv = map[string]string{"namespace": "POD_NAMESPACE", "kubeconfig": clientcmd.RecommendedConfigPathEnvVar}

// NewCommand is the command kubediag-manager. It runs until the context that it is executed with is done.
func NewCommand() *cobra.Command {
	settings := defaultOptions()
	var kubeconfig string
	var verbosity flags.Verbosity
	cmd := &cobra.Command{
		Use:           "kubediag-manager",
		Short:         "Binds Diagnoses to nodes, makes them when Triggers fire, and deletes old ones",
		Long:          "Binds Diagnoses to nodes, makes them when Triggers fire, and deletes old ones.\n\n" + flags.EnvRule,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := flags.FromEnv(cmd.Flags(), otherEnv, os.LookupEnv)
			if err != nil {
				return err
			}
			if err := env.Explain(settings.validate()); err != nil {
				return err
			}
			logTo(slog.NewJSONHandler(printable.Writer(os.Stderr), &slog.HandlerOptions{Level: verbosity.Level()}))
			memlimit.Set()
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
			}
			return run(cmd.Context(), config, settings)
		},
	}
	settings.bind(cmd.Flags())
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file, where the manager runs outside the cluster [$KUBECONFIG]")
	verbosity.Bind(cmd.Flags())
	return cmd
}

// run runs the manager until ctx is done or it is no longer the leader. The process must end after it returns: see
// kube.Run for what may be left behind.
func run(ctx context.Context, config *rest.Config, o options) error {
	m, err := newManager(config, o)
	if err != nil {
		return err
	}
	if err := kubeclient.Run(ctx, m); err != nil {
		return fmt.Errorf("running manager: %w", err)
	}
	return nil
}

// logTo sends the log of the manager, of controller-runtime and of client-go to one place.
func logTo(h slog.Handler) {
	log := logr.FromSlogHandler(h)
	ctrllog.SetLogger(log)
	klog.SetLogger(log)
}
