// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// checkLevel is how good a check's result is.
type checkLevel string

// Levels, the best first.
const (
	levelOK   checkLevel = "OK"
	levelWarn checkLevel = "WARN"
	levelFail checkLevel = "FAIL"
)

// checkResult is one result of a check: a line.
type checkResult struct {
	Level checkLevel `json:"level"`
	// Text is the result, Advice the next step. Advice is empty for a good result.
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
	// unseen is set if the check could not look.
	unseen bool
}

func okResult(format string, args ...any) checkResult {
	return checkResult{Level: levelOK, Text: fmt.Sprintf(format, args...)}
}

func warnResult(advice, format string, args ...any) checkResult {
	return checkResult{Level: levelWarn, Text: fmt.Sprintf(format, args...), Advice: advice}
}

func failResult(advice, format string, args ...any) checkResult {
	return checkResult{Level: levelFail, Text: fmt.Sprintf(format, args...), Advice: advice}
}

// installationCheck looks at an installation.
type installationCheck struct {
	api *client
	// home is the namespace of kubediag.
	home string
	now  time.Time
	out  *verb.Format
	// absent is set if the API server has no kind of kubediag, and helm is the release that has installed it, or nil.
	absent bool
	helm   *helmRelease
}

func newDoctorCommand(conn *connection) *cobra.Command {
	d := &installationCheck{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation of kubediag, and the cluster for known risks",
		Long: "doctor checks that the CustomResourceDefinitions and the policies are there and of this release, what you may do, that the\n" +
			"manager and the agents work, which nodes have kernels and kubelets at risk, and what could be healed now.\n\n" +
			"Exit status: 0 no FAIL, 1 a FAIL, 2 it could not look.",
		Example: "  kubectl kubediag doctor",
		Args:    verb.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if d.api, err = conn.newClient(); err != nil {
				return err
			}
			d.now = time.Now()
			return d.runDoctor(cmd)
		},
	}
	cmd.Flags().StringVar(&d.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	d.out = addFormat(cmd, verb.JSON)
	return cmd
}

func (k *installationCheck) runDoctor(cmd *cobra.Command) error {
	results, err := k.check(cmd.Context())
	if err != nil {
		return err
	}
	text := func(s terminal.Screen) string { return resultsText(s, results) }
	if err := render.Write(cmd.OutOrStdout(), *k.out, map[string]any{"schemaVersion": 1, "checks": results}, text); err != nil {
		return err
	}
	var blind error
	for _, r := range results {
		if r.Level == levelFail {
			return verb.ErrFaults
		}
		if r.unseen {
			blind = errors.New("some checks could not look")
		}
	}
	return blind
}

// check makes all checks.
func (k *installationCheck) check(ctx context.Context) ([]checkResult, error) {
	results, err := k.checkServer(ctx)
	if err != nil {
		return nil, err
	}
	kinds := k.checkKinds(ctx)
	if k.absent { // there is nothing else to check
		return append(kinds, results...), nil
	}
	results = append(results, kinds...)
	for _, check := range []func(context.Context) []checkResult{k.checkPolicies, k.checkOperationSets,
		k.checkRights, k.checkManager, k.checkAgents, k.checkNodes, k.checkFaults} {
		results = append(results, check(ctx)...)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return results, nil
}

func resultsText(screen terminal.Screen, results []checkResult) string {
	colours := map[checkLevel]terminal.Colour{levelOK: terminal.Green, levelWarn: terminal.Yellow, levelFail: terminal.Red}
	var b strings.Builder
	for _, r := range results {
		b.WriteString(screen.Marked("", terminal.Pad(string(r.Level), 5), colours[r.Level], r.Text))
		if r.Advice != "" {
			b.WriteString(screen.Wrap("      -> ", printable.Quoted(r.Advice), 9))
		}
	}
	return screen.Text(b.String())
}

// uncheckedResult is the result of a check that could not look.
func uncheckedResult(what string, err error) checkResult {
	return checkResult{Level: levelWarn, Text: fmt.Sprintf("%s not looked at: %v", what, err), unseen: true}
}

// Versions of the API server that matter.
const (
	oldestServerMinor     = 18 // of Kubernetes 1
	ruleServerMinor       = 25 // checks the rules in the CustomResourceDefinitions
	policyServerMinor     = 30 // has ValidatingAdmissionPolicies
	replacingKubeletMinor = 19 // renews binds of subPaths by itself
)

// checkServer asks for the version. Its error means that there is nothing to check.
func (k *installationCheck) checkServer(ctx context.Context) ([]checkResult, error) {
	asked, err := discovery.NewDiscoveryClientForConfigAndClient(k.api.config, k.api.http)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	ctx, cancel := k.api.limit(ctx)
	defer cancel()
	v, err := asked.ServerVersionWithContext(ctx)
	if err != nil {
		return nil, k.api.requestError(requestAction{"get", schema.GroupResource{Resource: "/version"}, ctrlclient.ObjectKey{}}, err)
	}
	switch minor := minorVersion(v.GitVersion); {
	case minor < 0:
		return []checkResult{warnResult("", "API server %s", v.GitVersion)}, nil
	case minor < oldestServerMinor:
		return []checkResult{failResult("update Kubernetes", "API server %s: kubediag needs 1.%d", v.GitVersion, oldestServerMinor)}, nil
	case minor < ruleServerMinor:
		return []checkResult{warnResult("nothing has to be done: the manager and the agents check the same rules",
			"API server %s checks no rules of CustomResourceDefinitions, as 1.%d does", v.GitVersion, ruleServerMinor)}, nil
	}
	return []checkResult{okResult("API server %s", v.GitVersion)}, nil
}
