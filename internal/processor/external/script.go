// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
)

const (
	maxOutput = 1 << 20 // bytes of each of output and error
	maxTail   = 1 << 10 // bytes of error output in a message
	// outputGrace is the time for which a script's children may hold its output after they have been killed.
	outputGrace = 2 * time.Second
)

// Enter runs fn in the mount namespace where scripts run; processes that fn starts are born there.
type Enter func(fn func() error) error

// scriptProcessor runs the script of an Operation on the node, with the node's own /bin/sh.
//
// The text of a script and its arguments go to the shell as separate arguments, and no file is written. A
// script has a clean environment, no input, bounded output and bounded time. When it ends, or its time is up, every
// process of its group is killed. A process that left the group, as with setsid(1), is out of reach. The caller decides
// who may run scripts.
type scriptProcessor struct {
	// Operation is the name of the Operation. It is argument 0 of the script.
	Operation string
	// Text is the script for /bin/sh.
	Text string
	// ArgKeys name the values of the request that become arguments 1 and up. One without a value is an empty argument.
	ArgKeys []string
	// ResultKey names the results operation.<key>.output and operation.<key>.error.
	ResultKey string
	// Enter is nil if the script runs in the caller's own mount namespace.
	Enter Enter
}

// Name returns the name of the Operation.
func (s *scriptProcessor) Name() string { return s.Operation }

// Run runs the script. A script that exits with 0 has succeeded. When ctx is done the script's process group is killed.
func (s *scriptProcessor) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	var stdout, stderr cappedOutput
	data := r.Data()
	args := []string{"-c", s.Text, s.Operation}
	for _, key := range s.ArgKeys {
		args = append(args, data[key])
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Dir = "/"
	cmd.Env = scriptEnvironment(data)
	cmd.SysProcAttr = sys.OwnProcessGroup()
	cmd.Cancel = func() error { return sys.KillGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputGrace
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := cmd.Start
	if s.Enter != nil { // only the birth of the script happens there
		start = func() error { return s.Enter(cmd.Start) }
	}
	if err := start(); err != nil {
		return processor.Result{}, fmt.Errorf("start script of operation %q: %w", s.Operation, err)
	}
	err := cmd.Wait()
	// Processes that the script left in the background end with it.
	if killErr := sys.KillGroup(cmd.Process.Pid); killErr != nil && err == nil {
		err = killErr
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		tail := stderr.keptBytes[max(0, len(stderr.keptBytes)-maxTail):]
		if text := strings.TrimSpace(strings.ToValidUTF8(string(tail), string(utf8.RuneError))); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return processor.Result{}, fmt.Errorf("run script of operation %q: %w", s.Operation, err)
	}
	return processor.Result{Values: map[string]string{
		"operation." + s.ResultKey + ".output": stdout.String(),
		"operation." + s.ResultKey + ".error":  stderr.String(),
	}}, nil
}

// scriptEnvironment is the whole environment of a script: a search path, and the data of its Diagnosis.
func scriptEnvironment(data map[string]string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C"}
	for _, key := range []string{
		processor.KeyDiagnosisUID, processor.KeyDiagnosisNamespace, processor.KeyDiagnosisName,
		processor.KeyPodNamespace, processor.KeyPodName, processor.KeyContainer, processor.KeyNode,
	} {
		name := "KUBEDIAG_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		env = append(env, name+"="+data[key])
	}
	return env
}
