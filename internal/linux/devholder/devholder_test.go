// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

func TestLayers(t *testing.T) {
	t.Parallel()
	for options, want := range map[string][]string{
		"rw,lowerdir=/a:/b,upperdir=/c,workdir=/d":     {"/a", "/b", "/c"},
		"rw,lowerdir+=/a:1,lowerdir+=/b,datadir+=/d":   {"/a:1", "/b", "/d"},
		`rw,lowerdir=/a\134:1:/b\134\134,upperdir=/c:`: {"/a:1", `/b\`, "/c:"},
		`rw,lowerdir=/a\0541:/b\040c::/data`:           {"/a,1", "/b c", "/data"},
		"rw,lowerdir=l/ABC:l/DEF,upperdir=diff":        {"l/ABC", "l/DEF", "diff"},
		`rw,lowerdir=/ends\134`:                        {`/ends\`},
		"rw,relatime":                                  nil,
		"":                                             nil,
	} {
		if diff := cmp.Diff(want, parseLayers(options)); diff != "" {
			t.Errorf("%q: %s", options, diff)
		}
	}
}

func TestEachMapping(t *testing.T) {
	t.Parallel()
	const text = `55d0c8a00000-55d0c8a01000 r-xp 00000000 07:1a 42                        /with space (deleted)
7ffd0000-7ffd1000 rw-p 00000000 00:00 0                                  [stack]
7f00-7f01 rw-s 00001000 103:00000 7 /nvme
7f02-7f03 r--p 00000000 00:27 12 
broken
7f04-7f05 r--p 00000000 zz:01 12 /bad
7f06-7f07 r--p 00000000 08:01 12 /last`
	got := map[string]string{}
	eachMapping([]byte(text), func(n blockdev.Number, _, path []byte) { got[n.String()] = string(path) })
	want := map[string]string{"7:26": "/with space (deleted)", "259:0": "/nvme", "0:39": "", "8:1": "/last"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestBtrfsMembers: a btrfs is known by the node of any of its devices, also one
// that is called by another name.
func TestBtrfsMembers(t *testing.T) {
	t.Parallel()
	s, system := &deviceSigns{btrfs: map[string]bool{"sdb": true, "dm-3": true}}, blockdev.Sys{Root: t.TempDir()}
	for source, want := range map[string]bool{"/dev/sdb": true, "/dev/sdc": false, "/dev/dm-3": true, "none": false, "": false} {
		if s.isMember(system, source) != want {
			t.Errorf("%q: want %v", source, want)
		}
	}
}

// TestBtrfsIsPlacedByAnyOfItsMounts: its mounts show a number of no device.
func TestBtrfsIsPlacedByAnyOfItsMounts(t *testing.T) {
	t.Parallel()
	s := &reportBuilder{report: &Report{Busy: true, FileSystems: []blockdev.FileSystem{{Type: "btrfs"}}}, explained: map[blockdev.Number]bool{}}
	if !s.busyUnexplained() {
		t.Error("explained by nothing")
	}
	s.markExplained(blockdev.Number{Minor: 39})
	if s.busyUnexplained() {
		t.Error("a mount does not explain it")
	}
}

// TestRawOpenExplainsNoFileSystem: who has the device open does not keep a
// superblock on it alive.
func TestRawOpenExplainsNoFileSystem(t *testing.T) {
	t.Parallel()
	n := blockdev.Number{Major: 7, Minor: 1}
	s := &reportBuilder{
		report:    &Report{Busy: true, FileSystems: []blockdev.FileSystem{{Type: "ext4", Number: n}}},
		explained: map[blockdev.Number]bool{}, busyProven: true,
	}
	if !s.busyUnexplained() {
		t.Error("explained")
	}
}

// TestNamesAreBounded: of very many holders only so many are named, and the rest is counted.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	search := &reportBuilder{report: &Report{}, entries: map[holderKey]int{}}
	for i := range maxNamedHolders + 5 {
		search.addHolder(Holder{Kind: OpenFile, Path: filepath.Join("/", string(rune('a'+i%26)), string(rune(0x100+i))), PIDs: []int{i}})
	}
	search.addHolder(Holder{Kind: OpenFile, Path: "/a/\u0100", PIDs: []int{7}})
	if len(search.report.Holders) != maxNamedHolders || search.report.Coverage.Unnamed != 5 {
		t.Errorf("%d named, %d not", len(search.report.Holders), search.report.Coverage.Unnamed)
	}
	if diff := cmp.Diff([]int{0, 7}, search.report.Holders[0].PIDs); diff != "" {
		t.Error(diff)
	}
}

func TestNoSuchDevice(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys/class/block"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := blockdev.Device{Name: "rbd7", Number: blockdev.Number{Major: 4000, Minor: 7}}
	if r, err := (&Finder{Sys: blockdev.Sys{Root: root}}).Find(t.Context(), d); err == nil {
		t.Errorf("found %v", r)
	}
}

func TestCoverageString(t *testing.T) {
	t.Parallel()
	looked := Coverage{Mounts: mountns.Survey{Backend: "kernel", Mounts: 7, Namespaces: 2}, Processes: true, Tasks: 3, Links: 9, Unanswered: 1}
	const want = "7 mounts in 2 mount namespaces (kernel), 9 descriptors and directories of 3 processes, and their memory maps, " +
		"0 loop devices, 0 overlays, 1 process did not answer"
	if got := looked.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNamespacesShareTheSearch has one namespace mount more file systems than are searched for. Those of the others are all chosen.
func TestNamespacesShareTheSearch(t *testing.T) {
	t.Parallel()
	var all []mountns.FileSystem
	add := func(namespace uint64, number int) {
		all = append(all, mountns.FileSystem{Mount: mountns.Mount{
			Mount: mountinfo.Mount{Minor: uint32(number)}, Namespace: mountns.Namespace{Inode: namespace},
		}})
	}
	for i := range 2 * maxFileSystems {
		add(1, i)
	}
	for i := range 10 {
		add(2, 10_000+i)
		add(3, 20_000+i)
	}
	survey := mountns.Survey{}
	chosen := chooseFileSystems(all, &survey)
	others := 0
	for _, d := range chosen {
		if d.Minor >= 10_000 {
			others++
		}
	}
	if len(chosen) != maxFileSystems || others != 20 || len(survey.Skipped) != 1 || !strings.HasPrefix(survey.Skipped[0], "276 file systems") {
		t.Errorf("%d chosen, %d of the others, skipped %q", len(chosen), others, survey.Skipped)
	}
	if chosen = chooseFileSystems(all[:3], &mountns.Survey{}); len(chosen) != 3 {
		t.Errorf("of three: %v", chosen)
	}
}

// newTestJob is a job that may give up on most calls, with its output.
func newTestJob(most int, known ...string) (*job, *[]jobOutput) {
	all := &[]jobOutput{}
	j := &job{jobOrder: jobOrder{MaxUnanswered: most, KnownUnanswered: known}, startTime: time.Now(), emit: func(v any) error {
		*all = append(*all, v.(jobOutput))
		return nil
	}}
	return j, all
}

// TestJobGivesUpOnFew has everything hang that a job looks at.
func TestJobGivesUpOnFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, all := newTestJob(maxUnansweredPerJob, "0")
		answer, asked, begin := make(chan struct{}), atomic.Int64{}, time.Now()
		for i := range 100 {
			for range 2 {
				_, err := callWithin(t.Context(), j, strconv.Itoa(i), namespaceTimeout, func() (int, error) {
					asked.Add(1)
					<-answer
					return 0, nil
				})
				if !errors.Is(err, errUnanswered) {
					t.Fatalf("%v, want that it does not answer", err)
				}
			}
		}
		if n := asked.Load(); n != maxUnansweredPerJob || time.Since(begin) != maxUnansweredPerJob*namespaceTimeout {
			t.Errorf("%d were asked, which took %v", n, time.Since(begin))
		}
		own := process{os.Getpid(), started(os.Getpid())}
		for i, line := range *all {
			if want := (unansweredCall{strconv.Itoa(i + 1), own}); line.Stuck == nil || *line.Stuck != want {
				t.Errorf("line %d: %+v, want %+v", i, line.Stuck, want)
			}
		}
		if len(*all) != maxUnansweredPerJob {
			t.Errorf("%d lines", len(*all))
		}
		close(answer)
	})
}

// TestJobEnds: after some time a job asks no more.
func TestJobEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, _ := newTestJob(maxUnansweredPerJob)
		own := func() (int, error) { return 7, os.ErrExist }
		if n, err := callWithin(t.Context(), j, "1", namespaceTimeout, own); n != 7 || !errors.Is(err, os.ErrExist) {
			t.Errorf("%d, %v, want what the call returns", n, err)
		}
		time.Sleep(jobTimeout + 1)
		if _, err := callWithin(t.Context(), j, "1", namespaceTimeout, own); !errors.Is(err, errUnanswered) {
			t.Errorf("%v, want that it is not asked", err)
		}
	})
}

// TestUnansweredCallsAreRemembered: it lasts until the process that waits has ended.
func TestUnansweredCallsAreRemembered(t *testing.T) {
	t.Parallel()
	own := process{os.Getpid(), started(os.Getpid())}
	var m memory
	for _, s := range []unansweredCall{{"1", own}, {"ended", process{own.PID, own.Started + "0"}}, {"mnt:[7]", own}, {"not read", process{own.PID, ""}}} {
		m.note(s)
	}
	if keys := m.waitFor(); !slices.Equal(keys, []string{"1", "mnt:[7]"}) || len(m.stuck) != 2 {
		t.Errorf("%q, want those that a process waits for", keys)
	}
}
