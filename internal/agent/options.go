// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/scrape"
	"kubediag.org/kubediag/internal/sentinel"
)

// options are the settings of the agent. Each has a flag, and an environment variable of the flag's name in capitals
// with KUBEDIAG_ before it.
type options struct {
	// NodeName is the node that the agent runs on.
	NodeName string
	// PodUID is the UID of the agent's own pod. Empty outside a pod.
	PodUID types.UID
	// Namespace is where the agent's Lease lives.
	Namespace string
	// DataRoot is the directory for journals and full results.
	DataRoot string
	// KubeletRoot is the kubelet's root directory on the host. Empty: the running kubelet is asked.
	KubeletRoot string
	// KubeletPID is the process id of the kubelet. 0: the kubelet is looked for.
	KubeletPID int
	// SentinelMode is for faults without a Diagnosis.
	SentinelMode sentinel.Mode
	// EnableScripts lets Operations run scripts.
	EnableScripts bool
	// AllowEviction lets podEvictRecover evict pods, which also takes the right to.
	AllowEviction bool
	// ProcessorCAFile holds certificates of authorities that external processors may present, in addition to the
	// system's.
	ProcessorCAFile string
	// MetricsBindAddress and HealthProbeBindAddress are TCP addresses; "0" turns them off.
	MetricsBindAddress, HealthProbeBindAddress string
	// Metrics says who may read the metrics.
	Metrics scrape.Protection
	// OrphanMinimumAge is how long a pod's directory must be unchanged before the pod counts as gone.
	OrphanMinimumAge time.Duration
	// DiagnosisTimeout bounds a Diagnosis that has no deadline of its own.
	DiagnosisTimeout time.Duration
	// Workers is how many Diagnoses run at once.
	Workers int
	// LeaseRenewal is how often the Lease is renewed, LeaseDuration for how long a renewal counts.
	LeaseRenewal, LeaseDuration time.Duration
}

// validate checks the settings. Every error names the flag and the value.
func (o *options) validate() error {
	var errs []error
	refuse := func(refused bool, flag string, value any, why string) {
		if refused {
			errs = append(errs, flags.Invalid(flag, value, why))
		}
	}
	if o.NodeName == "" {
		errs = append(errs, errors.New("--node-name (or NODE_NAME) must be set"))
	} else if problems := validation.IsDNS1123Subdomain(o.NodeName); len(problems) > 0 {
		errs = append(errs, flags.Invalid("node-name", o.NodeName, problems[0]))
	}
	errs = append(errs, flags.CheckNamespace(o.Namespace))
	for _, p := range []struct {
		flag, value string
		required    bool
	}{
		{"data-root", o.DataRoot, true},
		{"kubelet-root", o.KubeletRoot, false},
		{"processor-ca-file", o.ProcessorCAFile, false},
	} {
		refuse((p.value != "" || p.required) && (!filepath.IsAbs(p.value) || filepath.Clean(p.value) != p.value),
			p.flag, p.value, "must be an absolute path without . and .. in it")
	}
	errs = append(errs, flags.CheckAddress("metrics-bind-address", o.MetricsBindAddress),
		flags.CheckAddress("health-probe-bind-address", o.HealthProbeBindAddress), o.Metrics.Validate())
	refuse(o.Workers < 1 || o.Workers > 64, "workers", o.Workers, "must be between 1 and 64")
	refuse(o.KubeletPID < 0, "kubelet-pid", o.KubeletPID, "must not be negative")
	refuse(o.DiagnosisTimeout < time.Second || o.DiagnosisTimeout > 24*time.Hour, "diagnosis-timeout", o.DiagnosisTimeout, "must be between 1s and 24h")
	if err := orphan.CheckMinimumAge(o.OrphanMinimumAge); err != nil {
		errs = append(errs, flags.Invalid("orphan-minimum-age", o.OrphanMinimumAge, err.Error()))
	}
	refuse(o.LeaseRenewal < time.Second, "lease-renewal", o.LeaseRenewal, "must be at least 1s")
	refuse(o.LeaseDuration < 2*o.LeaseRenewal || o.LeaseDuration > time.Hour,
		"lease-duration", o.LeaseDuration, "must be at least twice --lease-renewal, and 1h at most")
	return errors.Join(errs...)
}
