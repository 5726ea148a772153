// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"kubediag.org/kubediag/test/debian"
)

// Images that every node has. A pod that uses them, or any other that a test loads, needs imagePullPolicy Never.
const (
	// PauseImage only sleeps; it holds the sandbox of each pod.
	PauseImage = "kubediag.org/test/pause:1"
	// BusyboxImage has /bin/sh and all of busybox's commands; it has no entrypoint.
	BusyboxImage = "kubediag.org/test/busybox:1"
)

// LoadImage loads the images of a tar in docker-archive or OCI layout into the node's containerd.
func (c *Cluster) LoadImage(ctx context.Context, tarPath string) error {
	return c.run(ctx, "ctr", "--address="+c.RuntimeEndpoint(), "--namespace=k8s.io", "images", "import", tarPath)
}

// LoadBinaryImage loads an image, named ref, that holds nothing but the statically linked program at binaryPath, as
// /<its name>, and the folder /tmp. Without an entrypoint the program is it.
func (c *Cluster) LoadBinaryImage(ctx context.Context, ref, binaryPath string, entrypoint ...string) error {
	program, err := os.ReadFile(binaryPath)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	target := "/" + filepath.Base(binaryPath)
	if len(entrypoint) == 0 {
		entrypoint = []string{target}
	}
	files := []file{{"/tmp/", 0o1777, "", nil}, {target, 0o755, "", program}}
	return c.load(ctx, func(tarPath string) error { return saveImages(tarPath, files, image{ref, entrypoint}) })
}

// SaveDefaultImages writes the images that every node has into a docker-archive, for a node that is no Cluster's.
func SaveDefaultImages(ctx context.Context, tarPath string) error {
	if err := debian.Install(ctx, "busybox"); err != nil {
		return err
	}
	busybox, err := debian.LookPath("busybox")
	if err != nil {
		return err
	}
	return saveDefaultImages(ctx, busybox, tarPath)
}

func (c *Cluster) loadDefaultImages(ctx context.Context, busybox string) error {
	return c.load(ctx, func(tarPath string) error { return saveDefaultImages(ctx, busybox, tarPath) })
}

// saveDefaultImages makes the default images from Debian's static busybox.
func saveDefaultImages(ctx context.Context, busybox, tarPath string) error {
	files, err := busyboxFiles(ctx, busybox)
	if err != nil {
		return err
	}
	return saveImages(tarPath, files, image{BusyboxImage, nil}, image{PauseImage, pause})
}

// busyboxFiles are the files of an image with all commands of busybox.
func busyboxFiles(ctx context.Context, busybox string) ([]file, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list busybox commands: %w", err)
	}
	files := []file{
		{"/tmp/", 0o1777, "", nil},
		{"/bin/", 0o755, "", nil},
		{"/etc/", 0o755, "", nil},
		{"/etc/passwd", 0o644, "", []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{"/etc/group", 0o644, "", []byte("root:x:0:\nnobody:x:65534:\n")},
		{"/bin/busybox", 0o755, "", program},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			files = append(files, file{path.Join("/bin", applet), 0, "busybox", nil})
		}
	}
	return files, nil
}

// Images of the pods of Kubernetes' end-to-end tests, as those of 1.36 name them.
const (
	e2eAgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	e2eBusyboxImage = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
	e2ePauseImage   = "registry.k8s.io/pause:3.10.2"
)

// pause is the line of a container that only sleeps.
var pause = []string{"/bin/busybox", "sleep", "2147483647"}

// e2eNsenter is the command nsenter in the image of agnhost. To mount volumes on the node, pods of the tests enter the mount namespace of process 1
// of the machine, which is no process of this node. The script enters the kubelet's namespace, and runs the machine's shell there.
const e2eNsenter = `#!/bin/sh
[ "$1 $2 $3" = "--mount=/rootfs/proc/1/ns/mnt -- sh" ] || exec /bin/busybox nsenter "$@"
shift 3
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
exec /bin/busybox nsenter --mount=/rootfs/proc/%d/ns/mnt -- /bin/sh "$@"
`

// LoadEndToEndImages loads images for the pods of Kubernetes' end-to-end tests: busybox, pause, and the same with the program agnhost. It is
// built if it is not there.
func (c *Cluster) LoadEndToEndImages(ctx context.Context) error {
	busybox, err := debian.LookPath("busybox")
	if err != nil {
		return err
	}
	files, err := busyboxFiles(ctx, busybox)
	if err != nil {
		return err
	}
	path, err := binary(ctx, "agnhost", Kubernetes136)
	if err != nil {
		return err
	}
	agnhost, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	err = c.load(ctx, func(tarPath string) error {
		return saveImages(tarPath, files, image{e2eBusyboxImage, nil}, image{e2ePauseImage, pause})
	})
	if err != nil {
		return err
	}
	const nsenter = "/bin/nsenter"
	files = slices.DeleteFunc(files, func(f file) bool { return f.name == nsenter })
	files = append(files, file{"/agnhost", 0o755, "", agnhost}, file{nsenter, 0o755, "", fmt.Appendf(nil, e2eNsenter, c.KubeletPID())})
	return c.load(ctx, func(tarPath string) error {
		return saveImages(tarPath, files, image{e2eAgnhostImage, []string{"/agnhost"}})
	})
}

// image is a name for a set of files and the program that runs by default.
type image struct {
	ref        string
	entrypoint []string
}

// file is an entry of a layer: a folder when its name ends in a slash, a link when it has a target.
type file struct {
	name   string
	mode   int64
	target string
	data   []byte
}

// load loads the images that save writes into a file.
func (c *Cluster) load(ctx context.Context, save func(tarPath string) error) error {
	tmp := c.path("tmp", "image-"+newUser("", "").token+".tar")
	defer os.Remove(tmp)
	if err := save(tmp); err != nil {
		return err
	}
	return c.LoadImage(ctx, tmp)
}

// saveImages writes images that all consist of the same files.
func saveImages(tarPath string, files []file, images ...image) error {
	raw, err := archive(files)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	if err != nil {
		return fmt.Errorf("make image layer: %w", err)
	}
	all := map[name.Reference]v1.Image{}
	for _, i := range images {
		ref, err := name.NewTag(i.ref, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("parse image name %q: %w", i.ref, err)
		}
		if all[ref], err = i.build(layer); err != nil {
			return err
		}
	}
	if err := tarball.MultiRefWriteToFile(tarPath, all); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

func (i image) build(layer v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("make image %q: %w", i.ref, err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make image %q: %w", i.ref, err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture = "linux", runtime.GOARCH
	conf.Config.Entrypoint = i.entrypoint
	conf.Config.Env = []string{"PATH=/bin"}
	return mutate.ConfigFile(img, conf)
}

// archive writes the files of a layer, all of them root's and of no particular time.
func archive(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: strings.TrimPrefix(f.name, "/"), Mode: f.mode, Linkname: f.target, Size: int64(len(f.data))}
		switch {
		case f.target != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("write image layer: %w", err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write image layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write image layer: %w", err)
	}
	return b.Bytes(), nil
}
