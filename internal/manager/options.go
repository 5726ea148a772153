// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kubediag.org/kubediag/internal/bearer"
	"kubediag.org/kubediag/internal/controller/lease"
	"kubediag.org/kubediag/internal/controller/recoverypolicy"
	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/scrape"
)

// options are the settings of the manager. Each has a flag, and an environment variable of the flag's name in capitals
// with KUBEDIAG_ before it.
type options struct {
	// Namespace is where the Leases of the manager and of the agents are.
	Namespace string
	// LeaderElection lets several managers stand by for each other.
	LeaderElection bool
	// MetricsBindAddress and HealthProbeBindAddress are TCP addresses; "0" turns them off.
	MetricsBindAddress, HealthProbeBindAddress string
	// Metrics says who may read the metrics.
	Metrics scrape.Protection
	// FaultInfo exposes the MountFaults as a metric, to everyone who can reach the metrics.
	FaultInfo bool
	// AgentLeaseDuration is the time for which the renewal of an agent's Lease counts if the Lease has none.
	AgentLeaseDuration time.Duration
	// AgentCheckInterval is the time between two checks of the agent of an unfinished Diagnosis. An agent has the same time
	// to accept a Diagnosis before the first check.
	AgentCheckInterval time.Duration
	// DiagnosisTTL is the time that a Diagnosis is kept after its end. 0: for ever.
	DiagnosisTTL time.Duration
	// DiagnosesPerNode bounds the Diagnoses of one namespace that have ended on one node. 0: no bound.
	DiagnosesPerNode int
	// DiagnosisMinimumTTL is the time after its end in which DiagnosesPerNode does not delete a Diagnosis.
	DiagnosisMinimumTTL time.Duration
	// RetentionInterval is the time between two passes over the Diagnoses.
	RetentionInterval time.Duration
	// AlertBindAddress is the TCP address of the receiver of alerts; "0" turns it off.
	AlertBindAddress string
	// AlertCertFile and AlertKeyFile are for HTTPS there. Empty: the manager makes a certificate.
	AlertCertFile, AlertKeyFile string
	// AlertAudiences are the audiences of the tokens that the API server reviews.
	AlertAudiences []string
	// AlertSecretFile holds the bearer token that senders of alerts share. Empty: the API server reviews each
	// token.
	AlertSecretFile string
	// TriggerInterval is the time between two reconciliations of a Trigger. It has no flag.
	TriggerInterval time.Duration
	// PolicyInterval is the time between two checks of the breakers of a RecoveryPolicy. It has no flag.
	PolicyInterval time.Duration
	// LeaseAgeInterval is the time between two measurements of the ages of the agents' Leases. It has no flag.
	LeaseAgeInterval time.Duration
}

// defaultOptions are the options without any flag.
func defaultOptions() options {
	return options{
		LeaderElection:         true,
		MetricsBindAddress:     ":8080",
		HealthProbeBindAddress: ":8081",
		AgentLeaseDuration:     40 * time.Second,
		AgentCheckInterval:     10 * time.Second,
		DiagnosisTTL:           240 * time.Hour,
		DiagnosesPerNode:       50,
		DiagnosisMinimumTTL:    30 * time.Minute,
		RetentionInterval:      time.Minute,
		AlertBindAddress:       flags.Off,
		AlertAudiences:         []string{"kubediag", bearer.AudienceOfServer},
		TriggerInterval:        triggerInterval,
		PolicyInterval:         recoverypolicy.Interval,
		LeaseAgeInterval:       lease.AgeInterval,
	}
}

func (o *options) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace of the Leases of manager and agents [$POD_NAMESPACE]")
	flags.BoolVar(&o.LeaderElection, "leader-elect", o.LeaderElection, "let several managers stand by for each other")
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress, "address of the metrics, 0 for none")
	o.Metrics.AddFlags(flags)
	flags.BoolVar(&o.FaultInfo, "fault-info-metric", o.FaultInfo,
		"expose kubediag_fault_info, which names namespaces, pods and volumes to everyone who can reach the metrics")
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", o.HealthProbeBindAddress, "address of /healthz and /readyz, 0 for none")
	flags.DurationVar(&o.AgentLeaseDuration, "agent-lease-duration", o.AgentLeaseDuration,
		"how long a renewal of an agent's Lease counts if the Lease does not say")
	flags.DurationVar(&o.AgentCheckInterval, "agent-check-interval", o.AgentCheckInterval,
		"how often the agent of an unfinished Diagnosis is checked")
	flags.DurationVar(&o.DiagnosisTTL, "diagnosis-ttl", o.DiagnosisTTL, "how long a Diagnosis is kept after its end, 0 for ever")
	flags.IntVar(&o.DiagnosesPerNode, "maximum-diagnoses-per-node", o.DiagnosesPerNode,
		"how many ended Diagnoses of one namespace on one node are kept, about the pods of one namespace; 0 for all")
	flags.DurationVar(&o.DiagnosisMinimumTTL, "minimum-diagnosis-ttl-duration", o.DiagnosisMinimumTTL,
		"how long a Diagnosis is kept after its end, even if there are too many")
	flags.DurationVar(&o.RetentionInterval, "retention-interval", o.RetentionInterval, "time between two looks for Diagnoses to delete")
	flags.StringVar(&o.AlertBindAddress, "alert-bind-address", o.AlertBindAddress, "address at which alerts are received, 0 for none")
	flags.StringVar(&o.AlertCertFile, "alert-tls-cert-file", o.AlertCertFile, "certificate with which alerts are received; without it the manager makes one")
	flags.StringVar(&o.AlertKeyFile, "alert-tls-key-file", o.AlertKeyFile, "key of that certificate")
	flags.StringVar(&o.AlertSecretFile, "alert-secret-file", o.AlertSecretFile,
		"file with the bearer token of all senders of alerts; without it the API server is asked about each token")
	flags.StringSliceVar(&o.AlertAudiences, "alert-token-audiences", o.AlertAudiences,
		"audiences of the tokens that the API server is asked about; "+bearer.AudienceOfServer+" stands for its own")
}

// validate checks the settings. Every error names the flag and the value.
func (o *options) validate() error {
	errs := []error{
		flags.CheckNamespace(o.Namespace),
		flags.CheckAddress("metrics-bind-address", o.MetricsBindAddress),
		flags.CheckAddress("health-probe-bind-address", o.HealthProbeBindAddress),
		flags.CheckAddress("alert-bind-address", o.AlertBindAddress),
		o.Metrics.Validate(),
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"agent-lease-duration", o.AgentLeaseDuration, time.Second},
		{"agent-check-interval", o.AgentCheckInterval, 100 * time.Millisecond},
		{"diagnosis-ttl", o.DiagnosisTTL, 0},
		{"minimum-diagnosis-ttl-duration", o.DiagnosisMinimumTTL, 0},
		{"retention-interval", o.RetentionInterval, 100 * time.Millisecond},
	} {
		if d.value < d.least {
			errs = append(errs, flags.Invalid(d.flag, d.value, fmt.Sprintf("must be at least %s", d.least)))
		}
	}
	if (o.AlertCertFile == "") != (o.AlertKeyFile == "") {
		errs = append(errs, flags.Invalid("alert-tls-cert-file", o.AlertCertFile, "must be set together with --alert-tls-key-file"))
	}
	if len(o.AlertAudiences) == 0 || slices.Contains(o.AlertAudiences, "") {
		errs = append(errs, flags.Invalid("alert-token-audiences", strings.Join(o.AlertAudiences, ","), "must name at least one audience, and no empty one"))
	}
	if o.DiagnosesPerNode < 0 {
		errs = append(errs, flags.Invalid("maximum-diagnoses-per-node", o.DiagnosesPerNode, "must not be negative"))
	}
	return errors.Join(errs...)
}
