// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/test/debian"
)

// bundle is a container of Debian's runc that has a volume at /data.
type bundle struct {
	id, dir, runc string
}

// newBundle makes the files of a container that runs a shell's script, with busybox alone in its root.
func newBundle(t *testing.T, volume, script string) bundle {
	t.Helper()
	dir := t.TempDir()
	b := bundle{id: strings.ReplaceAll(filepath.Base(filepath.Dir(dir)), "_", "-") + "-" + filepath.Base(dir), dir: dir}
	bin, out := filepath.Join(dir, "rootfs/bin"), filepath.Join(dir, "out")
	must(t, errors.Join(debian.Install(t.Context(), "runc", "busybox"), os.MkdirAll(bin, 0o755), os.Mkdir(out, 0o755)))
	var err error
	if b.runc, err = debian.LookPath("runc"); err != nil {
		t.Fatal(err)
	}
	busybox, err := debian.LookPath("busybox")
	must(t, err)
	program, err := os.ReadFile(busybox)
	must(t, err)
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "rootfs"},
		"process": object{
			"cwd": "/", "user": object{"uid": 0, "gid": 0}, "env": []string{"PATH=/bin"}, "args": []string{"/bin/busybox", "sh", "-c", script},
		},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/data", "type": "bind", "source": volume, "options": []string{"rbind", "rw"}},
			{"destination": "/out", "type": "bind", "source": out, "options": []string{"rbind", "rw"}},
		},
		"linux": object{"namespaces": []object{{"type": "pid"}, {"type": "mount"}}, "cgroupsPath": "/" + b.id},
	})
	must(t, err)
	files := map[string][]byte{"config.json": spec, "rootfs/bin/busybox": program}
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o755))
	}
	return b
}

type object map[string]any

func (b bundle) command() *exec.Cmd {
	cmd := exec.Command(b.runc, "--root", filepath.Join(b.dir, "state"), "run", "--bundle", b.dir, b.id)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// runOnce runs a container to its end, which reads the volume's data, and gives what it read.
func runOnce(t *testing.T, volume string) (string, error) {
	t.Helper()
	b := newBundle(t, volume, "/bin/busybox cat /data/data")
	out, err := b.command().CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return string(out), err
}

// looks has a container read its volume again and again, and say what it has seen last. It ends when no process holds
// the other end of its standard input any more.
const looks = `while :; do /bin/busybox cat /data/data > /out/new 2>&1; /bin/busybox mv /out/new /out/seen; /bin/busybox sleep 0.05; done &
exec /bin/busybox cat > /dev/null`

// runLooking starts a container that looks. It ends with the test.
func runLooking(t *testing.T, volume string) bundle {
	t.Helper()
	b := newBundle(t, volume, looks)
	cmd := b.command()
	stdin, err := cmd.StdinPipe()
	must(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	must(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("container ended: %v: %s", err, said.String())
		}
	})
	b.await(t, "anything", func(string) bool { return true })
	return b
}

// await waits until the container has seen something in its volume, or an error.
func (b bundle) await(t *testing.T, what string, done func(seen string) bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		seen, err := os.ReadFile(filepath.Join(b.dir, "out/seen"))
		if err == nil && done(string(seen)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the container has not seen %s, but %q, %v", what, seen, err)
		}
	}
}
