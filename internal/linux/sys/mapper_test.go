// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// mapperText is an answer of the device mapper. Each text is padded to eight bytes.
func mapperText(targets ...MapperTarget) (all []byte) {
	for _, t := range targets {
		spec := make([]byte, 40)
		copy(spec[24:], t.Type)
		text := append([]byte(t.Status), make([]byte, 8-len(t.Status)%8)...)
		binary.NativeEndian.PutUint32(spec[20:], uint32(len(all)+len(spec)+len(text)))
		all = slices.Concat(all, spec, text)
	}
	return all
}

func TestParseTargets(t *testing.T) {
	t.Parallel()
	want := []MapperTarget{{Type: "linear"}, {Type: "a name of 16 byt", Status: "7:0 A 1"}, {Type: "thin", Status: "exactly8"}}
	answer := mapperText(want...)
	if got, err := parseTargets(answer, 3); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := parseTargets(answer, 2); err != nil || !slices.Equal(got, want[:2]) {
		t.Errorf("%v, %v, want %v", got, err, want[:2])
	}
	for end := range len(answer) - 8 {
		if got, err := parseTargets(answer[:end], 3); !errors.Is(err, errMapperAnswer) {
			t.Fatalf("of %d bytes: %v, %v", end, got, err)
		}
	}
	if _, err := parseTargets(answer, 4); !errors.Is(err, errMapperAnswer) {
		t.Errorf("one more than there are: %v", err)
	}
	binary.NativeEndian.PutUint32(answer[20:], 0)
	if _, err := parseTargets(answer, 3); !errors.Is(err, errMapperAnswer) {
		t.Errorf("the next is the same: %v", err)
	}
}

func FuzzParseTargets(f *testing.F) {
	f.Add(mapperText(MapperTarget{Type: "multipath", Status: "2 0 0 0"}, MapperTarget{Type: "error"}), 2)
	f.Fuzz(func(t *testing.T, answer []byte, count int) {
		if got, err := parseTargets(answer, min(count, 100)); err == nil && len(got) != max(0, min(count, 100)) {
			t.Errorf("%d targets, want %d", len(got), count)
		}
	})
}
