// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/sentinel"
)

// podEnv are the variables under which the downward API hands a pod its own names, by flag.
var podEnv = map[string]string{
	"node-name": "NODE_NAME",
	"pod-uid":   "POD_UID",
	"namespace": "POD_NAMESPACE",
}

// NewCommand is the command kubediag-agent. It runs until it is interrupted or terminated.
func NewCommand() *cobra.Command {
	var settings options
	cmd := flags.Program{
		Name: "kubediag-agent", Short: "Runs the Diagnoses of one node", OtherEnv: podEnv, Validate: settings.validate,
		Run: func(context.Context) error {
			if release := sys.Release(); sys.TooOld(release) {
				slog.Warn("Kernel is older than any that kubediag is tested on; kubediag features shows what works here", "release", release, "oldest", sys.OldestKernel)
			}
			rest, err := config.GetConfig()
			if err != nil {
				return fmt.Errorf("finding the API server: %w", err)
			}
			// Not in runAgent: tests run that in a process that goes on.
			if err := dropPrivileges(settings); err != nil {
				return err
			}
			return runAgent(ctrl.SetupSignalHandler(), rest, settings, metrics.Registry)
		},
	}.Command()
	settings.addFlags(cmd.Flags())
	return cmd
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.NodeName, "node-name", "", "node that the agent runs on [$NODE_NAME]")
	flags.StringVar((*string)(&o.PodUID), "pod-uid", "", "UID of the agent's own pod [$POD_UID]")
	flags.StringVar(&o.Namespace, "namespace", "", "namespace of the agent's Lease [$POD_NAMESPACE]")
	flags.StringVar(&o.DataRoot, "data-root", "/var/lib/kubediag", "directory for journals and full results")
	flags.StringVar(&o.KubeletRoot, "kubelet-root", "", "root directory of the kubelet (default: that of the running kubelet)")
	flags.IntVar(&o.KubeletPID, "kubelet-pid", 0, "process id of the kubelet (default: kubediag finds it)")
	o.SentinelMode = sentinel.Observe
	flags.Var(&o.SentinelMode, "sentinel-mode", "deprecated, use RecoveryPolicies: what is done about faults that none selects: Off, Observe (report them) or Automatic (repair them)")
	flags.BoolVar(&o.EnableScripts, "enable-scripts", false, "let Operations run scripts")
	flags.BoolVar(&o.AllowEviction, "allow-eviction", false, "let podEvictRecover evict pods whose volumes cannot be repaired")
	flags.StringVar(&o.ProcessorCAFile, "processor-ca-file", "", "PEM file of authorities to trust for external processors")
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", ":8080", "address of the metrics, 0 for none")
	o.Metrics.AddFlags(flags)
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz, 0 for none")
	flags.DurationVar(&o.OrphanMinimumAge, "orphan-minimum-age", orphan.DefaultMinimumAge,
		"how long a pod's directory must be unchanged before the pod counts as gone, 5m to 720h")
	flags.DurationVar(&o.DiagnosisTimeout, "diagnosis-timeout", 30*time.Minute, "deadline of a Diagnosis that names none")
	// Most of the time they wait for the kubelet to report that a container runs, and the next must not wait for that.
	flags.IntVar(&o.Workers, "workers", 16, "how many Diagnoses run at once")
	flags.DurationVar(&o.LeaseRenewal, "lease-renewal", 10*time.Second, "how often the agent's Lease is renewed")
	flags.DurationVar(&o.LeaseDuration, "lease-duration", 40*time.Second, "how long a renewal of the Lease counts")
}

// dropPrivileges keeps the capabilities that the agent uses of those that "privileged" gives it, for all of the program and for the processes that
// it starts. Scripts have all that root has: with them, nothing is dropped.
func dropPrivileges(o options) error {
	if o.EnableScripts {
		return nil
	}
	err := sys.DropPrivileges(
		sys.CapSysAdmin,       // to mount, to enter mount namespaces, to detach devices
		sys.CapSysChroot,      // to enter mount namespaces
		sys.CapSysPtrace,      // to look at the namespaces, the root and the descriptors of processes
		sys.CapDACOverride,    // to remove files from directories of other users
		sys.CapDACReadSearch,  // to look up paths in directories of other users
		sys.CapFowner,         // to read such directories without a trace, and to remove from sticky ones
		sys.CapMknod,          // to open a device that has no node where the agent is
		sys.CapSyslog,         // to read the kernel's log
		sys.CapNetBindService, // to listen on the ports that flags name
	)
	if err != nil {
		return fmt.Errorf("dropping privileges that the agent does not use: %w", err)
	}
	return nil
}
