// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/growthtest"
)

// owner is the owner of an item, whose name begins with the namespace and the pod.
func owner(item string) Owner { return Owner{item[:1], item[1:2]} }

func TestInTurns(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ items, want []string }{
		"nothing":                   {nil, []string{}},
		"one pod keeps its order":   {[]string{"ap2", "ap1", "ap3"}, []string{"ap2", "ap1", "ap3"}},
		"namespaces take turns":     {[]string{"ap1", "ap2", "ap3", "bp1", "cp1"}, []string{"ap1", "bp1", "cp1", "ap2", "ap3"}},
		"pods of a namespace, too":  {[]string{"ap1", "ap2", "ap3", "aq1"}, []string{"ap1", "aq1", "ap2", "ap3"}},
		"the namespace comes first": {[]string{"ap1", "aq1", "ar1", "bp1", "bp2"}, []string{"ap1", "bp1", "aq1", "bp2", "ar1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, InTurns(tc.items, owner)); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTurnsOfTheLate: a namespace that comes later waits for one turn of the others. One that may not go keeps its turn.
func TestTurnsOfTheLate(t *testing.T) {
	t.Parallel()
	var turns Turns[string]
	push := func(items ...string) {
		for _, i := range items {
			turns.Push(owner(i), i)
		}
	}
	pop := func(may func(string) bool) string {
		item, _ := turns.Pop(may)
		return item
	}
	push("ap1", "ap2", "ap3", "ap4")
	got := []string{pop(nil)}
	push("bp1", "bp2")
	got = append(got, pop(nil), pop(nil), pop(func(namespace string) bool { return namespace == "b" }), pop(nil))
	if diff := cmp.Diff([]string{"ap1", "ap2", "bp1", "bp2", "ap3"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	none := func(string) bool { return false }
	if turns.Len() != 1 || turns.Namespaces() != 1 || turns.Ready(none) || !turns.Ready(nil) || pop(none) != "" || pop(nil) != "ap4" || pop(nil) != "" {
		t.Error("what is left is not one item of a")
	}
}

func FuzzTurns(f *testing.F) {
	f.Add([]byte("apaqbpbpcr"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var items []string
		for pair := range slices.Chunk(text, 2) {
			if len(pair) == 2 {
				items = append(items, string(pair))
			}
		}
		ordered := InTurns(items, owner)
		served := map[string]int{}
		for _, item := range ordered {
			served[item[:1]]++
		}
		for i, item := range ordered { // at each moment, no namespace that still waits is more than one turn behind
			seen := map[string]int{}
			for _, earlier := range ordered[:i] {
				seen[earlier[:1]]++
			}
			for namespace, all := range served {
				if seen[namespace] < all && seen[item[:1]] > seen[namespace] {
					t.Fatalf("%q at %d: %s has had %d turns, and %s that waits %d", ordered, i, item[:1], seen[item[:1]], namespace, seen[namespace])
				}
			}
		}
		slices.Sort(items)
		slices.Sort(ordered)
		if !slices.Equal(items, ordered) {
			t.Errorf("items %q, and in turns %q", items, ordered)
		}
	})
}

// TestRounds: each round has one item of each namespace that has one left, and the pods of a namespace take turns.
func TestRounds(t *testing.T) {
	t.Parallel()
	items := []Owner{{"shop", "a"}, {"shop", "a"}, {"shop", "a"}, {"team", "x"}, {"shop", "b"}, {"team", "x"}}
	got := Rounds(items, func(o Owner) Owner { return o })
	want := [][]Owner{{{"shop", "a"}, {"team", "x"}}, {{"shop", "b"}, {"team", "x"}}, {{"shop", "a"}}, {{"shop", "a"}}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("rounds %v, want %v", got, want)
	}
	if got := Rounds(nil, func(o Owner) Owner { return o }); len(got) != 0 {
		t.Errorf("rounds %v of nothing", got)
	}
}

// TestTurnsOfMany holds that a queue makes no work that grows with the square of its length: of many pods of one namespace, which
// need not exist, or of many namespaces.
func TestTurnsOfMany(t *testing.T) {
	for name, of := range map[string]func(i int) Owner{
		"pods":       func(i int) Owner { return Owner{"tenant", strconv.Itoa(i)} },
		"namespaces": func(i int) Owner { return Owner{strconv.Itoa(i), "pod"} },
		"both":       func(i int) Owner { return Owner{strconv.Itoa(i % 200), strconv.Itoa(i)} },
	} {
		t.Run(name, func(t *testing.T) {
			growthtest.Check(t, 4_000, func(n int) func() {
				items := make([]Owner, n)
				for i := range items {
					items[i] = of(i)
				}
				return func() {
					if got := InTurns(items, func(o Owner) Owner { return o }); len(got) != n {
						t.Errorf("%d of %d", len(got), n)
					}
				}
			})
		})
	}
}
