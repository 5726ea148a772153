// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
)

// useTestScanDir has scans be kept in a directory of the test, which may not run beside others that do so.
func useTestScanDir(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", dir)
	return filepath.Join(dir, "kubediag")
}

func TestAScanIsKept(t *testing.T) {
	dir := useTestScanDir(t)
	if _, err := lastScan(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before any scan: %v", err)
	}
	saveLastScan(reports["clean"], keptFlags{})
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a scan without faults has made %s: %v", dir, err)
	}
	var all sync.WaitGroup
	for range 20 { // two runs at once leave one whole scan
		all.Go(func() { saveLastScan(reports["many"], keptFlags{Root: "/nosuch"}) })
	}
	all.Wait()
	got, err := lastScan()
	must(t, err)
	if diff := cmp.Diff(reports["many"].Faults, got.Report.Faults); diff != "" || got.Report.Node != "worker-7" {
		t.Errorf("faults (-kept +read):\n%s", diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
	if got := lastPlaces(); len(got) != 5 || got[0] != "1\tHungMount ml/trainer-1" {
		t.Errorf("a shell completes %q", got)
	}
	if got := lastPods(); !slices.Contains(got, "ml/trainer-0") || len(got) != 5 {
		t.Errorf("a shell completes %q", got)
	}
}

func TestAKeptScanOfOthersIsRefused(t *testing.T) {
	dir := useTestScanDir(t)
	saveLastScan(reports["many"], keptFlags{Root: "/nosuch"})
	file := filepath.Join(dir, lastScanFile)
	for name, c := range map[string]struct {
		change func() error
		want   error
	}{
		"a file that others may write":      {func() error { return os.Chmod(file, 0o666) }, verb.ErrRefused},
		"a directory that others may write": {func() error { return os.Chmod(dir, 0o777) }, verb.ErrRefused},
		"a link": {func() error {
			return errors.Join(os.Rename(file, file+".own"), os.Symlink(file+".own", file))
		}, verb.ErrRefused},
		"another schema": {func() error {
			return errors.Join(os.Remove(file), os.WriteFile(file, []byte(`{"schemaVersion": 77}`), 0o600))
		}, fs.ErrNotExist},
	} {
		must(t, c.change())
		if _, err := lastScan(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if errors.Is(c.want, verb.ErrRefused) {
			if _, err := verbtest.Run(t, NewShowCommand(t.TempDir()), "1"); !errors.Is(err, verb.ErrRefused) {
				t.Errorf("%s: show ends with %v", name, err)
			}
		}
		_ = os.Chmod(dir, 0o700)
		_ = os.Remove(file)
		saveLastScan(reports["many"], keptFlags{Root: "/nosuch"})
	}
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	if _, err := lastScan(); err == nil || !strings.Contains(err.Error(), "read last scan") {
		t.Errorf("half a file: %v", err)
	}
}

func TestShow(t *testing.T) {
	useTestScanDir(t)
	saveLastScan(reports["many"], keptFlags{Root: "/nosuch"})
	for name, want := range map[string][]int{
		"1": {1}, "ml/trainer-0": {2}, "trainer-0": {2}, "nginx-conf": {3}, "web-7d9f8b6c5": {3}, "loop0": {4}, "/dev/loop0": {4},
		"HeldDevice": {4}, "29da79e5-386c-4e0d-82c1-215f93ff955d": {5},
	} {
		out, err := verbtest.Run(t, NewShowCommand(""), name, "-o", "json")
		var got shownFaults
		if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var places []int
		for _, f := range got.Faults {
			places = append(places, f.Place)
		}
		if places = slices.Compact(places); !slices.Equal(places, want) || got.SchemaVersion != 1 || got.Node != "worker-7" {
			t.Errorf("%s: places %v of %q, want %v", name, places, got.Node, want)
		}
	}
	for _, name := range []string{"6", "0", "", "web", "-1x"} {
		_, err := verbtest.Run(t, NewShowCommand(""), "--", name)
		if err == nil || !strings.Contains(err.Error(), "has no such fault; its numbers are 1 to 5, see kubediag scan") {
			t.Errorf("%q: error %v", name, err)
		}
	}
	now := reports["many"].Time.Add(90 * time.Second)
	for _, place := range placesInOrder(reports["many"].Faults) {
		v := scanView{Screen: terminal.Screen{Width: 80, Terminal: true}, report: reports["many"]}
		text := (&faultReview{places: []faultPlace{place}}).reviewText(v, now)
		text = text[strings.Index(text, "\n\n")+1:] // the heading has the time of the reader's zone
		verbtest.Golden(t, "show-"+string(place.faults[0].Code)+".80", text)
	}
	many := scanView{report: reportOf(faultsOfOneCause(5000, false), scanCoverage{})}
	if text := (&faultReview{places: placesInOrder(many.report.Faults)}).reviewText(many, now); strings.Count(text, "\n") > 40 || !strings.Contains(text, "and 4985 more: kubediag show -v 1") {
		t.Errorf("of 5,000 faults:\n%s", text)
	}
}
