// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// holder is set for a process that starts a machine and waits to be killed.
const holder = "KUBEDIAG_VM_TEST_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holder) != "" {
		os.Exit(hold())
	}
	os.Exit(m.Run())
}

// hold starts a machine, prints the process ID of its qemu, and waits.
func hold() int {
	m, err := Start(context.Background(), Options{Kernel: Kernels[0]}) //nolint:forbidigo // it is no test: one has started this process
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(m.cmd.Process.Pid)
	select {}
}

// start boots the oldest kernel for a test.
func start(t *testing.T, o Options) *Machine {
	t.Helper()
	o.Kernel = Kernels[0]
	m, err := Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(m.dir); !os.IsNotExist(err) {
			t.Errorf("files of the machine: %v, want none", err)
		}
	})
	return m
}

func TestMachineRunsPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("from the host"), 0o600))
	begin := time.Now()
	m := start(t, Options{Files: map[string]string{"/etc/given/file": file, "/folder": filepath.Dir(file)}})
	t.Logf("%s is up after %s", m.Release(), time.Since(begin))
	for _, c := range []struct {
		script, want string
		status       int
		limit        time.Duration
	}{
		{script: "cat /etc/given/file /folder/file", want: "from the hostfrom the host"},
		{script: "uname -r", want: m.Release() + "\n"},
		{script: "echo out; echo err >&2; exit 3", want: "out\nerr\n", status: 3},
		{script: "stat -f -c %T / /sys/fs/cgroup /tmp", want: "ext2/ext3\ncgroup2fs\next2/ext3\n"},
		{script: "kill -9 $$", status: -1},
		{script: "echo now; sleep 100", want: "now\n", status: -1, limit: 2 * time.Second},
	} {
		var out bytes.Buffer
		err := m.Do(t.Context(), Command{Args: []string{"sh", "-c", c.script}, Out: &out, Limit: c.limit})
		var exit *ExitError
		if !errors.As(err, &exit) {
			exit = &ExitError{}
		}
		if out.String() != c.want || exit.Status != c.status || (exit.Failed != "") != (c.limit > 0) {
			t.Errorf("%s: printed %q, %+v, want %q, %d, limit %s", c.script, out.String(), exit, c.want, c.status, c.limit)
		}
	}
	var exit *ExitError
	if err := m.Do(t.Context(), Command{Args: []string{"/no/such/program"}}); !errors.As(err, &exit) || !strings.Contains(exit.Failed, "no such file") {
		t.Errorf("program that is not there: %v", err)
	}
}

// TestPowerCut: what was synced is there at the next boot, and nothing runs on.
func TestPowerCut(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	must(t, errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 16<<20)))
	if _, err := command(t.Context(), "", "mkfs.ext4", "-q", disk); err != nil {
		t.Fatal(err)
	}
	m := start(t, Options{Disks: []string{disk}})
	if _, err := m.Run(t.Context(), "sh", "-c", "mount /dev/vdd /mnt && echo kept >/mnt/file && sync /mnt/file /mnt && echo lost >/root.mark"); err != nil {
		t.Fatal(err)
	}
	pid := m.cmd.Process.Pid
	hung := make(chan error, 1)
	go func() {
		_, err := m.Run(context.WithoutCancel(t.Context()), "sh", "-c", "echo under way; sleep 100")
		hung <- err
	}()
	m.Kill()
	if err := <-hung; !errors.Is(err, ErrGone) {
		t.Errorf("program under way: %v, want ErrGone", err)
	}
	if _, err := m.Run(t.Context(), "true"); !errors.Is(err, ErrGone) {
		t.Errorf("program afterwards: %v, want ErrGone", err)
	}
	if alive(pid) {
		t.Errorf("qemu %d runs on", pid)
	}
	m = start(t, Options{Disks: []string{disk}})
	out, err := m.Run(t.Context(), "sh", "-c", "mount /dev/vdd /mnt && cat /mnt/file; ls /root.mark")
	if !strings.HasPrefix(out, "kept\n") || err == nil {
		t.Errorf("after the power cut: %q, %v, want the file on the disk and not the one on the root file system", out, err)
	}
}

// TestPanic: the machine dies in the middle, by itself.
func TestPanic(t *testing.T) {
	m := start(t, Options{})
	_, err := m.Run(t.Context(), "sh", "-c", "echo 7 >/proc/sys/kernel/printk; echo c >/proc/sysrq-trigger")
	if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("error %v, want ErrGone with the panic on the console", err)
	}
	if err := m.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStuckGuest stops the processors of a machine, as a guest does whose kernel is stuck.
func TestStuckGuest(t *testing.T) {
	m := start(t, Options{})
	must(t, m.cmd.Process.Signal(syscall.SIGSTOP))
	err := m.Do(t.Context(), Command{Args: []string{"true"}, Limit: time.Second})
	if err == nil || errors.As(err, new(*ExitError)) || !strings.Contains(err.Error(), "no answer 30s after its limit of 1s") {
		t.Errorf("a machine that does not answer: %v", err)
	}
}

func TestNeverBoots(t *testing.T) {
	script := filepath.Join(t.TempDir(), "qemu")
	for name, c := range map[string]struct {
		qemu, want string
		o          Options
	}{
		"no qemu":      {want: "no such file", o: Options{QEMU: script + "-that-is-not-there"}},
		"qemu ends":    {qemu: "echo no room >&2; exit 1", want: "no room"},
		"qemu crashes": {qemu: "kill -SEGV $$", want: "qemu has crashed"},
		"kernel crashes": {
			qemu: "test -e $0.panic && { echo no fault; exit; }; touch $0.panic; echo Kernel panic - not syncing: Fatal exception in interrupt",
			want: "no fault",
		},
		"and then not":     {qemu: "test -e $0.once && { echo another time; exit 1; }; touch $0.once; kill -SEGV $$", want: "another time"},
		"qemu is silent":   {qemu: "echo some words; exec sleep 1000", want: "some words", o: Options{Limit: 5 * time.Second}},
		"no such init":     {want: "the end: no such file", o: Options{Init: []string{"/no/such/init"}}},
		"no such module":   {want: "load module \"nothing\"", o: Options{Modules: []string{"nothing"}}},
		"no such kernel":   {want: "no package of it", o: Options{Kernel: "4.4"}},
		"no such package":  {want: "Unable to locate package no-such-package", o: Options{Packages: []string{"no-such-package"}}},
		"a file not there": {want: "No such file", o: Options{Files: map[string]string{"/x": "/no/such/file"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.qemu != "" {
				must(t, os.WriteFile(script, []byte("#!/bin/sh\n"+c.qemu+"\n"), 0o700))
				c.o.QEMU = script
			}
			if c.o.Kernel == "" {
				c.o.Kernel = Kernels[0]
			}
			m, err := Start(t.Context(), c.o)
			if name == "no such init" && err == nil {
				// The program that runs for us may say hello before its parent fails.
				err = errors.Join(m.Wait(t.Context()), errors.New(m.Console()), m.Close())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestKilledStarterLeavesNothing: the process that started a machine is killed, and cannot clean up. The next start does.
func TestKilledStarterLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holder+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	killed := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	must(t, errors.Join(err, killed))
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	for deadline := time.Now().Add(10 * time.Second); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("qemu %d runs on", pid)
		}
	}
	m := start(t, Options{})
	if all, err := os.ReadDir(tmp); err != nil || len(all) != 1 || filepath.Join(tmp, all[0].Name()) != m.dir {
		t.Errorf("directories after the next start: %v, %v, want only its own, %s", all, err, m.dir)
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) && syscall.Kill(pid, 0) == nil
}

var must = kerneltest.Must
