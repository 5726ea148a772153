// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// shells are those in which a person may paste a line.
var shells = [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}}

// printed are the programs of printed lines. nsenter is followed by a program that the node has.
var (
	printed        = []string{"kubediag", "kubectl", "umount", "find", "ps", "kill", "dmesg", "sh", "nsenter", "grep", "stat"}
	printedEntered = []string{"umount", "find", "grep", "stat"}
)

// everyFinding has each code at each place with each decision, and a text wherever a finding has one from outside.
func everyFinding(text string) (all []Finding) {
	for _, code := range Known().Codes(func(Entry) bool { return true }) {
		for _, place := range append(Places(), "") {
			for _, repair := range []ActionKind{"", Replace, Unmount, RemoveDirectory} {
				for _, state := range []PodState{"", PodWanted, PodDeleting, PodEnded} {
					f := Finding{
						Code: code, Container: text, Pod: Pod{Namespace: text, Name: text, UID: text},
						Mount: Mount{Point: text, FSType: "fuse." + text, Device: "0:41"},
						Details: Details{
							Place: place, Repair: repair, PodState: state, Driver: text, Device: text, Path: text, Workload: Workload{"StatefulSet", text},
							Daemon: &Process{PID: 7, Command: text, State: ProcessStopped}, HeldBy: &Process{PID: 8, Command: text},
						},
					}
					nameless := f
					nameless.Pod = Pod{UID: text}
					bare := f
					bare.Details.Workload = Workload{}
					elsewhere := f
					elsewhere.Mount.Device = "0:" + text
					all = append(all, f, nameless, bare, elsewhere)
				}
			}
		}
	}
	return all
}

// run has a shell run lines, and returns the words of each program that it calls. In the place of each printed program it has a function that
// shows these words, and fails, so that the program after it is called, too.
func run(t *testing.T, shell, lines []string) [][][]string {
	t.Helper()
	var script strings.Builder
	script.WriteString("show() { for w; do printf '%s\\000' \"$w\"; done; printf '\\001\\000'; return 1; }\n")
	for _, program := range printed {
		fmt.Fprintf(&script, "%s() { show %[1]s \"$@\"; }\n", program)
	}
	for _, line := range lines {
		fmt.Fprintf(&script, "%s\nprintf '\\002\\000'\n", line)
	}
	cmd := exec.Command(shell[0], append(shell[1:], "-s")...)
	cmd.Dir, cmd.Stdin = t.TempDir(), strings.NewReader(script.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", shell, err)
	}
	if files, err := os.ReadDir(cmd.Dir); err != nil || len(files) > 0 {
		t.Fatalf("%q has run a part of a line: %v, %v", shell, files, err)
	}
	var all [][][]string
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x02\x00"), "\x02\x00") {
		var calls [][]string
		for words := range strings.SplitSeq(strings.TrimSuffix(line, "\x01\x00"), "\x01\x00") {
			calls = append(calls, strings.Split(strings.TrimSuffix(words, "\x00"), "\x00"))
		}
		all = append(all, calls)
	}
	return all
}

// TestEveryPrintedLine has the shells of a node run each line that advice can have: it calls programs of the list alone, it enters the mount
// namespace of process 1 or none, and a hostile text is one word of it, or not in it.
func TestEveryPrintedLine(t *testing.T) {
	t.Parallel()
	programs := map[string]bool{}
	for _, text := range append(hostile, "\x00", "--all", "41/abort; touch pwned; #") {
		var lines []string
		for _, f := range everyFinding(text) {
			for _, c := range printedAbout(f) {
				if strings.ContainsFunc(c.Line, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s: line %q has a character for terminals", f.Code, c.Line)
				}
				if !slices.Contains(lines, c.Line) {
					lines = append(lines, c.Line)
				}
			}
		}
		for _, shell := range shells {
			found := run(t, shell, lines)
			if len(found) != len(lines) {
				t.Fatalf("%q reads %d lines of %d", shell, len(found), len(lines))
			}
			for i, calls := range found {
				for _, words := range calls {
					programs[words[0]] = true
					if problem := checkWords(words, text); problem != "" {
						t.Errorf("%q runs %s as %q: %s", shell, lines[i], words, problem)
					}
				}
				if last := calls[len(calls)-1]; len(calls) > 1 && (calls[0][len(calls[0])-1] != last[len(last)-1] || !slices.Contains(calls[0], "stat")) {
					t.Errorf("%q runs %s as %q: it looks at something else first", shell, lines[i], calls)
				}
			}
		}
	}
	for _, program := range printed {
		if !programs[program] {
			t.Errorf("no line begins with %s: take it from the list", program)
		}
	}
}

// printedAbout are all lines about a finding, wherever the shell is.
func printedAbout(f Finding) (all []Command) {
	for _, enter := range []Enter{EnterNothing, EnterFirst, EnterNever} {
		all = append(all, Known().Advise(f, Caller{Enter: enter, Flags: " --kubelet-root=/k", Pods: " --pods=p"}).Commands...)
	}
	return all
}

// checkWords names a mistake in the words of a program that a line calls.
func checkWords(words []string, text string) string {
	program, rest := words[0], words[1:]
	if !slices.Contains(printed, program) {
		return "its program is not in the list"
	}
	if program == "nsenter" {
		if len(rest) < 4 || rest[0] != "-t" || rest[1] != "1" || rest[2] != "-m" || !slices.Contains(printedEntered, rest[3]) {
			return "it enters another namespace than the mount namespace of process 1, or runs another program there"
		}
		program, rest = rest[3], rest[4:]
	}
	if program == "sh" && !slices.Equal(rest, []string{"-c", "grep -vx 0 /sys/fs/fuse/connections/41/waiting && echo 1 >/sys/fs/fuse/connections/41/abort"}) {
		return "a shell runs something else than the end of a connection"
	}
	if (program == "umount" || program == "stat") && (len(rest) != 2 || rest[0] != "--") {
		return "its path is not one word after --"
	}
	if program == "grep" && (len(rest) != 4 || rest[0] != "-F" || rest[1] != "--" || rest[3] != "/proc/self/mountinfo") {
		return "its path is not one word after --, or it reads another file"
	}
	if slices.Contains(rest, "-delete") || slices.Contains(rest, "-exec") {
		return "it changes more than it says"
	}
	if program == "kubectl" && slices.Contains(rest, "--all") {
		return "a name is a flag"
	}
	for _, w := range words {
		if w == "touch" || strings.Contains(text, "touch") && strings.Contains(w, "touch") && !strings.Contains(w, text) {
			return "it has a part of a hostile text"
		}
	}
	return ""
}

// TestControlCharactersAreNotPasted holds that a path which no shell takes from a terminal is in no line. The verb that repairs it is
// there, with the reason.
func TestControlCharactersAreNotPasted(t *testing.T) {
	t.Parallel()
	pod := Pod{Namespace: "shop", Name: "web-0", UID: "u"}
	for name, c := range map[string]struct {
		finding Finding
		want    []string
	}{
		"stale bind": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/a\nb"}, Details: Details{Place: PlaceSubPath, Repair: Replace}},
			[]string{"kubediag recover shop/web-0"},
		},
		"dead mount of the node": {
			Finding{Code: DisconnectedFUSE, Mount: Mount{Point: "/k/a\x1b"}, Details: Details{Place: PlaceHostPath}},
			[]string{"kubediag scan --verbose"},
		},
		"left directory": {
			Finding{Code: OrphanedPodVolumes, Pod: Pod{UID: "u"}, Details: Details{Place: PlacePodDirectory, Path: "/k/\x01", Repair: RemoveDirectory}},
			[]string{"kubediag recover u"},
		},
		"held device": {
			Finding{Code: HeldDevice, Pod: pod, Mount: Mount{Point: "/k/\xff"}, Details: Details{Place: PlaceDevice, Device: "rbd0", Repair: Unmount}},
			[]string{"kubediag release rbd0", "kubediag holders rbd0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			commands := Known().Advise(c.finding, Caller{}).Commands
			var lines []string
			said := false
			for _, command := range commands {
				lines = append(lines, command.Line)
				said = said || strings.Contains(command.Purpose, "control characters")
			}
			if !slices.Equal(lines, c.want) || said == (name == "held device") {
				t.Errorf("commands = %+v", commands)
			}
		})
	}
}
