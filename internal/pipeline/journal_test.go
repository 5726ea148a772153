// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
)

func journalPath(dir string) string { return filepath.Join(dir, journalDir, "uid-1"+journalEnd) }

func journalText(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(journalPath(dir))
	must(t, err)
	return string(text)
}

func TestJournalIsForNobodyElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustRun(t, newRunner(t, dir), newJob(t, nil, gives("a", strings.Repeat("x", v1.MaxValueBytes+1))))
	count := 0
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := e.Info()
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		count++
		return err
	})
	if err != nil || count != 5 {
		t.Errorf("%d files and directories, error %v", count, err)
	}
}

func TestDamagedJournals(t *testing.T) {
	t.Parallel()
	forged := func(old, changed string) func(string) string {
		return func(text string) string { return sealed(strings.Replace(text, old, changed, 1)) }
	}
	for name, test := range map[string]struct {
		damage func(text string) string
		want   error
		text   string
	}{
		"empty":           {func(string) string { return "" }, errCorrupt, "line 1"},
		"torn beginning":  {func(text string) string { return text[:20] }, errCorrupt, "line 1"},
		"no newline":      {func(text string) string { return strings.TrimSuffix(lines(text, 0), "\n") }, errCorrupt, "no newline"},
		"zeros":           {func(string) string { return strings.Repeat("\x00", 4096) }, errCorrupt, "line 1"},
		"one long line":   {func(string) string { return strings.Repeat("x", maxJournalBytes) }, errCorrupt, "line 1"},
		"more than a run": {func(text string) string { return text + strings.Repeat("x", maxJournalBytes) }, errCorrupt, "no journal has more"},
		"torn end":        {func(text string) string { return text + `01234567 {"seq":9,"ki` }, nil, ""},
		"zeros at the end": {
			func(text string) string { return text + strings.Repeat("\x00", 512) }, nil, "",
		},
		"zeros in the last line": {
			func(text string) string { return strings.TrimSuffix(text, "\n") + "\x00" }, nil, "",
		},
		"newline lost at the end": {
			func(text string) string { return strings.TrimSuffix(text, "\n") + "\x0b" }, errCorrupt, "line 4",
		},
		"another digit": {
			func(text string) string { return strings.Replace(text, `"node":1`, `"node":3`, 1) }, errCorrupt, "checksum",
		},
		"broken line in between": {forged(`"kind":"attempt"`, `"kind":"att`), errCorrupt, "line 2"},
		"line missing":           {func(text string) string { return lines(text, 0, 2) }, errCorrupt, "record has number 3, not 2"},
		"unknown kind":           {forged(`"kind":"done"`, `"kind":"none"`), errCorrupt, `"none" is out of place`},
		"unknown field":          {forged(`"node":1`, `"nodes":1`), errCorrupt, "nodes"},
		"unknown node":           {forged(`"node":1`, `"node":99`), errCorrupt, "there is no node 99"},
		"ended before it began":  {forged(`"kind":"attempt"`, `"kind":"done"`), errCorrupt, "out of place"},
		"other UID":              {forged(`"uid":"uid-1"`, `"uid":"uid-2"`), errCorrupt, `"uid-1"`},
		"of a later release":     {forged(`"version":4`, `"version":5`), errFormat, "has format 5, and this release reads 4 only"},
		"of an earlier release":  {forged(`"version":4`, `"version":3`), errFormat, "has format 3, and this release reads 4 only: apply a new Diagnosis"},
		"without checksums":      {func(text string) string { return strings.Replace(unsealed(text), `"version":4`, `"version":1`, 1) }, errFormat, "has format 1"},
		"no beginning":           {forged(`"kind":"begin"`, `"kind":"end"`), nil, ""},
		"other graph":            {forged(`"graph":"`, `"graph":"0`), errGraphChanged, "graph has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			l := gives("a", "1")
			want := mustRun(t, newRunner(t, dir), newJob(t, nil, l))
			text := test.damage(journalText(t, dir))
			must(t, os.WriteFile(journalPath(dir), []byte(text), 0o600))
			got, err := newRunner(t, dir).run(t.Context(), newJob(t, nil, l))
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Fatalf("error %v, want %v with %q", err, test.want, test.text)
			}
			if err != nil && journalText(t, dir) != text {
				t.Error("a damaged journal was changed")
			}
			if diff := sameEnd(want, got); err == nil && diff != "" {
				t.Errorf("report (-first +second):\n%s", diff)
			}
		})
	}
}

// TestRecordsKeepTheirFormat: an agent goes on with the journals of all releases that have written this format.
func TestRecordsKeepTheirFormat(t *testing.T) {
	t.Parallel()
	want := `{"seq":1,"kind":"done","time":"2026-11-21T00:00:00Z","begin":{"version":4,"uid":"u","graph":"g","storage":["s"]},"node":1,` +
		`"plan":{"parts":[{"family":"f","pod":{"namespace":"n","name":"p"},` +
		`"actions":[{"kind":"Unmount","for":[{"code":"StaleSubPath","podUID":"u","container":"c","volume":"v","place":"/m"}],"target":"/m"}],` +
		`"findings":[{"code":"StaleSubPath","pod":{},"mount":{}}],"notes":{"memory":"x"}}],"gone":[{"code":"StaleSubPath"}],` +
		`"values":{"k":"v"},"message":"said"},"boot":"b","action":1,"already":true,"calls":[{"name":"umount2","arguments":"/m","result":"ok"}],` +
		`"outcome":"Succeeded","planned":true,"noFault":true,"results":[{"key":"k","value":"v","inFile":true,` +
		`"file":{"key":"k","operation":"o","path":"p","size":1,"sha256":"00"},"shown":"s","hidden":true}],` +
		`"findings":[{"code":"StaleSubPath","pod":{},"mount":{}}],"gone":[{"code":"StaleSubPath"}],"held":["a \u003e b"],"heldActions":2,` +
		`"reason":"Failed","message":"m","stack":"s"}`
	r, err := decode([]byte(checksum([]byte(want))+want), 1)
	must(t, err)
	got, err := encode(r)
	must(t, err)
	if diff := cmp.Diff(want, strings.TrimSuffix(string(got[checksumBytes:]), "\n")); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// Every bit of a journal counts: none can be another one and go unnoticed.
func TestEveryFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustRun(t, newRunner(t, dir), newJob(t, nil, gives("a", "1"), &unmounter{kernel: newKernel(7)}))
	text := []byte(journalText(t, dir))
	file, err := os.OpenFile(journalPath(dir), os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	for i := range text {
		for bit := range 8 {
			text[i] ^= 1 << bit
			_, err := file.WriteAt(text[i:i+1], int64(i))
			_, err2 := file.Seek(0, io.SeekStart)
			records, err3 := (&journal{file: file}).read()
			if text[i] ^= 1 << bit; err != nil || err2 != nil || !errors.Is(err3, errCorrupt) {
				t.Fatalf("bit %d of byte %d, %q: %d records, errors %v, %v, %v", bit, i, text[max(0, i-20):min(len(text), i+20)], len(records), err, err2, err3)
			}
		}
		if _, err := file.WriteAt(text[i:i+1], int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(text) < 1000 {
		t.Errorf("the journal has no more than %d bytes", len(text))
	}
}

// sealed gives each line the checksum of what it holds now, as only a deliberate edit does.
func sealed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(unsealed(text)) {
		line = strings.TrimSuffix(line, "\n")
		out.WriteString(checksum([]byte(line)) + line + "\n")
	}
	return out.String()
}

func unsealed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(line[checksumBytes:])
	}
	return out.String()
}

func lines(text string, which ...int) string {
	all := strings.SplitAfter(text, "\n")
	kept := ""
	for _, i := range which {
		kept += all[i]
	}
	return kept
}

func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	r := newRunner(t, t.TempDir())
	j, _, err := r.openJournal(newJob(t, nil, gives("a", "1")))
	must(t, err)
	defer j.close()
	if err := j.write(record{Kind: kindRetry, Message: strings.Repeat("x", maxRecordBytes)}); !errors.Is(err, errFull) {
		t.Errorf("large record: error %v", err)
	}
	for i := 0; ; i++ {
		err := j.write(record{Kind: kindRetry, Message: strings.Repeat("x", maxRecordBytes/2)})
		if errors.Is(err, errFull) {
			break
		}
		if err != nil || i > 20 {
			t.Fatalf("%d records: error %v", i, err)
		}
	}
	if info, err := j.file.Stat(); err != nil || info.Size() > maxJournalBytes {
		t.Errorf("size %d, error %v", info.Size(), err)
	}
}

// The part of a record that a full disk took does not stay, and the next record follows the last whole one.
func TestHalfARecordIsTakenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRunner(t, dir)
	j, _, err := r.openJournal(newJob(t, nil, gives("a", "1")))
	must(t, err)
	if _, err := j.file.WriteString(`{"seq":2,"kind":"att`); err != nil {
		t.Fatal(err)
	}
	must(t, j.cut())
	must(t, j.announce(record{Kind: kindAttempt, Node: 1}))
	j.close()
	again, states, err := r.openJournal(newJob(t, nil, gives("a", "1")))
	if err != nil || states[1].attempts != 1 {
		t.Fatalf("states %v, error %v", states, err)
	}
	again.close()
}

func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRunner(t, dir)
	outside := filepath.Join(dir, "kept", "mine.txt")
	for _, uid := range []string{"keep", "drop", "runs"} {
		j := newJob(t, nil, gives("a", strings.Repeat("x", v1.MaxValueBytes+1)), gives("b", "1"))
		stored := j.Operations[2]
		stored.Storage = "kept"
		j.Operations[2] = stored
		j.Request.Diagnosis.UID = uid
		mustRun(t, r, j)
	}
	must(t, os.WriteFile(outside, nil, 0o600))
	r.running.Store("runs", true)
	must(t, r.Forget(map[types.UID]bool{"keep": true}))
	want := []string{
		"artifacts/keep/1-a", "artifacts/runs/1-a", "journal/keep.jsonl", "journal/runs.jsonl",
		"kept/keep/2-b", "kept/mine.txt", "kept/runs/2-b",
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, name)
			names = append(names, rel)
		}
		return err
	})
	must(t, err)
	return names
}

// FuzzJournal: whatever a file holds, opening it gives states, or an error of a known kind.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"seq":1,"kind":"begin","time":"2026-11-21T00:00:00Z","begin":{"version":4,"uid":"uid-1","graph":"G"}}`+"\n"+
		`{"seq":2,"kind":"attempt","time":"2026-11-21T00:00:00Z","node":1}`+"\n"+
		`{"seq":3,"kind":"plan","time":"2026-11-21T00:00:00Z","node":1,"plan":{"actions":[{"kind":"Unmount","target":"x"}]}}`+"\n"+
		`{"seq":4,"kind":"applied","time":"2026-11-21T00:00:00Z","node":1,"action":0}`+"\n"), true)
	f.Add([]byte(`{"seq":1}`+"\n"), false)
	f.Add([]byte("\n\n"), true)
	f.Fuzz(func(t *testing.T, text []byte, right bool) {
		dir := t.TempDir()
		r := newRunner(t, dir)
		j := newJob(t, nil, gives("a", "1"))
		text = bytes.ReplaceAll(text, []byte(`"graph":"G"`), []byte(`"graph":"`+j.Graph.Hash()+`"`))
		if right {
			var lines []byte
			for line := range bytes.Lines(text) {
				line = bytes.TrimSuffix(line, []byte("\n"))
				lines = append(append(append(lines, checksum(line)...), line...), '\n')
			}
			text = lines
		}
		must(t, os.WriteFile(journalPath(dir), text, 0o600))
		_, err := r.run(t.Context(), j)
		known := slices.ContainsFunc([]error{nil, errCorrupt, errFormat, errGraphChanged, errFull}, func(k error) bool { return errors.Is(err, k) })
		if !known {
			t.Errorf("error %v", err)
		}
		if err := r.Forget(nil); err != nil {
			t.Errorf("forgetting: %v", err)
		}
	})
}
