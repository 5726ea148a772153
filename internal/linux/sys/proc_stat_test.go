// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

// statLine is a line whose fields are 0 but for some.
func statLine(begin string, fields map[int]string) string {
	line := []string{begin}
	for number := 4; number <= 52; number++ {
		value := fields[number]
		if value == "" {
			value = "0"
		}
		line = append(line, value)
	}
	return strings.Join(line, " ") + "\n"
}

func TestParseProcStat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ProcStat{
		statLine("1 (init) S", map[int]string{22: "7"}):                  {Name: "init", State: 'S', Started: "7"},
		statLine("7 (a b) T (c) R", nil):                                 {Name: "a b) T (c", State: 'R', Started: "0"},
		statLine("7 (\n) Z", nil):                                        {Name: "\n", State: 'Z', Started: "0"},
		statLine("7 () t", map[int]string{31: "256"}):                    {State: 't', Started: "0", pending: 256},
		statLine("2 (kthreadd) S", map[int]string{9: "2129984"}):         {Name: "kthreadd", State: 'S', Started: "0", flags: 2129984},
		strings.Join(strings.Fields(statLine("7 (a) S", nil))[:31], " "): {Name: "a", State: 'S', Started: "0"},
		strings.Join(strings.Fields(statLine("7 (a) S", nil))[:30], " "): {},
		statLine("7 (ceph-fuse)", nil):                                   {Name: "ceph-fuse", State: '0', Started: "0"},
		statLine("7 (a) S", map[int]string{9: "-1"}):                     {},
		statLine("7 (a) S", map[int]string{31: "x"}):                     {},
		statLine("7 (a) SS", nil):                                        {},
		statLine("7 a S", nil):                                           {},
		statLine(")(", nil):                                              {},
		"7 (a) ":                                                         {},
		"":                                                               {},
	} {
		got, err := ParseProcStat([]byte(text))
		if (err == nil) != (want != ProcStat{}) || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestReadProcStat(t *testing.T) {
	t.Parallel()
	name := strconv.Itoa(os.Getpid())
	st, err := ReadProcStat(name)
	if err != nil || st.Name == "" || strings.Trim(st.Started, "0123456789") != "" || st.isKernelThread() || st.isKilled() {
		t.Errorf("own process: %+v, %v", st, err)
	}
	if first, err := ReadProcStat(name + "/task/" + name); err != nil || first.Started != st.Started {
		t.Errorf("own first thread: %+v, %v, want the start of the process, %s", first, err, st.Started)
	}
}

func TestKernelThreads(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		statLine("2 (kthreadd) S", map[int]string{9: "2129984"}): true,
		statLine("2 (kthreadd) S", map[int]string{9: "4194304"}): false, // a program that calls itself so
		statLine("2 (a) b) S", map[int]string{9: "4194560"}):     false,
		statLine("2 (x) 0 0 0 0 0 2129984) S", nil):              false,
	} {
		if st, err := ParseProcStat([]byte(text)); err != nil || st.isKernelThread() != want {
			t.Errorf("%q: %+v, %v, want %t", text, st, err, want)
		}
	}
}

func TestKilled(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		statLine("2 (a) S", nil):                          false,
		statLine("2 (a) Z", nil):                          true,
		statLine("2 (a) X", nil):                          true,
		statLine("2 (a) D", map[int]string{31: "256"}):    true,
		statLine("2 (a) D", map[int]string{31: "16640"}):  true,
		statLine("2 (a) D", map[int]string{31: "16384"}):  false, // SIGTERM
		statLine("2 (Z) (Z) R", map[int]string{8: "256"}): false,
	} {
		if st, err := ParseProcStat([]byte(text)); err != nil || st.isKilled() != want {
			t.Errorf("%q: %+v, %v, want %t", text, st, err, want)
		}
	}
}

func FuzzParseProcStat(f *testing.F) {
	f.Add(statLine("7 (a ) b) S", map[int]string{22: "42"}))
	f.Add(")")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		st, err := ParseProcStat([]byte(text))
		if (err == nil) != (st.Started != "") || strings.ContainsAny(st.Started, " \n") || !strings.Contains(text, st.Name) {
			t.Errorf("%q gives %+v, %v", text, st, err)
		}
	})
}

func TestFieldValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pos:\t0\nflags:\t0100002\nmnt_id:\t24\nino:\t5\nfuse_connection:\t49\n": "49",
		"fuse_connection:\t49":       "49",
		"fuse_connection:\t\n":       "",
		"x_fuse_connection:\t49\n":   "",
		"pos:\t0\nflags:\t0100002\n": "",
		"":                           "",
	} {
		if got := fieldValue([]byte(text), "fuse_connection"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestReadProcStatus reads lines of this process, one that there is not, and those of a process that there is not.
func TestReadProcStatus(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"PPid": strconv.Itoa(os.Getppid()), "Tgid": strconv.Itoa(os.Getpid()), "Pi": "", "NoSuchLine": ""} {
		if got, err := ReadProcStatus("self", name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := ReadProcStatus("0", "PPid"); got != "" || !errors.Is(err, ENOENT) {
		t.Errorf("no process: %q, %v", got, err)
	}
}
