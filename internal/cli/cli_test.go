// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/cluster"
	"kubediag.org/kubediag/internal/cli/verb"
)

// run returns the exit status and the output, on a machine that seems to have no kubelet even if it has one.
func run(t *testing.T, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newCommand(t.TempDir())
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	status = verb.Run(t.Context(), cmd)
	return status, out.String(), errs.String()
}

func TestWhatCannotBeDoneIsSaidAndHasAStatusOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	loop := filepath.Join(dir, "loop")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	holders := func(args ...string) []string { return append([]string{"holders", "--kubelet-root", dir}, args...) }
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"unknown verb":             {args: []string{"scna"}, want: "unknown command \"scna\" for \"kubediag\"\n\nDid you mean this?\n  scan\n"},
		"help on what is nothing":  {args: []string{"help", "nope"}, want: `help: unknown command "nope"`},
		"shell that is none":       {args: []string{"completion", "nope"}, want: `unknown command "nope"`},
		"probe of nothing":         {args: []string{"probe"}, want: "probe: PATH is missing, see kubediag probe --help"},
		"probe of two":             {args: []string{"probe", "a", "b"}, want: `probe: one PATH at a time, not 2: ["a" "b"]`},
		"unknown flag":             {args: []string{"scan", "--fast"}, want: "kubediag: scan: unknown flag: --fast, see kubediag scan --help\n"},
		"interval of a watch":      {args: []string{"scan", "--watch", "5s"}, want: `scan: takes no arguments, not ["5s"]: type --watch=5s`},
		"code that is several":     {args: []string{"scan", "--only", "Stale"}, want: `--only="Stale": may be any of StaleFileHandle, StaleSubPath`},
		"file to decode":           {args: []string{"decode", "cli_test.go"}, want: `decode: takes TEXT, and "cli_test.go" is a file: type kubediag decode < cli_test.go`},
		"verb of the plugin":       {args: []string{"faults", "-A"}, want: "kubediag: faults: it asks the API server: type kubectl kubediag faults\n"},
		"argument":                 {args: []string{"scan", "web"}, want: `scan: takes no arguments, not ["web"], see kubediag scan --help`},
		"show of nothing":          {args: []string{"show"}, want: "show: N|NAME is missing, see kubediag show --help"},
		"explain of what is none":  {args: []string{"explain", "nope"}, want: `explain: "nope": is none of DeletedVolumeSource`},
		"value of a flag":          {args: []string{"scan", "--watch=x"}, want: "kubediag: scan: invalid argument \"x\" for \"--watch\" flag"},
		"format":                   {args: []string{"scan", "-o", "xml"}, want: `must be "text", "json" or "html"`},
		"format of features":       {args: []string{"features", "-o", "xml"}, want: `must be "text" or "json"`},
		"pid is no number":         {args: []string{"scan", "--kubelet-pid", "x"}, want: "--kubelet-pid"},
		"pid is negative":          {args: []string{"scan", "--kubelet-pid", "-1"}, want: "--kubelet-pid=-1: must not be negative"},
		"pid is nobody's":          {args: []string{"scan", "--kubelet-pid", "2147483647"}, want: "--kubelet-pid=2147483647"},
		"root is relative":         {args: []string{"scan", "--kubelet-root", "kubelet"}, want: `--kubelet-root="kubelet": must be an absolute path`},
		"root is not clean":        {args: []string{"scan", "--kubelet-root", "/x/../y"}, want: `--kubelet-root="/x/../y": must be an absolute path without . and ..`},
		"root is not there":        {args: []string{"scan", "--kubelet-root", dir + "/gone"}, want: "no such file or directory"},
		"root is no directory":     {args: []string{"scan", "--kubelet-root", file}, want: "not a directory"},
		"root is not a kubelet's":  {args: []string{"scan", "--kubelet-root", dir}, want: "/pods: no such file or directory"},
		"pods are not there":       {args: []string{"scan", "--pods", dir + "/gone"}, want: "(--pods): open"},
		"pods are a directory":     {args: []string{"scan", "--pods", dir}, want: "is a directory"},
		"pods are none":            {args: []string{"scan", "--pods", file}, want: "it is empty"},
		"pods are something else":  {args: []string{"scan", "--pods", "-"}, stdin: "kind: \"\\e[31m\"\napiVersion: v1", want: `kind: "\x1b[31m": must be`},
		"two devices":              {args: holders("sda", "sdb"), want: `holders: one DEVICE at a time, not 2: ["sda" "sdb"]`},
		"format of holders":        {args: holders("-o", "yaml"), want: `must be "text" or "json"`},
		"root of holders":          {args: []string{"holders", "--kubelet-root", "kubelet"}, want: "must be an absolute path"},
		"device is not there":      {args: holders("/dev/nosuch"), want: `nosuch": no such block device`},
		"device has no name":       {args: holders(""), want: "no path, name or number given"},
		"number is nobody's":       {args: holders("4095:1048575"), want: "no such block device"},
		"number is none":           {args: holders("7:x"), want: `"7:x": want major:minor`},
		"number is too large":      {args: holders("7:1048576"), want: "minor above 1048575"},
		"device is a loop":         {args: holders(loop), want: "too many levels of symbolic links"},
		"file system is not there": {args: holders("0:0"), want: "no such block device"},
		"path is relative":         {args: holders("./x"), want: "has a slash"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := run(t, c.stdin, c.args...)
			if status != verb.StatusFailed || stdout != "" {
				t.Errorf("status %d, output %q, want status %d and none", status, stdout, verb.StatusFailed)
			}
			if !strings.HasPrefix(stderr, "kubediag: ") || !strings.Contains(stderr, c.want) {
				t.Errorf("error %q, want one that speaks of %q", stderr, c.want)
			}
		})
	}
}

func TestVersionIsForProgramsToo(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := run(t, "", "version", "-o", "json")
	var info map[string]string
	if err := json.Unmarshal([]byte(stdout), &info); err != nil || status != verb.StatusDone || stderr != "" {
		t.Fatalf("status %d, output %q, error %q: %v", status, stdout, stderr, err)
	}
	for _, field := range []string{"version", "go", "platform"} {
		if info[field] == "" {
			t.Errorf("%q has no %s", stdout, field)
		}
	}
	if status, stdout, stderr = run(t, "", "version", "-o", "yaml"); status != verb.StatusFailed || !strings.Contains(stderr, `must be "text" or "json"`) {
		t.Errorf("-o yaml: status %d, output %q, error %q", status, stdout, stderr)
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"version", "--version", "features", "help", "help probe", "completion", "completion bash", "explain", "explain hung", "explain HungMount --lang zh"} {
		if status, stdout, stderr := run(t, "", strings.Fields(line)...); status != verb.StatusDone || stdout == "" || stderr != "" {
			t.Errorf("%s: status %d, output %q, error %q", line, status, stdout, stderr)
		}
	}
	for _, c := range []struct {
		ends   error
		status int
		said   string
	}{
		{verb.ErrFaults, verb.StatusFaults, ""}, {fmt.Errorf("show: %w: it is not yours", verb.ErrRefused), verb.StatusRefused, "kubediag: show: refused: it is not yours\n"},
	} {
		var errs bytes.Buffer
		cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return c.ends }}
		cmd.SetArgs(nil)
		cmd.SetErr(&errs)
		if status := verb.Run(t.Context(), cmd); status != c.status || errs.String() != c.said {
			t.Errorf("%v: status %d, error %q, want %d", c.ends, status, &errs, c.status)
		}
	}
}

// TestAShellCompletes values of flags and arguments.
func TestAShellCompletes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"scan --output ": "text\njson\n", "scan --only HungMount,Stale": "HungMount,StaleSubPath\n", "explain Hu": "HungMount\t",
		"explain hung --lang ": "en\nzh\n", "holders /dev/": ":4\n", "show 1 ": ":4\n", "sc": "scan\t",
	} {
		status, stdout, _ := run(t, "", append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if status != verb.StatusDone || !strings.Contains(stdout, want) {
			t.Errorf("%q: status %d, %q, want %q in it", args, status, stdout, want)
		}
	}
}

func TestOldKernelIsWarnedOf(t *testing.T) {
	t.Parallel()
	want := "Linux 4.19.0-26-amd64 is older than 5.10, the oldest that kubediag is tested on; kubediag features shows what works here"
	if got := kernelWarning("4.19.0-26-amd64"); got != want {
		t.Errorf("warning %q, want %q", got, want)
	}
	if got := kernelWarning("5.10.0-46-cloud-amd64"); got != "" {
		t.Errorf("warning %q of the oldest kernel that is tested", got)
	}
}

// TestVerbsOfThePlugin: each that this program does not have says who has it.
func TestVerbsOfThePlugin(t *testing.T) {
	t.Parallel()
	root, plugin := newCommand(""), cluster.NewCommand(cluster.Name, nil)
	for _, cmd := range plugin.Commands() {
		own, _, err := root.Find([]string{cmd.Name()})
		if err != nil || own.Hidden != slices.Contains(pluginVerbs, cmd.Name()) {
			t.Errorf("%s: %v, %v", cmd.Name(), own.Name(), err)
		}
	}
	for _, name := range pluginVerbs {
		if own, _, err := plugin.Find([]string{name}); err != nil || own == plugin {
			t.Errorf("the plugin has no verb %s: %v", name, err)
		}
	}
}

// withoutScreen says of verbs why no screen of theirs grows with the faults. All others have golden screens.
var withoutScreen = map[string]string{
	"explain": "it has the pages of the runbook", "version": "it writes two lines", "demo": "a test of its own has each of its lines",
}

// TestEachVerbHasScreens: a verb that is new is in the test of the screens of package node, too.
func TestEachVerbHasScreens(t *testing.T) {
	t.Parallel()
	for _, cmd := range NewCommand().Commands() {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		screens, err := filepath.Glob("node/testdata/screen-" + cmd.Name() + ".*")
		if err != nil {
			t.Fatal(err)
		}
		if reason := withoutScreen[cmd.Name()]; (reason == "") != (len(screens) == 4) {
			t.Errorf("%s has the screens %q, and is said to need none because %q", cmd.Name(), screens, reason)
		}
	}
}
