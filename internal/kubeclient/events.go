// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
)

const (
	// MaxEventCharacters bounds the message of an Event. The API server takes 1,024 bytes, and people read less.
	MaxEventCharacters = 200
	// maxNextCharacters is how much of that may be a command.
	maxNextCharacters = 120
)

// EventMessage makes a text the message of an Event: one printable line of at most MaxEventCharacters. A text that does not
// fit is cut after a word, and rest, a command that shows all of it, follows.
func EventMessage(text, rest string) string {
	line := printable.Line(text)
	if utf8.RuneCountInString(line) <= MaxEventCharacters {
		return line
	}
	return withNext(line, rest)
}

// EventAdvice is EventMessage that ends with the command in any case.
func EventAdvice(text, next string) string { return withNext(printable.Line(text), next) }

// pathPattern matches an absolute path, with the quotes around it.
var pathPattern = regexp.MustCompile(`"/(?:[^"\\]|\\.)*"|(^|[\s(=])/[^\s:;,)]+`)

// WithoutPaths puts an ellipsis in the place of each path but those of devices: a path is too long for an Event. Statuses and logs
// have it.
func WithoutPaths(text string) string {
	return pathPattern.ReplaceAllStringFunc(text, func(path string) string {
		before, _, _ := strings.Cut(path, "/")
		if strings.HasPrefix(path[len(before):], "/dev/") {
			return path
		}
		return strings.TrimSuffix(before, `"`) + "…"
	})
}

// DiagnosisCommand is the command that shows all of a Diagnosis; of its namespace where the name is too long for a message.
func DiagnosisCommand(d *v1.Diagnosis) string { return getCommand("diag", d.Namespace, d.Name) }

// ApproveCommand is the command that shows the plan of a Diagnosis and approves it; DiagnosisCommand where the name is too long for a
// message.
func ApproveCommand(d *v1.Diagnosis) string {
	command := fmt.Sprintf("kubectl kubediag approve %s -n %s", d.Name, d.Namespace)
	if utf8.RuneCountInString(command) > maxNextCharacters {
		return DiagnosisCommand(d)
	}
	return command
}

// MountFaultCommand is the command that shows all of a MountFault; of its namespace where the name is too long for a message.
func MountFaultCommand(f *v1.MountFault) string { return getCommand("mf", f.Namespace, f.Name) }

func getCommand(kind, namespace, name string) string {
	command := fmt.Sprintf("kubectl get %s -n %s %s -o yaml", kind, namespace, name)
	if utf8.RuneCountInString(command) > maxNextCharacters {
		return fmt.Sprintf("kubectl get %s -n %s", kind, namespace)
	}
	return command
}

func withNext(line, next string) string {
	line, cut := strings.TrimRight(line, ". "), "…"
	if next = printable.Line(next); next == "" || utf8.RuneCountInString(next) > maxNextCharacters {
		next = ""
	} else {
		next, cut = ". See: "+next, cut+" See: "+next
	}
	if utf8.RuneCountInString(line+next) <= MaxEventCharacters {
		return line + next
	}
	return shorten(line, MaxEventCharacters-utf8.RuneCountInString(cut)) + cut
}

// shorten cuts a line to a number of characters, after a word if there is one in its second half.
func shorten(line string, most int) string {
	runes := []rune(line)
	if len(runes) <= most {
		return line
	}
	for i := most; i > most/2; i-- {
		if runes[i] == ' ' {
			return strings.TrimRight(string(runes[:i]), " ,;:(")
		}
	}
	return string(runes[:most])
}
