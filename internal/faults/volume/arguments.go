// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// CommandLinesJob reads the arguments of a process that serves a file system. Main programs, and tests, hand it to
// subprocess.Main.
var CommandLinesJob = subprocess.Job{Name: "process-arguments", Run: runCommandLines}

// commandLinesDeadline is how long the arguments of processes may take to read.
const commandLinesDeadline = time.Second

// runCommandLines is the job.
func runCommandLines(_ context.Context, in []byte, emit func(v any) error) error {
	var pid int
	if err := json.Unmarshal(in, &pid); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	text, err := sys.ReadProcHead(strconv.Itoa(pid)+"/cmdline", nil)
	if err != nil {
		return err
	}
	return emit(text)
}
