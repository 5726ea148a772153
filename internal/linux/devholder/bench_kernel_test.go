// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package devholder

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/program"
)

// containerLoad is a machine full of containers. A seventh of the namespaces have the device mounted; the node itself
// has not.
type containerLoad struct {
	processes, namespaces int
	// plain is a load whose namespaces have hardly a mount of their own, and whose processes have one thread each.
	plain bool
}

var containerLoads = map[string]containerLoad{
	"500 processes, 50 namespaces":                         {500, 50, false},
	"2000 processes, 500 namespaces":                       {2000, 500, false},
	"1300 processes of one thread, 260 namespaces, no pod": {1300, 260, true},
}

// The mounts that a container adds to those of its node, and the number of the
// node's, so that a namespace has some 199.
const (
	ownMounts  = 24
	nodeMounts = 165
)

// startLoad mounts the disk and the mounts of a node in the test's namespace, starts the containers, which end with the
// test, and unmounts the disk.
func (l containerLoad) startLoad(b *testing.B, d testDisk) {
	b.Helper()
	node, err := os.MkdirTemp("", "load")
	must(b, err)
	b.Cleanup(func() { os.Remove(node) })
	must(b, sys.NewMount("node", node, "tmpfs", ""))
	b.Cleanup(func() { systest.UnmountPath(node, true) })
	role := "plain container"
	if !l.plain {
		role = "container"
		must(b, makeNode(node))
	}
	d.mountDisk(b)
	for i := range l.namespaces {
		kerneltest.Start(b, role, d.dir, node, strconv.Itoa(i), strconv.Itoa(l.processes/l.namespaces))
	}
	must(b, systest.UnmountPath(d.dir, false))
}

// makeNode makes the mounts of a kubelet and a runtime for their pods.
func makeNode(node string) error {
	for i := 0; i < nodeMounts; i += 4 {
		pod := filepath.Join(node, "pods", fmt.Sprintf("29da79e5-386c-4e0d-82c1-%012x", i))
		conf := filepath.Join(pod, "volumes/kubernetes.io~configmap/conf/..2021_06_02_06_01_21.244319292")
		if err := os.MkdirAll(conf, 0o700); err != nil {
			return err
		}
		overlay := filepath.Join(node, "overlay", fmt.Sprintf("%064x", i))
		for _, err := range []error{
			bindFile(filepath.Join(conf, "nginx.log"), filepath.Join(pod, "volume-subpaths-conf-app-1")),
			mountOn(filepath.Join(pod, "volumes/kubernetes.io~projected/kube-api-access"), "tmpfs", "size=262144k"),
			mountOn(filepath.Join(node, "sandboxes", fmt.Sprintf("%064x", i), "shm"), "tmpfs", "size=65536k"),
			mountLayers(overlay),
		} {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func bindFile(source, target string) error {
	return errors.Join(createFile(source), createFile(target), sys.BindMount(source, target))
}

func mountOn(dir, fsType, data string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), sys.NewMount(fsType, dir, fsType, data))
}

// mountLayers mounts an overlay of six lower directories.
func mountLayers(dir string) error {
	var lower []string
	for i := range 6 {
		lower = append(lower, filepath.Join(dir, strconv.Itoa(i)))
		if err := os.MkdirAll(lower[i], 0o700); err != nil {
			return err
		}
	}
	return mountOn(filepath.Join(dir, "rootfs"), "overlay", "lowerdir="+strings.Join(lower, ":"))
}

// containerRole makes the mounts of one container, and its other processes.
func containerRole(args []string, ready func(string)) error {
	held, own := args[0], filepath.Join(args[1], "own")
	number, _ := strconv.Atoi(args[2])
	processes, _ := strconv.Atoi(args[3])
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	if err := mountOn(own, "tmpfs", ""); err != nil {
		return err
	}
	for i := range ownMounts {
		name := filepath.Join(own, fmt.Sprintf("etc-file-%d", i))
		if err := bindFile(name+".source", name); err != nil {
			return err
		}
	}
	if err := holdEverySeventh(held, number); err != nil {
		return err
	}
	for range processes - 1 {
		p, err := os.StartProcess("/proc/self/exe", []string{os.Args[0]}, &os.ProcAttr{
			Env:   append(kerneltest.RoleEnv("idle"), "GOMAXPROCS=1", "GOGC=off"),
			Files: []*os.File{os.Stdin, os.Stderr, os.Stderr},
		})
		if err != nil {
			return err
		}
		defer p.Wait()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// holdEverySeventh lets every seventh namespace keep the device.
func holdEverySeventh(dir string, number int) error {
	if number%7 == 0 {
		return nil
	}
	return systest.UnmountPath(dir, true)
}

// plainRole is a container that mounts nothing. Its other processes have one thread each.
func plainRole(args []string, ready func(string)) error {
	number, _ := strconv.Atoi(args[2])
	processes, _ := strconv.Atoi(args[3])
	if err := errors.Join(sys.SetPropagation("/", sys.Private, true), holdEverySeventh(args[0], number)); err != nil {
		return err
	}
	for range processes - 1 {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "infinity"}, &os.ProcAttr{Files: []*os.File{nil, os.Stderr, os.Stderr}})
		if err != nil {
			return err
		}
		defer p.Kill()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// runTool runs a tool of today, and counts the lines of its output.
func runTool(script string) (lines int, err error) {
	out, err := exec.Command("sh", "-c", script).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = nil // it found nothing, or processes ended meanwhile
	}
	return strings.Count(string(out), "\n"), err
}

// wayTimes is how long each way took, in the order of the rounds.
type wayTimes map[string][]time.Duration

// median is the middle duration of a way.
func (t wayTimes) median(name string) time.Duration {
	all := slices.Sorted(slices.Values(t[name]))
	return all[len(all)/2]
}

// measureRounds runs the ways by turns, so that other load on the machine meets all of them; quick ones come several
// times in each round.
func measureRounds(b *testing.B, n int, ways map[string]func() error, quick map[string]func() error) wayTimes {
	b.Helper()
	t := wayTimes{}
	once := func(name string, way func() error) {
		start := time.Now()
		must(b, way())
		t[name] = append(t[name], time.Since(start))
	}
	for range n {
		for name, way := range ways {
			once(name, way)
			for name, way := range quick {
				once(name, way)
			}
		}
	}
	return t
}

// BenchmarkHolders compares the verb of the program, from start to end, with the commands of today, on the same load in
// the same run. The ratios count.
func BenchmarkHolders(b *testing.B) {
	kubediag := program.Build(b, "cmd/kubediag")
	for name, load := range containerLoads {
		b.Run(name, func(b *testing.B) {
			d := newTestDisk(b)
			load.startLoad(b, d)
			checkHolders(b, kubediag, d, load)
			for range b.N {
				measure(b, kubediag, d)
			}
		})
	}
}

// BenchmarkHoldersOfPath is BenchmarkHolders of a mount that is on no device, of which a process has a file open. The commands of today
// look for that file.
func BenchmarkHoldersOfPath(b *testing.B) {
	kubediag := program.Build(b, "cmd/kubediag")
	for name, load := range containerLoads {
		b.Run(name, func(b *testing.B) {
			load.startLoad(b, newTestDisk(b))
			dir := b.TempDir()
			must(b, sys.NewMount("memory", dir, "tmpfs", ""))
			b.Cleanup(func() { systest.UnmountPath(dir, true) })
			user := kerneltest.StartWith(b, nil, "use", "file", dir)
			// The path is looked up in the benchmark's own namespace, also where a kubelet runs.
			root := b.TempDir()
			out, err := exec.Command(kubediag, "holders", "--kubelet-root", root, dir).Output()
			if must(b, err); !strings.Contains(string(out), "open file "+dir+"/file\n") || !strings.Contains(string(out), user.Answer) {
				b.Fatalf("the user is not in\n%s", out)
			}
			ways, quick := map[string]func() error{}, map[string]func() error{}
			for name, script := range map[string]string{"lsof": "lsof +f -- " + dir + " 2>/dev/null | grep " + dir, "fuser": "fuser -vm " + dir + " 2>&1 | grep " + user.Answer} {
				ways[name] = func() error {
					lines, err := runTool(script)
					if err == nil && lines == 0 {
						err = errors.New(name + " finds nothing")
					}
					return err
				}
			}
			quick["holders"] = func() error {
				_, err := runTool(kubediag + " holders --kubelet-root " + root + " " + dir)
				return err
			}
			for range b.N {
				t := measureRounds(b, 3, ways, quick)
				for name := range t {
					b.ReportMetric(float64(t.median(name).Microseconds())/1000, "ms-"+name)
				}
				b.ReportMetric(float64(t.median("lsof"))/float64(t.median("holders")), "x-lsof")
				b.ReportMetric(float64(t.median("fuser"))/float64(t.median("holders")), "x-fuser")
			}
		})
	}
}

func measure(b *testing.B, kubediag string, d testDisk) {
	b.Helper()
	number := d.Number.String()
	lines := map[string]int{}
	ways := map[string]func() error{}
	for name, script := range map[string]string{
		"grep-tasks":   "grep -l ' " + number + " ' /proc/[0-9]*/task/[0-9]*/mountinfo 2>/dev/null",
		"grep-leaders": "grep -l ' " + number + " ' /proc/[0-9]*/mountinfo 2>/dev/null",
		"lsof":         "lsof " + d.dev + " 2>/dev/null | tail -n +2",
		"fuser":        "fuser -m " + d.dev + " 2>/dev/null",
		"findmnt":      "findmnt --noheadings --source " + d.dev,
	} {
		ways[name] = func() (err error) {
			lines[name], err = runTool(script)
			return err
		}
	}
	quick := map[string]func() error{}
	quick["holders"] = func() error {
		_, err := runTool(kubediag + " holders " + d.dev)
		return err
	}
	t := measureRounds(b, 3, ways, quick)
	for name := range t {
		b.ReportMetric(float64(t.median(name).Microseconds())/1000, "ms-"+name)
	}
	for name, n := range lines {
		b.ReportMetric(float64(n), "found-"+name)
	}
	for name := range quick {
		b.ReportMetric(float64(t.median("grep-tasks"))/float64(t.median(name)), "x-"+name)
		b.ReportMetric(float64(t.median("grep-leaders"))/float64(t.median(name)), "x-leaders-"+name)
	}
}

// checkHolders makes sure that the program finds every container that has the device mounted, with each of its
// processes.
func checkHolders(b *testing.B, kubediag string, d testDisk, l containerLoad) {
	b.Helper()
	out, err := exec.Command(kubediag, "holders", "-o", "json", d.dev).Output()
	if failed := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		b.Fatal(err)
	}
	var said struct {
		Holders []struct{ PIDs []int }
	}
	must(b, json.Unmarshal(out, &said))
	pids := 0
	for _, h := range said.Holders {
		pids += len(h.PIDs)
	}
	if want := (l.namespaces + 6) / 7; len(said.Holders) != want || pids != want*l.processes/l.namespaces {
		b.Fatalf("%d holders, %d processes, want %d namespaces: %.2000s", len(said.Holders), pids, want, out)
	}
}
