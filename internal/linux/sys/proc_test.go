// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadProcReadsWholeFiles(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Namespaces of other tests come and go; two readings must agree once.
	var got []byte
	for range 20 {
		if got, err = ReadProc("self/mountinfo", got); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(got, want) {
			return
		}
		if want, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("read %d bytes, want %d", len(got), len(want))
}

func TestReadAllGrowsAndStops(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	for size, want := range map[int64]error{int64(len(content)): nil, maxProcFile + 1: ErrTooLarge} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		fd, err := openat(-1, file, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fd.readAll(make([]byte, 3), maxProcFile)
		fd.Close()
		if !errors.Is(err, want) || (want == nil && !bytes.Equal(got, content)) {
			t.Errorf("size %d: read %d bytes, %v, want %v", size, len(got), err, want)
		}
	}
}

func TestThreadProcNamesTheCallingThread(t *testing.T) {
	t.Parallel()
	err := OnThread(func() error {
		status, err := ReadProc(ThreadProc("status"), nil)
		if err != nil {
			return err
		}
		if strings.Contains(string(status), "Pid:\t"+pid()+"\n") {
			t.Error("status of the main thread")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func pid() string {
	link, _ := os.Readlink("/proc/self")
	return link
}

func TestKillGroupEndsEverything(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{-1, 0, 1} {
		if err := KillGroup(pid); !errors.Is(err, EINVAL) {
			t.Fatalf("kill of group %d: %v, want EINVAL", pid, err)
		}
	}
	cmd := exec.Command("sh", "-c", "sleep 100 & echo; sleep 100")
	cmd.SysProcAttr = OwnProcessGroup()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := KillGroup(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	// The pipe ends only once the grandchild, too, has let go of it.
	if rest, err := out.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d more bytes", rest)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("shell ended by itself")
	}
	if err := KillGroup(cmd.Process.Pid); err != nil {
		t.Errorf("kill of a group that is gone: %v", err)
	}
}

func TestUnsupportedIsNotFailed(t *testing.T) {
	t.Parallel()
	calls := 0
	answers := []error{EPERM, ENOSYS, nil}
	f := &Feature{Name: "thing", Kernel: "9.9", probe: func() error {
		calls++
		return unsupportedError(answers[calls-1], ENOSYS)
	}}
	if err := f.Probe(); !errors.Is(err, EPERM) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("refused: %v, want EPERM and not unsupported", err)
	}
	err := f.Probe()
	if !errors.Is(err, errors.ErrUnsupported) || err.Error() != "thing not supported: needs kernel 9.9" {
		t.Errorf("lacking: %v", err)
	}
	if again := f.Probe(); again != err || calls != 2 {
		t.Errorf("asked %d times, answer %v, want the kept one", calls, again)
	}
}
