// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"context"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"kubediag.org/kubediag/internal/memlimit"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// Program has the differences between the manager and the agent.
type Program struct {
	// Name is that of the command. Short is its purpose in one line.
	Name, Short string
	// OtherEnv are variables that have other names than their flags.
	OtherEnv map[string]string
	// Validate checks the settings, once the flags have their values.
	Validate func() error
	// Run runs the program until ctx is done.
	Run func(ctx context.Context) error
}

// Command returns the command of the program. The caller adds flags to it.
func (p Program) Command() *cobra.Command {
	var verbosity verbosityValue
	cmd := &cobra.Command{
		Use:           p.Name,
		Short:         p.Short,
		Long:          p.Short + ".\n\n" + envRule,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := FromEnv(cmd.Flags(), p.OtherEnv, os.LookupEnv)
			if err != nil {
				return err
			}
			if err := env.Explain(p.Validate()); err != nil {
				return err
			}
			log := logr.FromSlogHandler(slog.NewJSONHandler(printable.Writer(os.Stderr), &slog.HandlerOptions{Level: verbosity.Level()}))
			ctrllog.SetLogger(log)
			klog.SetLogger(log)
			memlimit.Set()
			return p.Run(cmd.Context())
		},
	}
	verbosity.Bind(cmd.Flags())
	return cmd
}
