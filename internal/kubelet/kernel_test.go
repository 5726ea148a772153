// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package kubelet

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/hung"
)

func TestMain(m *testing.M) {
	kerneltest.Main(m, kerneltest.Roles{"kubelet": playKubelet, "named": kubeletNameRole, "hung": hungKubeletRole})
}

// kubeletNameRole is a process that has the name of a kubelet, and arguments.
func kubeletNameRole(_ []string, ready func(string)) error {
	if err := os.WriteFile("/proc/self/comm", []byte("kubelet"), 0); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// hungKubeletRole is a process that has the name of a kubelet, and whose arguments lie in the file args[1], or whose
// memory is locked as it waits for that.
func hungKubeletRole(args []string, ready func(string)) error {
	if args[0] == "arguments" {
		if err := hung.Map(hung.Arguments, args[1]); err != nil {
			return err
		}
		return kubeletNameRole(nil, ready)
	}
	return kubeletNameRole(nil, func(answer string) {
		ready(answer)
		_ = hung.LockMemory(args[1]) // it returns if the server has ended
	})
}

// playKubelet is a process that looks like a kubelet: by its name, by its argument --root-dir, by a mount that only its
// own mount namespace has, which holds the directory of a pod and a socket behind an absolute link.
func playKubelet(args []string, ready func(string)) error {
	root, pod := args[1], args[2]
	if err := mount.SetPropagation("/", mount.Private, true); err != nil {
		return err
	}
	if err := mount.Tmpfs(root, 1<<20); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "disk", "pods", pod), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "disk", "pods", pod, "etc-hosts"), nil, 0o644); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(root, "disk"), filepath.Join(root, "link")); err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(root, "disk", "s"))
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.WriteFile("/proc/self/comm", []byte("kubelet"), 0); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// startKubelet starts one whose root is behind a link in its own namespace.
func startKubelet(t *testing.T, pod string) (root string, pid int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := kerneltest.Start(t, "kubelet", "--root-dir="+dir+"/link", dir, pod, "--container-runtime-endpoint=unix://"+dir+"/link/s")
	return dir, a.PID
}

// hostsFileOf is the file that a kubelet binds into the containers of a pod.
func hostsFileOf(root string, pid int, pod string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), "root", root, "disk", "pods", pod, "etc-hosts")
}

func TestFinderInRealProcesses(t *testing.T) {
	root, pid := startKubelet(t, "pod-of-this-test")
	startKubelet(t, "pod-of-another")
	node, err := (&Finder{PodUID: "pod-of-this-test", Hosts: hostsFileOf(root, pid, "pod-of-this-test")}).Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if node.PID != pid || node.Root != root+"/disk" {
		t.Fatalf("found %v, want process %d with root %s/disk", node, pid, root)
	}
	if _, err := os.Lstat(node.PodDir("pod-of-this-test")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("outside the kubelet's namespace: %v, want ENOENT: the test would prove nothing", err)
	}
	var inside mountns.Namespace
	err = node.Do(t.Context(), func() (err error) {
		if inside, err = mountns.Self(); err == nil {
			_, err = os.Lstat(node.PodDir("pod-of-this-test"))
		}
		return err
	})
	if err != nil {
		t.Errorf("inside: %v", err)
	}
	if ns, err := node.Namespace(); err != nil || !ns.Same(inside) {
		t.Errorf("namespace %v, %v, want %v", ns, err, inside)
	}
	table, err := node.Mounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := table.Top(root); !ok || m.FSType != "tmpfs" {
		t.Errorf("at the root: %+v, %v, want a tmpfs", m, ok)
	}
	socket, err := node.RuntimeSocket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("connect through the kubelet's root directory: %v", err)
	}
	conn.Close()
}

func TestOwnNamespace(t *testing.T) {
	root := t.TempDir()
	node, err := Local(root)
	if err != nil {
		t.Fatal(err)
	}
	self, err := mountns.Self()
	if err != nil {
		t.Fatal(err)
	}
	if ns, err := node.Namespace(); err != nil || !ns.Same(self) {
		t.Errorf("namespace %v, %v, want our own, %v", ns, err, self)
	}
	if _, err := Local(filepath.Join(root, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("root that is not there: %v, want ENOENT", err)
	}
}

// TestWhoeverCallsItselfAKubelet: a process whose arguments lead to a pipe, and one whose root directory lies on a file
// system that does not answer, do not keep the kubelet from being found.
func TestWhoeverCallsItselfAKubelet(t *testing.T) {
	const pod = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
	dir := t.TempDir()
	pipe, served := filepath.Join(dir, "pipe"), filepath.Join(dir, "served")
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Mkdir(served, 0o755); err != nil {
		t.Fatal(err)
	}
	kerneltest.FUSE(t, served)
	kerneltest.Start(t, "named", "--kubelet-args-file="+pipe)
	kerneltest.Start(t, "named", "--root-dir="+served+"/hang/kubelet")
	root, pid := startKubelet(t, pod)
	f := Finder{PodUID: pod, Hosts: hostsFileOf(root, pid, pod)}
	start := time.Now()
	n, err := f.Node(t.Context())
	if err != nil || n.PID != pid || n.Root != filepath.Join(root, "disk") {
		t.Fatalf("found %+v, %v; want process %d", n, err, pid)
	}
	if took := time.Since(start); took > kerneltest.Patience(30*time.Second) {
		t.Errorf("it took %s", took)
	}
	waiting := considering()
	if waiting == 0 {
		t.Fatal("nobody keeps us waiting: the test would prove nothing")
	}
	f.PodUID, f.found = "6f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a11", nil
	_, err = f.Node(t.Context())
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", err)
	}
	if now := considering(); now != waiting {
		t.Errorf("%d threads wait, and before %d: who keeps us waiting still was waited for again", now, waiting)
	}
}

// considering is how many goroutines look at a process that may be our kubelet.
func considering() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*Finder).evaluate(")
}

// TestKubeletOfAUserNamespace: any user can be root of a user namespace, and call a process a kubelet there.
func TestKubeletOfAUserNamespace(t *testing.T) {
	root, pid := startKubelet(t, "pod-of-this-test")
	evil := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "named", "--root-dir="+t.TempDir())
	var s kubeletSearch
	if err := (&Finder{}).findCandidates(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	var ours bool
	for _, c := range s.candidates {
		ours = ours || c.node.PID == pid && c.node.Root == root+"/disk"
		if c.node.PID == evil.PID {
			t.Errorf("process %d in another user namespace may be the kubelet: %+v", evil.PID, c)
		}
	}
	if want := "process " + strconv.Itoa(evil.PID) + " (kubelet), which is in another user namespace"; !ours || !slices.Contains(s.skipped, want) {
		t.Errorf("%d candidates, ours among them: %v; passed over: %q, want %q", len(s.candidates), ours, s.skipped, want)
	}
}

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

// TestPodVolumesAskNoForeignMount has a file system that may hang lie on each of the directories that are listed.
func TestPodVolumesAskNoForeignMount(t *testing.T) {
	for _, dir := range []string{"", volumesDir, volumesDir + "/kubernetes.io~csi"} {
		t.Run("at "+dir, func(t *testing.T) {
			node, err := Local(t.TempDir())
			kerneltest.Must(t, err)
			place := Volume{PodUID: "uid", Plugin: CSIPlugin, Name: "pvc"}
			kerneltest.Must(t, os.MkdirAll(node.VolumePoint(place), 0o755))
			if all, err := node.PodVolumes("uid"); err != nil || !cmp.Equal(all, []Volume{place}) {
				t.Fatalf("%+v, %v, want the volume", all, err)
			}
			kerneltest.FUSE(t, filepath.Join(node.PodDir("uid"), dir))
			if all, err := node.PodVolumes("uid"); !errors.Is(err, mountns.ErrMayBlock) {
				t.Errorf("%+v, %v, want %v", all, err, mountns.ErrMayBlock)
			}
		})
	}
}
