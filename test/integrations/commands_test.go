// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/cli"
	"kubediag.org/kubediag/internal/cli/cluster"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// dir has the files.
const dir = "../../config/integrations/"

// readOnly are the verbs that change nothing: a program that calls one by itself does no harm.
var readOnly = []string{"bundle", "doctor", "explain", "faults", "features", "get", "holders", "report", "scan", "show", "status", "version"}

// checkCall fails the test unless a command has the verb, the flags and the number of arguments of a call, and changes nothing.
func checkCall(t *testing.T, root *cobra.Command, call []string) {
	t.Helper()
	cmd, rest, err := root.Find(call)
	if err != nil || !slices.Contains(readOnly, cmd.Name()) {
		t.Errorf("%q: the verb is %q, with error %v", call, cmd.Name(), err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%q: %v", call, err)
		return
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", call, err)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(dir + name)
	must(t, err)
	return text
}

// TestToolsOfHolmesGPT holds that the fields are those of a toolset, and that the plugin knows each command.
func TestToolsOfHolmesGPT(t *testing.T) {
	t.Parallel()
	type command struct {
		Command string `json:"command"`
	}
	var file struct {
		Toolsets map[string]struct {
			Description   string    `json:"description"`
			Enabled       bool      `json:"enabled"`
			Tags          []string  `json:"tags"`
			Prerequisites []command `json:"prerequisites"`
			Tools         []struct {
				command
				Name        string `json:"name"`
				Description string `json:"description"`
			} `json:"tools"`
		} `json:"toolsets"`
	}
	must(t, yaml.UnmarshalStrict(readFile(t, "holmesgpt.yaml"), &file))
	parameter := regexp.MustCompile(`\{\{ [a-z_]+ \}\}`)
	calls := 0
	for _, set := range file.Toolsets {
		commands := slices.Clone(set.Prerequisites)
		for _, tool := range set.Tools {
			commands = append(commands, tool.command)
		}
		for _, c := range commands {
			line, _, _ := strings.Cut(c.Command, " || ")
			words, ours := strings.CutPrefix(parameter.ReplaceAllString(line, "HungMount"), "kubectl kubediag ")
			if !ours {
				t.Errorf("%q is no command of the plugin", c.Command)
			}
			args := strings.Fields(words)
			checkCall(t, cluster.NewCommand("kubectl-kubediag", args), args)
			calls++
		}
	}
	if calls < 6 {
		t.Errorf("the file has %d commands", calls)
	}
}

// TestCallsOfSupportTools holds that kubediag knows each command that troubleshoot.sh and sos collect.
func TestCallsOfSupportTools(t *testing.T) {
	t.Parallel()
	var calls [][]string
	for _, m := range regexp.MustCompile(`(?m)command: \[?/?kubediag\]?\n\s+args: \[(.*)\]`).FindAllSubmatch(readFile(t, "troubleshoot.yaml"), -1) {
		calls = append(calls, strings.Split(string(m[1]), ", "))
	}
	for _, m := range regexp.MustCompile(`'kubediag ([^']+)'`).FindAllSubmatch(readFile(t, "sos/kubediag.py"), -1) {
		calls = append(calls, strings.Fields(string(m[1])))
	}
	if len(calls) != 7 {
		t.Errorf("the files have %d calls: %q", len(calls), calls)
	}
	for _, call := range calls {
		checkCall(t, cli.NewCommand(), call)
	}
}

var must = kerneltest.Must
