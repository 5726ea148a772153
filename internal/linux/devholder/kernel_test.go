// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package devholder

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/loopback"
)

// testDisk is a loop device of the test's own, with an ext4 on it, and a directory
// to mount it on.
type testDisk struct {
	blockdev.Device
	dev, dir string
}

// newTestDisk makes a device that is gone after the test. Every process that holds it
// must have ended by then.
func newTestDisk(t testing.TB, mkfs ...string) testDisk {
	t.Helper()
	base, err := os.MkdirTemp("", "disk")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(dir, 0o700))
	must(t, createFile(image))
	must(t, os.Truncate(image, 16<<20))
	dev := loopback.Attach(t, image)
	t.Cleanup(func() { checkFree(t, dev, image) })
	if mkfs == nil {
		mkfs = []string{"mkfs.ext4", "-q"}
	}
	_, err = output(mkfs[0], append(mkfs[1:], dev)...)
	must(t, err)
	d, err := blockdev.Sys{}.Resolve(dev)
	must(t, err)
	return testDisk{Device: d, dev: dev, dir: dir}
}

// checkFree has the device go, and fails if a process still holds it. The number may be another's device then.
func checkFree(t testing.TB, dev, image string) {
	for range 200 {
		d, err := blockdev.Sys{}.Resolve(dev)
		must(t, err)
		busy, err := blockdev.Sys{}.Busy(d)
		if err == nil && !busy {
			break
		}
		time.Sleep(10 * time.Millisecond) // the kernel frees it some time after the last close
	}
	if !loopback.Detach(t, dev, image) {
		t.Errorf("%s is still held", dev)
	}
}

// mountDisk mounts the disk in the test's namespace, for as long as the test runs.
func (d testDisk) mountDisk(t testing.TB) {
	t.Helper()
	must(t, sys.NewMount(d.dev, d.dir, "ext4", ""))
	t.Cleanup(func() { systest.UnmountPath(d.dir, true) })
}

// startRole plays a role on the disk and gives the process that holds it.
func (d testDisk) startRole(t testing.TB, role string, args ...string) int {
	t.Helper()
	a := kerneltest.Start(t, role, append([]string{d.dev, d.dir}, args...)...)
	pid, err := strconv.Atoi(a.Answer)
	must(t, err)
	return pid
}

// holderSummary holds the facts of a holder that the tests compare.
type holderSummary struct {
	Kind             Kind
	Path             string
	PIDs             []int
	NamespaceHolders []mountns.Kind
	Inferred         bool
}

// isOfOthers reports whether a holder is not the test's: an overlay that may have lost a layer, or a process that looks at every device.
func isOfOthers(h Holder) bool {
	return h.Inferred && !strings.HasPrefix(h.Path, filepath.Join(os.TempDir(), "disk")) ||
		h.Kind == RawOpen && !slices.ContainsFunc(h.PIDs, isChild)
}

// holderSummaries leaves out the holders of others.
func holderSummaries(r *Report) []holderSummary {
	var list []holderSummary
	for _, h := range r.Holders {
		if isOfOthers(h) {
			continue
		}
		b := holderSummary{Kind: h.Kind, Path: h.Path, PIDs: h.PIDs, Inferred: h.Inferred}
		for _, k := range h.NamespaceHolders {
			b.NamespaceHolders = append(b.NamespaceHolders, k.Kind)
		}
		list = append(list, b)
	}
	return list
}

// processSummary is a list of one holder that is a process, or kept by one.
func processSummary(kind Kind, path string, pid int, namespaceHolders ...mountns.Kind) []holderSummary {
	return []holderSummary{{Kind: kind, Path: path, PIDs: []int{pid}, NamespaceHolders: namespaceHolders}}
}

// situation is a way in which a device is held. build sets it up and gives the
// holders that are to be found.
type situation struct {
	build  func(t *testing.T, d testDisk) []holderSummary
	free   bool // the kernel does not call the device busy
	hidden bool // the holder, or the proof of it, cannot be found
	// walkOnly is whether only the walk over all mount namespaces finds the holder. It is hidden on other kernels.
	walkOnly bool
}

// roleSituation is a situation that a role makes, and in which that role's process is the
// only holder.
func roleSituation(role string, kind Kind, path string, namespaceHolders ...mountns.Kind) situation {
	return situation{build: func(t *testing.T, d testDisk) []holderSummary {
		pid := d.startRole(t, role)
		switch path {
		case "dir":
			return processSummary(kind, d.dir, pid, namespaceHolders...)
		case "dev":
			return processSummary(kind, d.dev, pid, namespaceHolders...)
		}
		return processSummary(kind, path, pid, namespaceHolders...)
	}}
}

func (s situation) onlyByWalk() situation {
	s.walkOnly = true
	return s
}

// situations are all ways to hold a device that are known and that this machine
// can be brought into.
var situations = map[string]situation{
	"in a namespace of its own":        roleSituation("mounted", Mount, "dir", mountns.Process),
	"below another mount":              roleSituation("covered", Mount, "dir", mountns.Process),
	"after pivot_root":                 roleSituation("pivoted", Mount, "/data", mountns.Process),
	"in the namespace of a thread":     roleSituation("threaded", Mount, "dir", mountns.Thread),
	"outside a chroot":                 roleSituation("chrooted", Mount, "dir", mountns.Process),
	"below a root that was moved over": roleSituation("moved", Mount, "dir", mountns.Process).onlyByWalk(),
	"namespace kept by a descriptor":   roleSituation("descriptor", Mount, "dir", mountns.Descriptor),
	"namespace kept by a file":         {build: boundNamespace},
	"namespace kept by a mount table":  {build: openTable, walkOnly: true},

	"lazily unmounted, file":      roleSituation("lazy file", OpenFile, "/file"),
	"lazily unmounted, directory": roleSituation("lazy directory", WorkingDirectory, "/"),
	"lazily unmounted, root":      roleSituation("lazy root", RootDirectory, "/"),
	"lazily unmounted, program":   roleSituation("lazy program", Program, "/program"),
	"lazily unmounted, mapping":   roleSituation("lazy mapping", Mapping, "/library"),
	"lazily unmounted, thread":    roleSituation("lazy thread", WorkingDirectory, "/"),
	"detached tree":               roleSituation("detached", DetachedMount, "/"),

	"overlay":              {build: overlaySituation, hidden: true},
	"loop device":          {build: loopSituation},
	"descriptor in flight": {build: inFlightSituation, hidden: true},
	"raw open":             {build: rawOpenSituation, free: true},
	"swap":                 {build: swapSituation},
	"external journal":     {build: journalled},
	"nobody":               {build: func(*testing.T, testDisk) []holderSummary { return nil }, free: true},

	"in a child user namespace":    {build: inNamespace(sys.PrivateMounts(sys.Clone{User: true}))},
	"in another PID namespace":     {build: inNamespace(newPIDNamespace())},
	"in the test's own and others": {build: twoDisksSituation},
}

// boundNamespace binds a namespace to a file.
func boundNamespace(t *testing.T, d testDisk) []holderSummary {
	file := filepath.Join(filepath.Dir(d.dir), "namespace")
	must(t, createFile(file))
	kerneltest.BindNamespace(t, file, func() *kerneltest.Actor { return kerneltest.Start(t, "mounted", d.dev, d.dir) })
	return []holderSummary{{Kind: Mount, Path: d.dir, NamespaceHolders: []mountns.Kind{mountns.NamedMount}}}
}

func openTable(t *testing.T, d testDisk) []holderSummary {
	d.startRole(t, "table")
	return []holderSummary{{Kind: Mount, Path: d.dir}}
}

func overlaySituation(t *testing.T, d testDisk) []holderSummary {
	d.startRole(t, "overlaid")
	return []holderSummary{{Kind: OverlayLayer, Path: filepath.Join(filepath.Dir(d.dir), "merged"), Inferred: true}}
}

func loopSituation(t *testing.T, d testDisk) []holderSummary {
	d.startRole(t, "looped")
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	for _, name := range all {
		if text, _ := os.ReadFile(name); string(text) == "/image\n" {
			return []holderSummary{{Kind: LoopDevice, Path: "/dev/" + strings.Split(name, "/")[3]}}
		}
	}
	t.Fatal("no loop device over the image")
	return nil
}

func inFlightSituation(t *testing.T, d testDisk) []holderSummary {
	d.startRole(t, "in flight")
	return nil
}

func rawOpenSituation(t *testing.T, d testDisk) []holderSummary {
	return processSummary(RawOpen, d.dev, d.startRole(t, "raw"))
}

func swapSituation(t *testing.T, d testDisk) []holderSummary {
	_, err := output("mkswap", "--force", d.dev)
	must(t, err)
	_, err = output("swapon", d.dev)
	must(t, err)
	t.Cleanup(func() { _ = exec.Command("swapoff", d.dev).Run() })
	return []holderSummary{{Kind: Swap, Path: d.dev}}
}

// journalled makes the disk the journal of another.
func journalled(t *testing.T, d testDisk) []holderSummary {
	_, err := output("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "journal_dev", d.dev)
	must(t, err)
	data := newTestDisk(t, "mkfs.ext4", "-q", "-b", "4096", "-J", "device="+d.dev)
	pid := data.startRole(t, "mounted")
	return append(processSummary(Mount, data.dir, pid, mountns.Process),
		holderSummary{Kind: Journal, Path: "/sys/fs/ext4/" + data.Name + "/journal_task"})
}

// newPIDNamespace is a mount namespace and a PID namespace.
func newPIDNamespace() *sys.ProcAttr {
	attr := sys.PrivateMounts(sys.Clone{})
	const cloneNewPID = 0x20000000
	attr.Cloneflags |= cloneNewPID
	return attr
}

// inNamespace has a process with namespaces of its own inherit the mount.
func inNamespace(attr *sys.ProcAttr) func(t *testing.T, d testDisk) []holderSummary {
	return func(t *testing.T, d testDisk) []holderSummary {
		d.mountDisk(t)
		a := kerneltest.StartWith(t, attr, "copy")
		must(t, systest.UnmountPath(d.dir, false))
		return processSummary(Mount, d.dir, a.PID, mountns.Process)
	}
}

func twoDisksSituation(t *testing.T, d testDisk) []holderSummary {
	d.mountDisk(t)
	first, second := kerneltest.Start(t, "copy"), kerneltest.Start(t, "copy")
	keep := []mountns.Kind{mountns.Process}
	list := []holderSummary{
		{Kind: Mount, Path: d.dir, PIDs: []int{first.PID}, NamespaceHolders: keep},
		{Kind: Mount, Path: d.dir, PIDs: []int{second.PID}, NamespaceHolders: keep},
	}
	self := holderSummary{Kind: Mount, Path: d.dir}
	own, err := mountns.Self()
	must(t, err)
	kept, _, err := mountns.Holders([]mountns.Namespace{own})
	must(t, err)
	for _, h := range kept[own.Inode] {
		self.PIDs, self.NamespaceHolders = append(self.PIDs, h.PID), append(self.NamespaceHolders, h.Kind)
	}
	return append(list, self)
}

// TestEverySituation builds each for real. The holders of the device must be found, or reported as hidden, and nothing
// else be named.
func TestEverySituation(t *testing.T) {
	finder, walks := &Finder{}, sys.HasNamespaceWalk.Probe() == nil
	for name, s := range situations {
		t.Run(name, func(t *testing.T) {
			d := newTestDisk(t)
			want := s.build(t, d)
			if s.walkOnly && !walks {
				want, s.hidden = nil, true
			}
			for range 2 { // cold and warm, and no process the worse for it
				r, err := finder.Find(t.Context(), d.Device)
				for deadline := time.Now().Add(30 * time.Second); err == nil && errors.Is(r.Untested, context.DeadlineExceeded) &&
					time.Now().Before(deadline); { // others want the processors, too
					r, err = finder.Find(t.Context(), d.Device)
				}
				must(t, err)
				checkSummaries(t, r, s, want)
			}
		})
	}
}

func checkSummaries(t *testing.T, r *Report, s situation, want []holderSummary) {
	t.Helper()
	r.Holders = slices.DeleteFunc(r.Holders, isOfOthers)
	inOrder := func(list []holderSummary) []holderSummary {
		return slices.SortedFunc(slices.Values(list), func(a, b holderSummary) int { return slices.Compare(a.PIDs, b.PIDs) })
	}
	if diff := cmp.Diff(inOrder(want), inOrder(holderSummaries(r))); diff != "" {
		t.Errorf("holders: %s\n%+v", diff, r)
	}
	if r.Busy == s.free || r.Untested != nil {
		t.Errorf("busy %v, %v", r.Busy, r.Untested)
	}
	if (len(r.Hidden) > 0) != s.hidden {
		t.Errorf("hidden: %q", r.Hidden)
	}
	for _, h := range r.Holders {
		for _, pid := range h.PIDs {
			if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
				t.Errorf("holder %d did not live through it: %v", pid, err)
			}
		}
	}
}

// isChild reports whether a process is one of the test's. Others open every device there is, such as udev and losetup.
func isChild(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && strings.Contains(string(status), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n")
}

// findRole reports the findings of a finder without rights.
func findRole(args []string, ready func(string)) error {
	d, err := blockdev.Sys{}.Resolve(args[0])
	if err != nil {
		return err
	}
	r, err := (&Finder{WithProcesses: true}).Find(context.Background(), d) //nolint:forbidigo // a role is no test
	if err != nil {
		return err
	}
	answer, err := json.Marshal(map[string]any{"looked": r.Coverage, "hidden": r.Hidden, "holders": len(r.Holders)})
	ready(string(answer))
	return err
}

// TestWithProcessesNamesUsersOfMounts: asked for everything, it also says which
// processes use a mount that explains by itself why the device is busy.
func TestWithProcessesNamesUsersOfMounts(t *testing.T) {
	d := newTestDisk(t)
	pid := d.startRole(t, "mounted")
	d.mountDisk(t)
	f, err := os.Create(filepath.Join(d.dir, "file"))
	must(t, err)
	defer f.Close()
	r, err := (&Finder{}).Find(t.Context(), d.Device)
	must(t, err)
	if r.Coverage.Processes || len(r.Holders) != 2 {
		t.Errorf("mounts alone: %+v", r)
	}
	r, err = (&Finder{WithProcesses: true}).Find(t.Context(), d.Device)
	must(t, err)
	var files []holderSummary
	for _, b := range holderSummaries(r) {
		if b.Kind != Mount {
			files = append(files, b)
		}
	}
	want := processSummary(OpenFile, f.Name(), os.Getpid())
	if diff := cmp.Diff(want, files); diff != "" || !r.Coverage.Processes || r.Coverage.Links < 10 {
		t.Errorf("beside %d: %s\n%v", pid, diff, r.Coverage)
	}
}

// TestWithoutRights: in a user namespace other processes may not be inspected. They are counted, and named as possible
// holders of the device.
func TestWithoutRights(t *testing.T) {
	d := newTestDisk(t)
	d.startRole(t, "lazy file")
	a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "find", d.dev)
	var answer struct {
		Looked  Coverage
		Hidden  []string
		Holders int
	}
	must(t, json.Unmarshal([]byte(a.Answer), &answer))
	if answer.Holders != 0 || answer.Looked.Denied == 0 || answer.Looked.Mounts.Backend != "procfs" {
		t.Errorf("%+v", answer)
	}
	for _, want := range []string{"may not be looked into", "outside the root"} {
		if !slices.ContainsFunc(answer.Hidden, func(h string) bool { return strings.Contains(h, want) }) {
			t.Errorf("%q is not among %q", want, answer.Hidden)
		}
	}
}

// TestProcessesVanish searches while processes come and go.
func TestProcessesVanish(t *testing.T) {
	d := newTestDisk(t)
	pid := d.startRole(t, "lazy file")
	for range 2 {
		kerneltest.Start(t, "churn")
	}
	finder := &Finder{WithProcesses: true}
	for range 20 {
		r, err := finder.Find(t.Context(), d.Device)
		must(t, err)
		if diff := cmp.Diff(processSummary(OpenFile, "/file", pid), holderSummaries(r)); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestManyMounts finds every one of many.
func TestManyMounts(t *testing.T) {
	const n = 10_000
	d := newTestDisk(t)
	pid := d.startRole(t, "binds", strconv.Itoa(n))
	r, err := (&Finder{}).Find(t.Context(), d.Device)
	must(t, err)
	ids := map[uint64]bool{}
	for _, holder := range r.Holders {
		id := holder.Mount.Unique
		if id == 0 {
			id = uint64(holder.Mount.ID) // before 6.8; while all are there, each has another
		}
		ids[id] = true
		if holder.Kind != Mount || !slices.Equal(holder.PIDs, []int{pid}) || holder.Mount.Namespace.PID != pid {
			t.Fatalf("%+v", holder)
		}
	}
	if len(ids) != n+1 {
		t.Errorf("%d mounts, want %d", len(ids), n+1)
	}
}

// TestEnds: a search whose time is over says so.
func TestEnds(t *testing.T) {
	d := newTestDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := (&Finder{}).Find(ctx, d.Device); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", r, err)
	}
}

func noFileSystem(mountns.Mount) bool { return false }

// TestFindAbandoned lists the devices that others have mounted and the host has not.
func TestFindAbandoned(t *testing.T) {
	host, err := mountns.Self()
	must(t, err)
	used, left, idle := newTestDisk(t), newTestDisk(t), newTestDisk(t)
	used.mountDisk(t)
	kerneltest.Start(t, "copy")
	pid := left.startRole(t, "mounted")
	other, err := mountns.Of(pid)
	must(t, err)
	reports := func(host mountns.Namespace) map[string][]holderSummary {
		t.Helper()
		all, _, err := (&Finder{}).FindAbandoned(t.Context(), host, noFileSystem)
		must(t, err)
		found := map[string][]holderSummary{}
		for _, r := range all {
			if slices.Contains([]string{used.Name, left.Name, idle.Name}, r.Device.Name) {
				found[r.Device.Name] = holderSummaries(r)
			}
		}
		return found
	}
	want := map[string][]holderSummary{left.Name: processSummary(Mount, left.dir, pid, mountns.Process)}
	if diff := cmp.Diff(want, reports(host)); diff != "" {
		t.Error(diff)
	}
	if found := reports(other); found[left.Name] != nil {
		t.Errorf("as seen from the holder: %v", found)
	}
	if _, _, err := (&Finder{}).FindAbandoned(t.Context(), mountns.Namespace{Inode: 1}, noFileSystem); !errors.Is(err, mountns.ErrGone) {
		t.Errorf("of no namespace: %v", err)
	}
}

// TestAbandonedThatIsFreeByNow: the one process that had the device mounted ends between the two looks. It is no device that was left.
func TestAbandonedThatIsFreeByNow(t *testing.T) {
	host, err := mountns.Self()
	must(t, err)
	left := newTestDisk(t)
	holder := kerneltest.Start(t, "mounted", left.dev, left.dir)
	searches, _, err := (&Finder{}).searchAbandoned(host, noFileSystem)
	must(t, err)
	ours := func(s *holderSearch) bool { return s.report.Device.Name == left.Name }
	if !slices.ContainsFunc(searches, ours) {
		t.Fatal("the device is not among those that were left")
	}
	searches = slices.DeleteFunc(searches, func(s *holderSearch) bool { return !ours(s) })
	holder.Kill()
	kerneltest.Await(t, "the kernel frees the device", func() bool {
		busy, err := blockdev.Sys{}.Busy(left.Device)
		must(t, err)
		return !busy
	})
	reports, err := finishAll(t.Context(), nil, searches)
	must(t, err)
	for _, r := range reports {
		t.Errorf("found %+v", r)
	}
}
