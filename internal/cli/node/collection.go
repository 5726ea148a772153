// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/oomlog"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor/inventory"
	"kubediag.org/kubediag/internal/redact"
)

// Bounds of the entries beside the evidence.
const (
	maxTables       = 64   // mount tables of other namespaces
	maxNamespaces   = 4096 // that are listed
	maxBlockDevices = 4096 // devices that are listed
	maxLogLines     = 2000
	maxLogBytes     = 4 << 20 // the last of a log file, in bytes
	maxLogLine      = 4 << 10
	logTimeout      = 5 * time.Second
)

// bundleCollection puts a bundle together. All text goes through redact and printable.
type bundleCollection struct {
	*bundle.Bundle

	scan   *scan
	failed error
}

// addText adds an entry for people.
func (c *bundleCollection) addText(name, about, text string) {
	if err := c.Add(name, about, []byte(printable.Text(redact.Text(text)))); err != nil {
		c.failed = errors.Join(c.failed, err)
	}
}

// addJSON adds an entry for programs.
func (c *bundleCollection) addJSON(name, about string, v any) {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		c.failed = errors.Join(c.failed, fmt.Errorf("write %q: %w", name, err))
		return
	}
	c.addText(name, about, string(text)+"\n")
}

// addEvidence adds the answers of the node.
func (c *bundleCollection) addEvidence(has nodeRecording) {
	c.addJSON(nodeEntry, "what the scan has to know beside the evidence", has.node)
	for _, s := range searches.All() {
		if evidence, known := has.evidence[s.Entry]; known {
			c.addJSON(s.Entry, s.Content, evidence)
		}
	}
}

// addPods adds the specs that were given: the part that a scan rests on or, if whole is set, all of them without possible
// credentials.
func (c *bundleCollection) addPods(specs podFile, n nodeRecord, whole bool) {
	if specs == nil {
		c.Omit(podsEntry, "no specs of pods were given (--pods)")
		return
	}
	l := corev1.PodList{Items: []corev1.Pod{}}
	l.APIVersion, l.Kind = "v1", "PodList"
	for _, uid := range slices.Sorted(slices.Values(n.PodUIDs)) {
		if pod := specs.PodByUID(uid); pod != nil {
			pod = pod.DeepCopy()
			if !whole {
				pod = extract.Pod(pod)
			}
			if extract.Large(pod) {
				c.Omit("pod "+uid+" in "+podsEntry, "its volumes and mounts are too large (--whole-pods has them)")
				continue
			}
			inventory.CleanPod(pod)
			l.Items = append(l.Items, *pod)
		}
	}
	c.addJSON(podsEntry, "specs and status of the pods of this node", l)
}

// addNode adds mount tables, namespaces, devices, and the features of the kernel.
func (c *bundleCollection) addNode(ctx context.Context, has nodeRecording) {
	c.addJSON("features.json", "what this kernel can do", probeFeatures(sys.Features()))
	if text, err := c.scan.node.ReadMounts(); err != nil {
		c.Omit("mountinfo/kubelet.txt", err.Error())
	} else {
		c.addText("mountinfo/kubelet.txt", "mount table of the kubelet", string(text))
	}
	spaces, _, err := mountns.Namespaces()
	if err != nil {
		c.Omit("namespaces.json", err.Error())
	} else {
		matter := map[uint64]int{} // those that the evidence names, each with a process in it; 0: none is known
		for _, evidence := range has.evidence {
			if of, ok := evidence.(interface{ MountNamespaces() map[uint64]int }); ok {
				for inode, pid := range of.MountNamespaces() {
					matter[inode] = max(matter[inode], pid)
				}
			}
		}
		delete(matter, 0)
		delete(matter, has.node.MountNamespace)
		c.addNamespaces(spaces, matter)
	}
	devices, err := callWithin(ctx, logTimeout, func(context.Context) ([]blockFacts, error) { return listBlockDevices("/sys/class/block") })
	if err != nil {
		c.Omit("block.json", err.Error())
	} else {
		c.addJSON("block.json", "block devices", devices)
	}
}

// namespaceFacts is one mount namespace.
type namespaceFacts struct {
	Inode   uint64 `json:"inode"`
	ID      uint64 `json:"id,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Command string `json:"command,omitempty"`
	// Mounts is the entry with its mount table; empty: it was not collected.
	Mounts string `json:"mounts,omitempty"`
}

// addNamespaces adds the list of mount namespaces, and the tables of those that matter and have a process.
func (c *bundleCollection) addNamespaces(spaces []mountns.Namespace, matter map[uint64]int) {
	var list []namespaceFacts
	tables := 0
	for _, namespace := range spaces[:min(len(spaces), maxNamespaces)] {
		pid, matters := matter[namespace.Inode]
		of := namespaceFacts{Inode: namespace.Inode, ID: namespace.ID, PID: cmp.Or(pid, namespace.PID)}
		if of.PID != 0 {
			command, _ := sys.ReadProc(strconv.Itoa(of.PID)+"/comm", nil) // empty: it has ended
			of.Command = strings.TrimSpace(string(command))
		}
		if matters && of.PID != 0 && tables < maxTables {
			name := fmt.Sprintf("mountinfo/%d.txt", namespace.Inode)
			if text, err := mountns.Read(of.PID, nil); err == nil {
				of.Mounts = name
				tables++
				c.addText(name, fmt.Sprintf("mount table of namespace %d, as process %d sees it", namespace.Inode, of.PID), string(text))
			}
		}
		if matters && of.Mounts == "" {
			c.Omit(fmt.Sprintf("mount table of namespace %d", namespace.Inode), "it has no process whose table could be read, or there are too many")
		}
		list = append(list, of)
	}
	if more := len(spaces) - maxNamespaces; more > 0 {
		c.Omit("some mount namespaces", fmt.Sprintf("there are %d more than are listed", more))
	}
	c.addJSON("namespaces.json", "mount namespaces of the node", list)
}

// blockFacts is one block device.
type blockFacts struct {
	Name string `json:"name"`
	// Number is major:minor, Sectors the size in units of 512 bytes.
	Number   string   `json:"number"`
	Sectors  string   `json:"sectors"`
	ReadOnly bool     `json:"readOnly"`
	Holders  []string `json:"holders,omitempty"`
	Slaves   []string `json:"slaves,omitempty"`
}

// listBlockDevices reads the devices below a directory of sysfs.
func listBlockDevices(dir string) (all []blockFacts, err error) {
	devices, err := entryNames(dir)
	if err != nil {
		return nil, err
	}
	for _, device := range devices[:min(len(devices), maxBlockDevices)] {
		at := filepath.Join(dir, device)
		attribute := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(at, name)) // empty: it is gone
			return strings.TrimSpace(string(text))
		}
		holders, _ := entryNames(filepath.Join(at, "holders")) // a partition has none
		slaves, _ := entryNames(filepath.Join(at, "slaves"))
		all = append(all, blockFacts{
			Name: device, Number: attribute("dev"), Sectors: attribute("size"), ReadOnly: attribute("ro") == "1",
			Holders: holders, Slaves: slaves,
		})
	}
	return all, nil
}

// aboutMounts finds messages of the kernel that have to do with file systems, devices and memory.
var aboutMounts = regexp.MustCompile(`(?i)ext4-fs|xfs|btrfs|fuse|nfs|ceph|rbd\d|cifs|gluster|i/o error|buffer i/o|blk_update|nvme|scsi|device-mapper|` +
	`blocked for more than|hung_task|out of memory|oom-kill|killed process|iscsi|remount`)

// addLogs adds the lines of the kernel's and of the kubelet's log that are about mounts.
func (c *bundleCollection) addLogs(ctx context.Context, file string, stdin io.Reader) {
	lines, err := callWithin(ctx, logTimeout, func(ctx context.Context) ([]string, error) {
		return oomlog.Messages(ctx, maxLogLines, aboutMounts.MatchString)
	})
	if err != nil {
		c.Omit("logs/kernel.txt", err.Error())
	} else {
		c.addText("logs/kernel.txt", "messages of the kernel about file systems, devices and memory", joinLines(lines))
	}
	files, limit := []string{file}, time.Duration(math.MaxInt64) // a pipe may take its time
	if file == "" {
		limit = logTimeout
		root := ""
		if pid := c.scan.node.PID; pid != 0 {
			root = fmt.Sprintf("/proc/%d/root", pid)
		}
		files = []string{root + "/var/log/kubelet.log", root + "/var/log/messages", root + "/var/log/syslog"}
	}
	for _, name := range files {
		lines, err = callWithin(ctx, limit, func(context.Context) ([]string, error) { return lastKubeletLines(name, stdin) })
		if err == nil {
			c.addText("logs/kubelet.txt", "lines of the kubelet's log about mounts, from "+printable.Line(name), joinLines(lines))
			return
		}
	}
	c.Omit("logs/kubelet.txt", fmt.Sprintf("%v (give it with --log, as from journalctl -u kubelet)", err))
}

func joinLines(lines []string) string {
	if len(lines) == 0 {
		return "(no line is about mounts)\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

// lastKubeletLines are the last lines of a log, or of standard input, that mention a fault or a volume.
func lastKubeletLines(name string, stdin io.Reader) (lines []string, err error) {
	input := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		st, err := file.Stat()
		if err != nil {
			return nil, err
		}
		if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("read %q: it is no regular file", name)
		}
		if _, err := file.Seek(max(0, st.Size()-maxLogBytes), io.SeekStart); err != nil {
			return nil, err
		}
		input = io.LimitReader(file, maxLogBytes)
	}
	scanner := bufio.NewScanner(input)
	scanner.Buffer(make([]byte, 0, 64<<10), maxLogBytes)
	for scanner.Scan() {
		line := scanner.Text()
		line = strings.ToValidUTF8(line[:min(len(line), maxLogLine)], "")
		if found := kubelog.Mentions(line); len(found.Codes)+len(found.Volumes) == 0 {
			continue
		}
		if lines = append(lines, line); len(lines) > 2*maxLogLines {
			lines = append(lines[:0], lines[len(lines)-maxLogLines:]...)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read %q: %w", name, err)
	}
	return lines[max(0, len(lines)-maxLogLines):], nil
}
