// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// programName is how the user's shell calls this program, and gets its rights.
type programName struct {
	name string // with a directory if the shell needs it; empty: kubediag
	sudo bool
}

// thisProgram goes by how this process was called.
func thisProgram() programName {
	p := programName{sudo: os.Getenv("SUDO_USER") != ""}
	if strings.Contains(os.Args[0], "/") {
		p.name = fault.Quote(os.Args[0])
	}
	return p
}

// commandLine is a command for root as the user's shell takes it. kubectl needs no root.
func (p programName) commandLine(command string) string {
	if strings.HasPrefix(command, "kubectl ") {
		return command
	}
	if rest, ok := strings.CutPrefix(command, "kubediag "); ok && p.name != "" {
		command = p.name + " " + rest
	}
	if p.sudo {
		command = "sudo " + command
	}
	return command
}
