// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package kubelet

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestReadInOpensNoDevice: a device that no driver has gives ENXIO when it is opened, and a pipe nothing. EINVAL says
// that it was not.
func TestReadInOpensNoDevice(t *testing.T) {
	dir := t.TempDir()
	name := func(base string) string { return filepath.Join(dir, base) }
	for _, c := range []string{"mkfifo " + name("pipe"), "mknod " + name("nobody") + " c 4000 1000", "mknod " + name("zero") + " c 1 5",
		"ln -s " + name("nobody") + " " + name("link")} {
		if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := exec.Command("head", "-c1", name("nobody")).Run(); err == nil {
		t.Fatal("the device opens: the test would prove nothing")
	}
	actor := kerneltest.Start(t, "named", "--kubelet-args-file="+name("nobody"))
	process := &candidateProcess{pid: actor.PID, dir: filepath.Join("/proc", strconv.Itoa(actor.PID))}
	for _, base := range []string{"pipe", "nobody", "zero", "link"} {
		if text, err := process.readInRoot(name(base)); !errors.Is(err, sys.EINVAL) {
			t.Errorf("%s: %q, %v, want EINVAL", base, text, err)
		}
	}
	if err := process.loadArguments(); err != nil || len(process.args) == 0 {
		t.Errorf("arguments %q, %v, want those of the process alone", process.args, err)
	}
}
