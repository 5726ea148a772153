// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/test/program"
)

// devicesElsewhere reports whether a scan finds block devices that are mounted in other mount namespaces alone.
func devicesElsewhere(program, root string) bool {
	out, _ := exec.Command(program, "scan", "-o", "json", "--kubelet-root", root).Output() // its exit code depends on the faults
	return bytes.Contains(out, []byte(`"devicesElsewhere": `)) && !bytes.Contains(out, []byte(`"devicesElsewhere": 0,`))
}

// TestBuiltProgramWithoutPrivilege has the user nobody run verbs that find nothing wrong as root.
func TestBuiltProgramWithoutPrivilege(t *testing.T) {
	dir, err := os.MkdirTemp("", "kubediag")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	built, root := filepath.Join(dir, "kubediag"), filepath.Join(dir, "kubelet")
	runTool(t, "cp", program.Build(t, "cmd/kubediag"), built)
	must(t, os.MkdirAll(filepath.Join(root, "pods"), 0o755))
	for _, c := range []struct {
		args    []string
		clean   string // what root is told where all is well
		partial string // devices that others have mounted elsewhere are not judged: the sentence says so then
	}{
		{[]string{"scan", "--kubelet-root", root}, "nothing broken. ", "nothing broken in what "},
		{[]string{"scan", "-o", "json", "--kubelet-root", root}, `"denied": 0,`, `"faults": [],`},
		{[]string{"holders", "--kubelet-root", root}, "Every device ", " processes, and what only they have mounted: user 65534 may not look into them: "},
		{[]string{"probe", root}, "Alive\n", "Alive, but whether a container could be started with it is not known\n"},
	} {
		verb := strings.Join(c.args[:2], " ")
		args := c.args
		if c.args[0] != "probe" { // another kubelet of the machine may end while it is looked at
			args = append(slices.Clone(args), "--kubelet-pid", strconv.Itoa(os.Getpid()))
		}
		var out []byte
		kerneltest.Await(t, verb+" to find nothing wrong as root", func() (clean bool) {
			out, err = exec.Command(built, args...).CombinedOutput()
			// Devices are the machine's: others may have mounted some elsewhere, in containers of a runtime that is not this root's.
			clean = c.args[0] == "holders" || err == nil && strings.Contains(string(out), c.clean) || devicesElsewhere(built, root)
			if !clean {
				t.Logf("%s as root: %v, %s", verb, err, out)
			}
			return clean
		})
		if strings.Contains(string(out), asRootRemedy) {
			t.Errorf("%s as root has not seen everything: %s", verb, out)
		}
		cmd := exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", built}, c.args...)...)
		out, _ = cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), c.partial) || !strings.Contains(string(out), "kubediag: ") ||
			!strings.Contains(string(out), asRootRemedy) || strings.Contains(string(out), c.clean) {
			t.Errorf("%s as nobody: %v, %s, want status 2, %q and %q", verb, cmd.ProcessState, out, c.partial, asRootRemedy)
		}
	}
}

// TestRefused has a survey that was refused processes which have ended since.
func TestRefused(t *testing.T) {
	for _, surveyed := range []int{0, 5} {
		if n, pids := searches.HidingMounts(surveyed); n != 0 {
			t.Errorf("of %d, processes %v refuse to be looked into by root, want none", surveyed, pids)
		}
	}
}

// TestRootIsShownWhatDoesNotAnswer: root, who sees every process, is not told to be root.
func TestRootIsShownWhatDoesNotAnswer(t *testing.T) {
	const of, why = "processes, and what only they have mounted", "the system keeps them even from root, or they do not answer"
	const shows = "see what these processes wait for: ps -o pid,stat,wchan:32,args -p 2,3,4,5,6,7,8,9"
	for _, c := range []struct {
		denied, partial int
		pids            []int
		want            []mountstate.Gap
	}{
		{9, 1, []int{2, 3, 4, 5, 6, 7, 8, 9, 10}, []mountstate.Gap{
			{What: "9 " + of, Subject: of, Why: why, Do: shows},
			{What: "parts of 1 mount namespace", Subject: "parts of mount namespaces", Why: "they could not be read"},
		}},
		{9, 0, nil, []mountstate.Gap{{What: "9 " + of, Subject: of, Why: why}}},
	} {
		if diff := cmp.Diff(c.want, hiddenProcessGaps(c.denied, c.pids, c.partial)); diff != "" {
			t.Errorf("%d denied, known %v, %d partial: %s", c.denied, c.pids, c.partial, diff)
		}
	}
}

func TestABindThatWasNotTried(t *testing.T) {
	for a, want := range map[asking.Tristate]bool{asking.Unknown: true, asking.Yes: false, asking.No: false} {
		if got := bindUntried(asking.Answer{State: asking.Alive, Bindable: a}); got != want {
			t.Errorf("bindable %q: %t", a, got)
		}
	}
	if bindUntried(asking.Answer{State: asking.Hung}) {
		t.Error("of what does not answer it is asked whether it can be bound")
	}
}

// TestScanListsDirectoriesThatOnlySourcesAreMissingFor has neither a file of pods nor a runtime.
func TestScanListsDirectoriesThatOnlySourcesAreMissingFor(t *testing.T) {
	scene, pods := newStage(t, 1, 1)
	for age, want := range map[time.Duration]int{time.Nanosecond: 1, time.Hour: 0} {
		s := &scan{node: scene.Node, orphanAge: age}
		must(t, s.search(t.Context(), searchesFor([]string{string(fault.OrphanedPodVolumes)})))
		if len(s.sum.Findings) != 0 || len(s.sum.Unknown.Places) != want {
			t.Errorf("with an age of %s: %d faults, not judged %+v, want %d places", age, len(s.sum.Findings), s.sum.Unknown.Places, want)
			continue
		}
		for _, u := range s.sum.Unknown.Places {
			if u.Point != scene.Node.PodDir(string(pods[0].UID)) || !strings.Contains(u.Reason, "the API server could not be asked") ||
				!strings.Contains(u.Reason, "the container runtime could not be asked") {
				t.Errorf("not judged: %+v", u)
			}
		}
	}
}
