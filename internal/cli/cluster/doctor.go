// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// level is how good a check's result is.
type level string

// Levels, the best first.
const (
	levelOK   level = "OK"
	levelWarn level = "WARN"
	levelFail level = "FAIL"
)

// checked is one result of a check: a line.
type checked struct {
	Level level `json:"level"`
	// Text says what is so, Advice what to do. It is empty for what is good.
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
	// unseen is set if the check could not look.
	unseen bool
}

func good(format string, args ...any) checked {
	return checked{Level: levelOK, Text: fmt.Sprintf(format, args...)}
}

func warn(advice, format string, args ...any) checked {
	return checked{Level: levelWarn, Text: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(advice, format string, args ...any) checked {
	return checked{Level: levelFail, Text: fmt.Sprintf(format, args...), Advice: advice}
}

// doctor looks at an installation.
type doctor struct {
	*client
	// home is the namespace of kubediag.
	home string
	now  time.Time
	out  *format
}

func newDoctorCommand(c *connection) *cobra.Command {
	d := &doctor{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation of kubediag, and the cluster for known risks",
		Long: "doctor checks that the CustomResourceDefinitions and the policies are there and of this release, what you may do, that the\n" +
			"manager and the agents work, which nodes have kernels and kubelets at risk, and what could be healed now.\n\n" +
			"Exit status: 0 no FAIL, 1 a FAIL, 2 it could not look.",
		Example: "  kubectl kubediag doctor",
		Args:    verb.NoArgs,
		RunE: verb.Named(func(cmd *cobra.Command, _ []string) error {
			var err error
			if d.client, err = c.client(); err != nil {
				return err
			}
			d.now = time.Now()
			return d.run(cmd)
		}),
	}
	cmd.Flags().StringVar(&d.home, "kubediag-namespace", "kubediag", "the namespace that kubediag is installed in")
	d.out = addFormat(cmd, inJSON)
	return cmd
}

func (d *doctor) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	results, err := d.server(ctx)
	if err != nil {
		return err
	}
	for _, check := range []func(context.Context) []checked{d.kinds, d.policies, d.sets, d.rights, d.manager, d.agents, d.nodes, d.faults} {
		results = append(results, check(ctx)...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := d.show(cmd, results); err != nil {
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

func (d *doctor) show(cmd *cobra.Command, results []checked) error {
	if *d.out == inJSON {
		return writeJSON(cmd.OutOrStdout(), map[string]any{"schemaVersion": 1, "checks": results})
	}
	s := screen(cmd)
	colours := map[level]terminal.Colour{levelOK: terminal.Green, levelWarn: terminal.Yellow, levelFail: terminal.Red}
	var b strings.Builder
	for _, r := range results {
		word := terminal.Pad(string(r.Level), 6)
		lines := s.Wrap(word, printable.Quoted(r.Text), len(word))
		b.WriteString(s.Paint(colours[r.Level], word) + strings.TrimPrefix(lines, word))
		if r.Advice != "" {
			b.WriteString(s.Wrap("      -> ", printable.Quoted(r.Advice), 9))
		}
	}
	return verb.Write(cmd.OutOrStdout(), s.Text(b.String()))
}

// unseen is the result of a check that could not look.
func unseen(what string, err error) checked {
	return checked{Level: levelWarn, Text: fmt.Sprintf("%s not looked at: %v", what, err), unseen: true}
}

// Versions of the API server that matter.
const (
	oldestServer    = 18 // of Kubernetes 1
	ruleServer      = 25 // checks the rules in the CustomResourceDefinitions
	policyServer    = 30 // has ValidatingAdmissionPolicies
	renewingKubelet = 19 // renews binds of subPaths by itself
)

// server asks for the version. Its error means that there is nothing to check.
func (d *doctor) server(ctx context.Context) ([]checked, error) {
	text, err := d.raw(ctx, "/version")
	if err != nil {
		return nil, err
	}
	var v version.Info
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("read version of the API server: %w", err)
	}
	switch minor := minorOf(v.GitVersion); {
	case minor < 0:
		return []checked{warn("", "API server %s", v.GitVersion)}, nil
	case minor < oldestServer:
		return []checked{fail("update Kubernetes", "API server %s: kubediag needs 1.%d", v.GitVersion, oldestServer)}, nil
	case minor < ruleServer:
		return []checked{warn("nothing has to be done: the manager and the agents check the same rules",
			"API server %s checks no rules of CustomResourceDefinitions, as 1.%d does", v.GitVersion, ruleServer)}, nil
	}
	return []checked{good("API server %s", v.GitVersion)}, nil
}
