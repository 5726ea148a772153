// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// child is a process that plays a role. It ends when it is killed, and when its parent ends.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
}

// readyLine is what a child prints when it plays its role.
const readyLine = "ready\n"

// startChild starts a child in a mount namespace of its own for a container, and waits until it plays its role.
func startChild(ctx context.Context, role string, args ...string) (*child, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"demo", "--"}, args...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"="+role), os.Stderr
	if role == roleContainer {
		cmd.SysProcAttr = sys.PrivateMounts(sys.Clone{})
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != readyLine {
		c.kill()
		return nil, fmt.Errorf("start the %s: it says %q: %w", role, line, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the child and waits until it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // one that has ended already is no error
	_ = c.cmd.Wait()
	c.in.Close()
}

// serveVolume serves at args[0] a FUSE file system with one file, which says args[1].
func serveVolume(args []string) error {
	root := &fs.Inode{}
	_, err := fs.Mount(args[0], root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "memory", Name: "demo"},
		OnAdd: func(ctx context.Context) {
			file := &fs.MemRegularFile{Data: []byte(args[1] + "\n"), Attr: fuse.Attr{Mode: 0o644}}
			root.AddChild(volumeFile, root.NewPersistentInode(ctx, file, fs.StableAttr{}), false)
		},
	})
	return err
}

// beContainer has the volume at args[0] bound at args[2] alone: the kubelet's mounts at args[0] and args[1] are not in the
// container's namespace.
func beContainer(args []string) error {
	if err := mount.SetPropagation("/", mount.Private, true); err != nil {
		return err
	}
	if err := mount.Bind(args[0], args[2]); err != nil {
		return err
	}
	return errors.Join(detach(args[0]), detach(args[1]))
}

// detach unmounts the topmost mount at a point, which need not answer.
func detach(point string) error {
	return sys.OnThread(func() error {
		dir, err := sys.Lookup(filepath.Dir(point))
		if err != nil {
			return err
		}
		defer dir.Close()
		return sys.DetachNamed(dir, filepath.Base(point))
	})
}
