// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/test/growthtest"
)

// wholeRecording has something in each list that a bundle may have, also in those that no other test fills: a field that is added has, too.
func wholeRecording(t testing.TB) map[string][]byte {
	t.Helper()
	forms := grown()
	has := forms["pods"](2)
	has.node.PodSpecs = false
	for entry, form := range map[string]string{
		volumesEntry: "volumes", orphansEntry: "left directories", mountsEntry: "mounts", devicesEntry: "devices beside",
	} {
		has.evidence[entry] = forms[form](4).evidence[entry]
	}
	entries := map[string]any{nodeEntry: has.node}
	maps.Copy(entries, has.evidence)
	written := map[string][]byte{}
	for entry, of := range entries {
		v := reflect.New(reflect.TypeOf(of)).Elem()
		v.Set(reflect.ValueOf(of))
		fill(v, 0)
		text, err := json.Marshal(v.Interface())
		must(t, err)
		written[entry] = text
	}
	return written
}

// fill puts one element into each list, map and pointer that has none.
func fill(v reflect.Value, depth int) {
	if !v.CanSet() || depth > 12 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		if v.Len() > 0 {
			return
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		if v.Len() == 0 {
			v.SetString("x")
		}
	}
}

// listPath leads to a list or an object in the JSON of an entry.
type listPath struct {
	entry string
	steps []any // keys and indexes
}

func (p listPath) String() string { return p.entry + " " + fmt.Sprint(p.steps...) }

// listsOf are all lists of the entries, and all objects. Those that are maps grow; others ignore fields that they do not know, and then nothing grows.
func listsOf(t testing.TB, entries map[string][]byte) (all []listPath) {
	t.Helper()
	var walk func(p listPath, v any)
	walk = func(p listPath, v any) {
		switch v := v.(type) {
		case []any:
			if all = append(all, p); len(v) > 0 {
				walk(listPath{p.entry, append(slices.Clone(p.steps), 0)}, v[0])
			}
		case map[string]any:
			if isMap(v) {
				all = append(all, p)
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(listPath{p.entry, append(slices.Clone(p.steps), key)}, v[key])
			}
		}
	}
	for _, entry := range slices.Sorted(maps.Keys(entries)) {
		walk(listPath{entry: entry}, decoded(t, entries[entry]))
	}
	return all
}

// isMap reports whether an object has one member whose name no field has: fill has made it.
func isMap(object map[string]any) bool {
	for key := range object {
		if strings.Trim(key, "0123456789xu") != "" {
			return false
		}
	}
	return len(object) > 0
}

func decoded(t testing.TB, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	must(t, d.Decode(&v))
	return v
}

// withMore is a copy of a value in which the list at steps has n more elements, each like its first one.
func withMore(v any, steps []any, n int, numbers bool) any {
	if len(steps) > 0 {
		switch v := v.(type) {
		case []any:
			v = slices.Clone(v)
			v[0] = withMore(v[0], steps[1:], n, numbers)
			return v
		case map[string]any:
			v = maps.Clone(v)
			key := steps[0].(string)
			v[key] = withMore(v[key], steps[1:], n, numbers)
			return v
		}
	}
	switch v := v.(type) {
	case []any:
		v = slices.Clone(v)
		for i := range n {
			v = append(v, varied(v[0], i, numbers))
		}
		return v
	case map[string]any:
		first := slices.Min(slices.Collect(maps.Keys(v)))
		v = maps.Clone(v)
		for i := range n {
			key := fmt.Sprint(first, i)
			if strings.Trim(first, "0123456789") == "" {
				key = fmt.Sprint(1_000_000 + i)
			}
			v[key] = varied(v[first], i, numbers)
		}
		return v
	}
	return v
}

// varied is a copy of a value with other texts in it, and with other numbers if these are to differ, too.
func varied(v any, i int, numbers bool) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for at := range v {
			list[at] = varied(v[at], i, numbers)
		}
		return list
	case map[string]any:
		object := map[string]any{}
		for key, value := range v {
			object[key] = varied(value, i, numbers)
		}
		return object
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil {
			return v
		}
		return fmt.Sprint(v, "/", i)
	case json.Number:
		if n, err := v.Int64(); err == nil && numbers && n < 1<<20 {
			return n + int64(i)
		}
	}
	return v
}

// bundleOf is a bundle with these entries.
func bundleOf(t testing.TB, entries map[string][]byte) *bundle.Bundle {
	t.Helper()
	var b bundle.Bundle
	for entry, text := range entries {
		must(t, b.Add(entry, "", text))
	}
	return &b
}

// FuzzListsOfBundles holds that no list of a bundle makes work that grows with its square, nor two of them that grow together with their product: of the
// reader, each judge, the report and its text.
func FuzzListsOfBundles(f *testing.F) {
	entries := wholeRecording(f)
	lists := listsOf(f, entries)
	if len(lists) < 60 {
		f.Fatalf("found %d lists", len(lists))
	}
	for i := range lists {
		f.Add(uint16(i), uint16(i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, one, other uint16, numbers bool) {
		paths := []listPath{lists[int(one)%len(lists)], lists[int(other)%len(lists)]}
		if n := len(paths[0].steps); n < len(paths[1].steps) && paths[0].entry == paths[1].entry && slices.Equal(paths[0].steps, paths[1].steps[:n]) {
			return // one within the other grows with the product itself
		}
		paths = slices.CompactFunc(paths, func(a, b listPath) bool { return a.String() == b.String() })
		t.Log(paths)
		growthtest.Check(t, 500, func(n int) func() {
			changed := maps.Clone(entries)
			for _, p := range paths {
				text, err := json.Marshal(withMore(decoded(t, changed[p.entry]), p.steps, n, numbers))
				must(t, err)
				changed[p.entry] = text
			}
			b := bundleOf(t, changed)
			return func() { readWhole(t, b) }
		})
	})
}

// readWhole has a scan read a bundle, and writes its report. A bundle may be refused.
func readWhole(t testing.TB, b *bundle.Bundle) *scanReport {
	t.Helper()
	s, err := scanOfBundle(b)
	if errors.Is(err, bundle.ErrRefused) {
		t.Logf("refused: %v", err)
		return &scanReport{}
	}
	must(t, err)
	r, err := s.newScanReport(t.Context(), scanOptions{from: "b"})
	must(t, err)
	if (scanView{report: r, from: "b"}).reportText() == "" {
		t.Error("no text")
	}
	return r
}

// TestTheWholeRecordingIsJudged holds that the lists above are read and judged.
func TestTheWholeRecordingIsJudged(t *testing.T) {
	t.Parallel()
	r := readWhole(t, bundleOf(t, wholeRecording(t)))
	codes := map[fault.Code]bool{}
	for _, f := range r.Faults {
		codes[f.Code] = true
	}
	if len(codes) < 3 {
		t.Errorf("found %v; not looked at: %v", codes, r.Looked.Gaps.NotLookedAt)
	}
	for _, g := range r.Looked.Gaps.NotLookedAt {
		if strings.Contains(g.Why, "the bundle has no answer") {
			t.Errorf("not read: %v", g)
		}
	}
}
