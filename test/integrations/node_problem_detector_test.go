// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli"
	"kubediag.org/kubediag/internal/fault"
)

// TestPluginOfNodeProblemDetector runs the plugin with a program in the place of kubediag that answers as a scan does.
func TestPluginOfNodeProblemDetector(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second string // line and status of the scans
		status        int
		line          string
		scans         int
	}{
		"clean":              {"no fault: 3 pods, 1 subPath bind, 2 volumes 0", "", 0, "no fault: 3 pods, 1 subPath bind, 2 volumes", 1},
		"a fault that lasts": {"1 fault: HungMount ml/trainer-0 1", "1 fault: HungMount ml/trainer-0 1", 1, "1 fault: HungMount ml/trainer-0", 2},
		"a fault that goes":  {"1 fault: HungMount ml/trainer-0 1", "no fault: 3 pods 0", 0, "no fault: 3 pods", 2},
		"not looked":         {"no fault seen, but not everything was looked at 2", "", 2, "no fault seen, but not everything was looked at", 1},
		"no kubelet":         {"no kubelet runs 1", "no kubelet runs 1", 2, "no kubelet runs", 2},
		"no kubelet, and a fault": {"no kubelet runs; 1 fault: HungMount a/b 1", "no kubelet runs; 1 fault: HungMount a/b 1", 1,
			"no kubelet runs; 1 fault: HungMount a/b", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := t.TempDir()
			program, log := filepath.Join(at, "kubediag"), filepath.Join(at, "log")
			script := "#!/bin/sh\necho \"$@\" >>" + log + "\nanswer='" + c.first + "'\n[ $(wc -l <" + log + ") = 1 ] || answer='" + c.second + "'\n" +
				"echo \"${answer% *}\"\nexit \"${answer##* }\"\n"
			must(t, os.WriteFile(program, []byte(script), 0o700))
			plugin := exec.Command("/bin/sh", dir+"node-problem-detector.sh")
			plugin.Env = append(os.Environ(), "KUBEDIAG="+program, "KUBEDIAG_LASTS=0")
			out, err := plugin.Output()
			status := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				status = exit.ExitCode()
			}
			calls, _ := os.ReadFile(log)
			want := fmt.Sprintf("status %d, %q, %d scans", c.status, c.line+"\n", c.scans)
			if got := fmt.Sprintf("status %d, %q, %d scans", status, out, strings.Count(string(calls), "\n")); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			line, _, _ := strings.Cut(string(calls), "\n")
			checkCall(t, cli.NewCommand(), strings.Fields(line))
		})
	}
}

// TestConditionOfNodeProblemDetector holds that the condition is only of faults that kubediag does not heal, and that its rule has the time
// for two scans.
func TestConditionOfNodeProblemDetector(t *testing.T) {
	t.Parallel()
	only := regexp.MustCompile(`--only=([A-Za-z,]+)`).FindSubmatch(readFile(t, "node-problem-detector.sh"))
	if only == nil {
		t.Fatal("the plugin looks for every fault")
	}
	for code := range strings.SplitSeq(string(only[1]), ",") {
		if entry, known := fault.Known().Lookup(fault.Code(code)); !known || !strings.HasPrefix(entry.Repair, "none: ") && !strings.HasPrefix(entry.Repair, "none ") {
			t.Errorf("%s is healed: %q", code, entry.Repair)
		}
	}
	var config struct {
		PluginConfig struct {
			Timeout   string `json:"timeout"`
			MaxOutput int    `json:"max_output_length"`
		} `json:"pluginConfig"`
		Conditions []struct{ Type string }
		Rules      []struct{ Type, Condition, Timeout string }
	}
	must(t, json.Unmarshal(readFile(t, "node-problem-detector.json"), &config))
	limit, err := time.ParseDuration(config.PluginConfig.Timeout)
	if err != nil || limit < 2*time.Minute || config.PluginConfig.MaxOutput != 80 {
		t.Errorf("configuration %+v: %v", config.PluginConfig, err)
	}
	for _, r := range config.Rules {
		if r.Type != "permanent" || len(config.Conditions) != 1 || r.Condition != config.Conditions[0].Type || r.Timeout != config.PluginConfig.Timeout {
			t.Errorf("rule %+v of the conditions %+v", r, config.Conditions)
		}
	}
}
