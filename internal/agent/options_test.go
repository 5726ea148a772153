// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/sentinel"
)

// parseOptions reads flags and an environment the way the command does.
func parseOptions(t *testing.T, args []string, env map[string]string) (options, error) {
	t.Helper()
	var o options
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(args); err != nil {
		return o, err
	}
	_, err := flags.FromEnv(f, podEnv, func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	})
	return o, err
}

func TestEveryFlagHasATwin(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"KUBEDIAG_NODE_NAME": "n1", "KUBEDIAG_POD_UID": "u", "KUBEDIAG_NAMESPACE": "ns", "KUBEDIAG_DATA_ROOT": "/d",
		"KUBEDIAG_KUBELET_ROOT": "/k", "KUBEDIAG_KUBELET_PID": "7", "KUBEDIAG_ENABLE_SCRIPTS": "true",
		"KUBEDIAG_PROCESSOR_CA_FILE": "/ca", "KUBEDIAG_METRICS_BIND_ADDRESS": ":2", "KUBEDIAG_HEALTH_PROBE_BIND_ADDRESS": ":3",
		"KUBEDIAG_DIAGNOSIS_TIMEOUT": "1m", "KUBEDIAG_WORKERS": "9", "KUBEDIAG_LEASE_RENEWAL": "1s", "KUBEDIAG_LEASE_DURATION": "4s",
		"KUBEDIAG_SENTINEL_MODE": "Automatic", "KUBEDIAG_ORPHAN_MINIMUM_AGE": "6m",
		"KUBEDIAG_ALLOW_EVICTION": "true",
	}
	got, err := parseOptions(t, nil, env)
	must(t, err)
	want := options{
		NodeName: "n1", PodUID: "u", Namespace: "ns", DataRoot: "/d", KubeletRoot: "/k", KubeletPID: 7, EnableScripts: true,
		ProcessorCAFile: "/ca", MetricsBindAddress: ":2", HealthProbeBindAddress: ":3", DiagnosisTimeout: 60e9, Workers: 9, LeaseRenewal: 1e9, LeaseDuration: 4e9,
		SentinelMode: sentinel.Automatic, OrphanMinimumAge: 360e9, AllowEviction: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := got.validate(); err != nil {
		t.Error(err)
	}
}

func TestSentinelModes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]sentinel.Mode{
		"": sentinel.Observe, "--sentinel-mode=Off": sentinel.Off, "--sentinel-mode=Observe": sentinel.Observe,
		"--sentinel-mode=Automatic": sentinel.Automatic,
	} {
		if o, err := parseOptions(t, strings.Fields(args), nil); err != nil || o.SentinelMode != want {
			t.Errorf("%q: mode %q, error %v, want %q", args, o.SentinelMode, err, want)
		}
	}
	for _, value := range []string{"", "on", "off", "Approve"} {
		_, err := parseOptions(t, []string{"--sentinel-mode=" + value}, nil)
		if err == nil || !strings.Contains(err.Error(), "--sentinel-mode") || !strings.Contains(err.Error(), strconv.Quote(value)) {
			t.Errorf("%q: error %v, want one that names flag and value", value, err)
		}
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--node-name=":                     "--node-name (or NODE_NAME) must be set",
		"--node-name=a/b":                  "--node-name=a/b: ",
		"--namespace=":                     "--namespace (or POD_NAMESPACE) must be set",
		"--namespace=a.b":                  "--namespace=a.b: ",
		"--data-root=":                     "--data-root=: must be an absolute path",
		"--data-root=data":                 "--data-root=data: must be an absolute path",
		"--kubelet-root=/a/../b":           "--kubelet-root=/a/../b: must be an absolute path",
		"--processor-ca-file=ca":           "--processor-ca-file=ca: must be an absolute path",
		"--metrics-bind-address=":          "--metrics-bind-address=: must be host:port",
		"--metrics-bind-address=:99999":    "--metrics-bind-address=:99999: must be host:port",
		"--health-probe-bind-address=8081": "--health-probe-bind-address=8081: must be host:port",
		"--kubelet-pid=-1":                 "--kubelet-pid=-1: must not be negative",
		"--workers=0":                      "--workers=0: must be between 1 and 64",
		"--diagnosis-timeout=0s":           "--diagnosis-timeout=0s: must be between 1s and 24h",
		"--diagnosis-timeout=25h":          "--diagnosis-timeout=25h0m0s: must be between 1s and 24h",
		"--orphan-minimum-age=0s":          "--orphan-minimum-age=0s: must be between 5m and 720h",
		"--orphan-minimum-age=4m59s":       "--orphan-minimum-age=4m59s: must be between 5m and 720h",
		"--orphan-minimum-age=721h":        "--orphan-minimum-age=721h0m0s: must be between 5m and 720h",
		"--lease-renewal=1ms":              "--lease-renewal=1ms: must be at least 1s",
		"--lease-duration=15s":             "--lease-duration=15s: must be at least twice --lease-renewal",
	} {
		t.Run(arg, func(t *testing.T) {
			t.Parallel()
			o, err := parseOptions(t, []string{"--node-name=n1", "--namespace=kubediag", arg}, nil)
			must(t, err)
			if err := o.validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	o, err := parseOptions(t, nil, map[string]string{"NODE_NAME": "n1", "POD_NAMESPACE": "kubediag", "POD_UID": "u"})
	must(t, err)
	if err := o.validate(); err != nil || o.NodeName != "n1" || o.AllowEviction {
		t.Errorf("node %q, evictions %v: %v", o.NodeName, o.AllowEviction, err)
	}
}

func TestCommandRefusesWrongFlags(t *testing.T) {
	cmd := NewCommand()
	cmd.SetArgs([]string{"--node-name=n1", "--namespace=kubediag", "--workers=0"})
	if err := cmd.Execute(); err == nil || err.Error() != "--workers=0: must be between 1 and 64" {
		t.Errorf("error %v", err)
	}
}
