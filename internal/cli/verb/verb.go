// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package verb has the common parts of the verbs of both programs, kubediag and kubectl kubediag: arguments and their
// completion, exit statuses, and the words of reports. It asks neither a node nor a server.
package verb

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

var (
	// ErrFaults is how a verb ends that has looked and found faults. The verb has written them by then.
	ErrFaults = errors.New("faults found")
	// ErrRefused is the error of a verb that could do its work, and must not.
	ErrRefused = errors.New("refused")
	// ErrInterrupted is how a verb ends that was ended by a signal before it was through. How that showed says nothing to
	// the user.
	ErrInterrupted = errors.New("interrupted")
)

// MountProc is the remedy if there is no process file system.
const MountProc = "mount it: mount -t proc proc /proc"

// Interruptible has a verb end with ErrInterrupted whose errors may all come of a signal.
func Interruptible(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err != nil && cmd.Context().Err() != nil && !errors.Is(err, ErrFaults) {
			return ErrInterrupted
		}
		return err
	}
}

// Takes has a verb take one argument, which its help calls name, or none if that is enough.
func Takes(name string, least int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing, see %s --help", name, cmd.CommandPath())
		case len(args) > 1:
			return fmt.Errorf("one %s at a time, not %d: %q", name, len(args), args)
		}
		return nil
	}
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("takes no arguments, not %q, see %s --help", args, cmd.CommandPath())
}

// Write writes a text.
func Write(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
