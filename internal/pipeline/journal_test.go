// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func journalPath(dir string) string { return filepath.Join(dir, journalDir, "uid-1"+journalEnd) }

func journalText(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(journalPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestJournalIsForNobodyElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustRun(t, newRunner(t, dir), job(t, nil, gives("a", strings.Repeat("x", MaxValueBytes+1))))
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
	for name, test := range map[string]struct {
		damage func(text string) string
		want   error
		text   string
	}{
		"empty":          {func(string) string { return "" }, nil, ""},
		"torn beginning": {func(text string) string { return text[:20] }, nil, ""},
		"torn end":       {func(text string) string { return text + `{"seq":9,"ki` }, nil, ""},
		"zeros at the end": {
			func(text string) string { return text + strings.Repeat("\x00", 512) }, nil, "",
		},
		"broken line in between": {
			func(text string) string { return strings.Replace(text, `"kind":"attempt"`, `"kind":"att\n`, 1) }, ErrCorrupt, "line 2",
		},
		"line missing": {
			func(text string) string { return lines(text, 0, 2) }, ErrCorrupt, "record has number 3, not 2",
		},
		"unknown kind": {
			func(text string) string { return strings.Replace(text, `"kind":"done"`, `"kind":"none"`, 1) }, ErrCorrupt, `"none" is out of place`,
		},
		"unknown field": {
			func(text string) string { return strings.Replace(text, `"node":1`, `"nodes":1`, 1) }, ErrCorrupt, "nodes",
		},
		"unknown node": {
			func(text string) string { return strings.Replace(text, `"node":1`, `"node":99`, 1) }, ErrCorrupt, "there is no node 99",
		},
		"ended before it began": {
			func(text string) string { return strings.Replace(text, `"kind":"attempt"`, `"kind":"done"`, 1) }, ErrCorrupt, "out of place",
		},
		"other UID": {
			func(text string) string { return strings.Replace(text, `"uid":"uid-1"`, `"uid":"uid-2"`, 1) }, ErrCorrupt, `"uid-1"`,
		},
		"other version": {
			func(text string) string { return strings.Replace(text, `"version":1`, `"version":2`, 1) }, ErrCorrupt, "version 1",
		},
		"no beginning": {
			func(text string) string { return strings.Replace(text, `"kind":"begin"`, `"kind":"end"`, 1) }, nil, "",
		},
		"other graph": {
			func(text string) string { return strings.Replace(text, `"graph":"`, `"graph":"0`, 1) }, ErrGraphChanged, "graph has changed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			l := gives("a", "1")
			want := mustRun(t, newRunner(t, dir), job(t, nil, l))
			text := test.damage(journalText(t, dir))
			if err := os.WriteFile(journalPath(dir), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := newRunner(t, dir).Run(t.Context(), job(t, nil, l))
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
	j, _, err := r.openJournal(job(t, nil, gives("a", "1")))
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	if err := j.write(record{Kind: kindRetry, Message: strings.Repeat("x", maxRecordBytes)}); !errors.Is(err, ErrFull) {
		t.Errorf("large record: error %v", err)
	}
	for i := 0; ; i++ {
		err := j.write(record{Kind: kindRetry, Message: strings.Repeat("x", maxRecordBytes/2)})
		if errors.Is(err, ErrFull) {
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

// What a full disk leaves of a record does not stay, and the next record follows the last whole one.
func TestHalfARecordIsTakenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRunner(t, dir)
	j, _, err := r.openJournal(job(t, nil, gives("a", "1")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.file.WriteString(`{"seq":2,"kind":"att`); err != nil {
		t.Fatal(err)
	}
	if err := j.cut(); err != nil {
		t.Fatal(err)
	}
	if err := j.announce(record{Kind: kindAttempt, Node: 1}); err != nil {
		t.Fatal(err)
	}
	j.close()
	again, states, err := r.openJournal(job(t, nil, gives("a", "1")))
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
		j := job(t, nil, gives("a", strings.Repeat("x", MaxValueBytes+1)), gives("b", "1"))
		stored := j.Operations[2]
		stored.Storage = "kept"
		j.Operations[2] = stored
		j.UID = uid
		mustRun(t, r, j)
	}
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.running.Store("runs", true)
	if err := r.Forget(func(uid string) bool { return uid == "keep" }); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// FuzzJournal: whatever a file holds, opening it gives states, or an error of a known kind.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"seq":1,"kind":"begin","time":"2026-11-21T00:00:00Z","begin":{"version":1,"uid":"uid-1","graph":"G"}}` + "\n" +
		`{"seq":2,"kind":"attempt","time":"2026-11-21T00:00:00Z","node":1}` + "\n" +
		`{"seq":3,"kind":"plan","time":"2026-11-21T00:00:00Z","node":1,"plan":{"actions":[{"kind":"Unmount","target":"x"}]}}` + "\n" +
		`{"seq":4,"kind":"applied","time":"2026-11-21T00:00:00Z","node":1,"action":0}` + "\n"))
	f.Add([]byte(`{"seq":1}` + "\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		r := newRunner(t, dir)
		j := job(t, nil, gives("a", "1"))
		text = bytes.ReplaceAll(text, []byte(`"graph":"G"`), []byte(`"graph":"`+j.Graph.Hash()+`"`))
		if err := os.WriteFile(journalPath(dir), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Run(t.Context(), j); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrGraphChanged) && !errors.Is(err, ErrFull) {
			t.Errorf("error %v", err)
		}
		if err := r.Forget(func(string) bool { return false }); err != nil {
			t.Errorf("forgetting: %v", err)
		}
	})
}
