// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
)

// jsonSize is how many bytes values take in a status.
func jsonSize(t *testing.T, values map[string]string) int {
	t.Helper()
	text, err := json.Marshal(values)
	must(t, err)
	return len(text)
}

func TestLongResultsGoToAFile(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789 <&>\"\\\t\x01\n", 10<<20/18)
	dir, last := t.TempDir(), returns(processor.Result{}, nil)
	report := mustRun(t, newRunner(t, dir), newJob(t, nil, gives("collector.system.mountinfo", long), last))
	if last.seen["collector.system.mountinfo"] != long {
		t.Error("the next operation did not see the whole value")
	}
	shown := report.Results["collector.system.mountinfo"]
	if size := jsonSize(t, report.Results); size > v1.MaxValueBytes+1000 || size < v1.MaxValueBytes*9/10 {
		t.Errorf("the status holds %d bytes", size)
	}
	a := report.Operations[0].Artifacts[0]
	note := fmt.Sprintf("\n[cut: %d bytes in all, kept whole on node \"node-1\" in %q, SHA-256 %s]", len(long), a.Path, a.SHA256)
	if !strings.HasSuffix(shown, note) || !strings.HasPrefix(printable.Text(long), strings.TrimSuffix(shown, note)) {
		t.Errorf("excerpt ends in %q", shown[len(shown)-300:])
	}
	if content, err := os.ReadFile(a.Path); err != nil || string(content) != long || a.SizeBytes != int64(len(long)) {
		t.Errorf("artifact %+v has %d bytes, error %v", a, len(content), err)
	}
	if want := filepath.Join(dir, "artifacts", "uid-1", "1-collector.system.mountinfo"); a.Path != want {
		t.Errorf("path %q, want %q", a.Path, want)
	}
}

func TestAllResultsTogetherAreBounded(t *testing.T) {
	t.Parallel()
	var steps []any
	for i := range 8 {
		steps = append(steps, gives(fmt.Sprint("key-", i), strings.Repeat("x", v1.MaxValueBytes*3/4)))
	}
	many := map[string]string{}
	for i := range maxKeys {
		many[strings.Repeat("k", 200)+fmt.Sprint(i)] = strings.Repeat("\x01", 200)
	}
	last := returns(processor.Result{}, nil)
	report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, append(steps, returns(processor.Result{Values: many}, nil), last)...))
	if size := jsonSize(t, report.Results); size > v1.MaxResultsBytes+6*len(report.Results)+2 {
		t.Errorf("the status holds %d bytes", size)
	}
	delete(last.seen, "param.x")
	if len(last.seen) != 8+maxKeys || last.seen["key-7"] != strings.Repeat("x", v1.MaxValueBytes*3/4) {
		t.Errorf("the last operation saw %d results", len(last.seen))
	}
	if len(report.Operations[0].Artifacts) != 0 || len(report.Operations[7].Artifacts) != 1 {
		t.Errorf("artifacts %+v", report.Operations)
	}
}

func TestFilesTogetherAreBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 24<<20)
	report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, gives("a", big), gives("b", big), gives("c", big)))
	o := report.Operations[2]
	if o.Phase != v1.OperationFailed || o.Message != `keeping result "c": the run would have 3 files with 75497472 bytes, at most 1000 with 67108864` {
		t.Errorf("operation %s %q", o.Phase, o.Message)
	}
	if _, ok := report.Results["c"]; ok {
		t.Error("a part of what failed is in the results")
	}
}

func TestTheNumberOfFilesIsBounded(t *testing.T) {
	t.Parallel()
	values := map[string]string{}
	for i := range maxKeys {
		values[fmt.Sprint("k", i)] = "\xff" // is not UTF-8, so it goes to a file
	}
	dir, many := t.TempDir(), returns(processor.Result{Values: values}, nil)
	report := mustRun(t, newRunner(t, dir), newJob(t, nil, many, many, many, many))
	o := report.Operations[3]
	if o.Phase != v1.OperationFailed || !strings.Contains(o.Message, "1001 files") || len(tree(t, dir)) != 1+maxFiles {
		t.Errorf("operation %s %q, %d files", o.Phase, o.Message, len(tree(t, dir)))
	}
}

// relevant is a processor that knows which lines matter.
type relevant struct{ *fakeProcessor }

func (relevant) Excerpt(r processor.Request, key, value string, limit int) string {
	if limit > v1.MaxValueBytes || len(value) < v1.MaxValueBytes || r.Node != "node-1" {
		return "excerpt was asked for with other arguments"
	}
	return "the line that matters in " + key
}

type careless struct{ *fakeProcessor }

func (careless) Excerpt(processor.Request, string, string, int) string {
	return strings.Repeat("y\xff", 1<<20)
}

type panicking struct{ *fakeProcessor }

func (panicking) Excerpt(processor.Request, string, string, int) string { panic("no way") }

func TestExcerpts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", v1.MaxValueBytes+1)
	for name, test := range map[string]struct {
		step any
		want string
	}{
		"relevant":  {relevant{gives("k", long)}, "the line that matters in k\n[cut: "},
		"careless":  {careless{gives("k", long)}, "y\uFFFDy\uFFFD"},
		"panicking": {panicking{gives("k", long)}, "xxxx"},
	} {
		report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, test.step))
		if got := report.Results["k"]; !strings.HasPrefix(got, test.want) || costOf(got) > v1.MaxValueBytes {
			t.Errorf("%s: %d bytes, %.80q", name, len(got), got)
		}
	}
}

func TestCredentialsDoNotReachTheStatus(t *testing.T) {
	t.Parallel()
	secret := "--password=hunter2"
	dir, last := t.TempDir(), declines("not with "+secret)
	j := newJob(t, nil, gives("k", secret), gives("long", strings.Repeat("x", v1.MaxValueBytes-1000)+" "+secret+strings.Repeat(" ", 1000)), last)
	for range 2 { // the second time from the journal
		report := mustRun(t, newRunner(t, dir), j)
		for key, value := range report.Results {
			if strings.Contains(value, "hunter2") || !strings.Contains(value, "[redacted]") {
				t.Errorf("%s holds %.100q", key, value)
			}
		}
		if m := report.Operations[2].Message; m != "not with --password=[redacted]" {
			t.Errorf("message %q", m)
		}
	}
	if last.seen["k"] != secret {
		t.Errorf("the next operation saw %q", last.seen["k"])
	}
}

func TestBinaryResults(t *testing.T) {
	t.Parallel()
	value := "a\xff\xfeb\x00"
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var seen []string
	last := &fakeProcessor{run: func(ctx context.Context, r processor.Request) (processor.Result, error) {
		seen = append(seen, r.Values["k"])
		stop() // it ends the first run: the second has the value from the journal
		return processor.Result{}, ctx.Err()
	}}
	if _, err := newRunner(t, dir).run(ctx, newJob(t, nil, gives("k", value), last)); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want that the run was cancelled", err)
	}
	report := mustRun(t, newRunner(t, dir), newJob(t, nil, gives("k", value), last))
	if report.Results["k"] != "a\uFFFD\uFFFDb\\u0000" || !slices.Equal(seen, []string{value, value}) {
		t.Errorf("shown %q, seen %q", report.Results["k"], seen)
	}
	if content, err := os.ReadFile(report.Operations[0].Artifacts[0].Path); err != nil || string(content) != value {
		t.Errorf("artifact %q, error %v", content, err)
	}
}

func TestALaterResultReplacesAnEarlierOne(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", v1.MaxValueBytes-100)
	report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, gives("k", big), gives("k", big), gives("k", big+"y"), gives("l", big)))
	if report.Results["k"] != big+"y" || report.Results["l"] != big {
		t.Errorf("%d and %d bytes", len(report.Results["k"]), len(report.Results["l"]))
	}
}

func TestTamperedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := newJob(t, nil, gives("k", strings.Repeat("x", v1.MaxValueBytes+1)))
	a := mustRun(t, newRunner(t, dir), j).Operations[0].Artifacts[0]
	must(t, os.WriteFile(a.Path, []byte("other"), 0o600))
	if _, err := newRunner(t, dir).run(t.Context(), j); !errors.Is(err, errCorrupt) || !strings.Contains(err.Error(), a.SHA256) {
		t.Errorf("error %v", err)
	}
	must(t, os.Remove(a.Path))
	if _, err := newRunner(t, dir).run(t.Context(), j); !errors.Is(err, errCorrupt) {
		t.Errorf("error %v", err)
	}
}

func TestStorageDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRunner(t, dir)
	for path, want := range map[string]string{
		"a": "storage/a", "a/b/": "storage/a/b", "./a": "storage/a", "a/../b": "storage/b", "storage": "storage/storage",
		dir + "/a": "storage/a", dir + "/a/../b": "storage/b", dir + "//a": "storage/a", dir + "/storage/a": "storage/a",
		// no name is one of kubediag's own
		"journal": "storage/journal", "journal/x": "storage/journal/x", "artifacts": "storage/artifacts", "records": "storage/records",
		"lock": "storage/lock", "repair.lock": "storage/repair.lock", "by-hand": "storage/by-hand", dir + "/records": "storage/records",
		"idle-devices.json": "storage/idle-devices.json", dir + "/journal/a": "storage/journal/a",
		"": "", ".": "", "/": "", "..": "", "../a": "", "a/../../b": "", dir: "", dir + "/..": "", dir + "x/a": "",
		"/etc": "", dir + "/../etc": "", dir + "/storage": "storage/storage", dir + "/storage/../..": "",
	} {
		got, err := r.files.storageDir(path)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", path, got, err, want)
		}
	}
}

// A symbolic link that a process put below the data root leads nowhere outside.
func TestStorageDoesNotEscapeByLinks(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, nil, gives("a", "1"))
		op := j.Operations[1]
		op.Storage = "link/x"
		j.Operations[1] = op
		report := mustRun(t, newRunner(t, dir), j)
		if report.Succeeded || !strings.Contains(report.Operations[0].Message, "escapes") {
			t.Errorf("operation %+v", report.Operations[0])
		}
	})
	if names := tree(t, outside); len(names) != 0 {
		t.Errorf("outside: %v", names)
	}
}

func TestFileNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, key := range []string{
		"collector.system.mountinfo", "a/b", "a_b", "a\x00b", "../../etc/passwd", "..", ".", strings.Repeat("k", 253), strings.Repeat("k", 252), "ключ",
	} {
		name := fileName(7, key)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q have the name %q", key, other, name)
		}
		seen[name] = key
		if strings.ContainsAny(name, "/\x00") || len(name) > 120 || !strings.HasPrefix(name, "7-") {
			t.Errorf("key %q has the name %q", key, name)
		}
	}
}

func FuzzCost(f *testing.F) {
	f.Add("a\"\\\n\x01<>&\u2028\xff\U0001F600", 7)
	f.Fuzz(func(t *testing.T, text string, room int) {
		text = strings.ToValidUTF8(text, "\uFFFD")
		encoded, err := json.Marshal(text)
		must(t, err)
		if size := len(encoded) - 2; costOf(text) < size {
			t.Errorf("cost %d, JSON has %d: %s", costOf(text), size, encoded)
		}
		if h := head(text, room); costOf(h) > max(room, 0) || !strings.HasPrefix(text, h) {
			t.Errorf("head of %d is %q", room, h)
		}
	})
}

// TestEmptyResultIsNotShown: later operations have it, and the status does not, which old API servers would refuse.
func TestEmptyResultIsNotShown(t *testing.T) {
	t.Parallel()
	last := gives("full", "x")
	report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, gives("empty", ""), last))
	seen, there := last.seen["empty"]
	if _, shown := report.Results["empty"]; shown || seen != "" || !there || report.Results["full"] != "x" {
		t.Errorf("results %q, the next operation has seen %q, %t", report.Results, seen, there)
	}
}
