// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTriesOnceIsReadFromTheProgram(t *testing.T) {
	t.Parallel()
	const once, goesOn = "volume: %q is not mounted", "Volume is marked as uncertain and added into the actual state"
	for name, c := range map[string]struct {
		text    string
		once    bool
		unknown bool
	}{
		"1.18":                     {text: "x" + once + "y", once: true},
		"1.36":                     {text: "x" + goesOn + "y"},
		"both, by a feature gate":  {text: once + string(make([]byte, 2*programChunk)) + goesOn},
		"across the end of a part": {text: string(make([]byte, programChunk+20)) + goesOn + once},
		"neither":                  {text: "is not mounted", unknown: true},
		"empty":                    {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := (&Node{Program: writeProgram(t, c.text)}).RetriesCleanupOnce()
			if got != c.once || errors.Is(err, errRetriesUnknown) != c.unknown || err != nil && !c.unknown {
				t.Errorf("tries once: %v, %v, want %v, unknown: %v", got, err, c.once, c.unknown)
			}
		})
	}
	n := &Node{}
	if once, err := n.RetriesCleanupOnce(); once || !errors.Is(err, errRetriesUnknown) {
		t.Errorf("without a process: %v, %v, want not known", once, err)
	}
	n.Program = filepath.Join(t.TempDir(), "gone")
	if once, err := n.RetriesCleanupOnce(); once || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v, want that the program is not there", once, err)
	}
}

func TestStarted(t *testing.T) {
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
	m.setStartTicks(7, 12_345)
	n, err := (&Finder{Proc: m.proc}).Node(t.Context())
	m.must(err)
	for content, ago := range map[string]time.Duration{"223.45 400.00\n": 100 * time.Second, "": 0, "x 1": 0} {
		m.must(os.WriteFile(filepath.Join(m.proc, "uptime"), []byte(content), 0o644))
		at, err := n.Started()
		if got := time.Since(at).Round(time.Second); ago > 0 && (got != ago || err != nil) || ago == 0 && err == nil {
			t.Errorf("up for %q: started %v ago, %v, want %v", content, got, err, ago)
		}
	}
	if at, err := (&Node{}).Started(); err == nil {
		t.Errorf("without a process: %v", at)
	}
}

// TestOwnStart: the start time that the kernel gives for a process is not before, and not after its start.
func TestOwnStart(t *testing.T) {
	t.Parallel()
	dir := fmt.Sprintf("/proc/%d", os.Getpid())
	started, err := readStartTime(dir)
	if err != nil {
		t.Fatal(err)
	}
	at, err := (&Node{PID: os.Getpid(), process: candidateProcess{dir: dir, started: started}}).Started()
	if age := time.Since(at); err != nil || age < 0 || age > time.Hour {
		t.Errorf("started %v ago, %v", age, err)
	}
}
