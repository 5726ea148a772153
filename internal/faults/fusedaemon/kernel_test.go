// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package fusedaemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/oomlog"
)

func TestMain(m *testing.M) { kerneltest.Main(m, kerneltest.Roles{"driver": drive}) }

// drive is a driver and its kubelet in one: its socket is where only its own mount namespace has it, and was bound under
// another path, as from within a container.
func drive(args []string, ready func(string)) error {
	dir, short := args[0], args[1]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	l, err := net.Listen("unix", short+"/csi.sock")
	if err != nil {
		return err
	}
	defer l.Close()
	if err := mount.Bind(short, dir); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// nobody knows whose a process is.
type nobody struct{ asked *string }

func (n nobody) Owner(_ context.Context, cgroup string) (cri.Owner, error) {
	*n.asked = cgroup
	return cri.Owner{}, cri.ErrNotFound
}

func (nobody) PodRecords(context.Context, string) ([]cri.Container, error) { return nil, nil }

func TestListenerBehindAnotherNamespace(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	short, err := os.MkdirTemp("", "exit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	// The path is far longer than a socket's address may be.
	root = filepath.Join(root, strings.Repeat("long", 40))
	actor := kerneltest.Start(t, "driver", filepath.Join(root, "plugins", driver), short)
	var asked string
	analyzer := &Analyzer{
		Kubelet: &kubelet.Node{Layout: kubelet.Layout{Root: root}, PID: actor.PID}, Runtime: nobody{&asked},
		Kills: func(context.Context) ([]oomlog.Kill, error) { return nil, nil },
	}
	said := strings.Join(exitOf(t, analyzer, Question{Driver: driver}).Sentences, "\n")
	if want := fmt.Sprintf("process %d listens on", actor.PID); !strings.Contains(said, want) {
		t.Errorf("it does not say %q:\n%s", want, said)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || asked != string(own) {
		t.Errorf("asked for %q, %v, want %q", asked, err, own)
	}
}
