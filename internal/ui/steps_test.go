// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"strings"
	"testing"
)

// TestSteps: a step lies below all that lead to it, beside no other, and only the path that was taken is drawn as one.
func TestSteps(t *testing.T) {
	t.Parallel()
	steps := []Step{
		{ID: 3, Name: "recover", State: Good, Result: "succeeded"},
		{ID: 1, Name: "collect", State: Good, Result: "succeeded", To: []int32{2, 3, 4}, Taken: []int32{2}},
		{ID: 2, Name: "diagnose</svg>", State: Good, Result: "succeeded", To: []int32{3}, Taken: []int32{3}},
		{ID: 4, Name: "other", Result: "not run"},
	}
	d := English.drawSteps(steps)
	places := map[[2]int]bool{}
	for _, b := range d.Boxes {
		places[[2]int{b.X, b.Y}] = true
		if b.X+b.Right > d.Width || b.Y+b.Height > d.Height {
			t.Errorf("box %+v is outside of %d x %d", b, d.Width, d.Height)
		}
	}
	if len(places) != len(steps) {
		t.Errorf("%d boxes at %d places", len(steps), len(places))
	}
	path := 0
	for _, e := range d.Edges {
		if e.ToY <= e.Y {
			t.Errorf("edge %+v does not lead down", e)
		}
		if e.Taken {
			path++
		}
	}
	if len(d.Edges) != 4 || path != 2 || !d.Edges[3].Taken || d.Edges[0].Taken {
		t.Errorf("edges %+v", d.Edges)
	}
	page := pageHTML(t, Page{Language: Chinese, Sections: []Section{{Steps: steps}}})
	if strings.Count(page, "</svg>") != 1 || !strings.Contains(page, "成功") || !strings.Contains(page, `class="arrow taken"`) {
		t.Errorf("page:\n%s", page)
	}
	if CanDraw(nil) || !CanDraw(steps) || CanDraw(make([]Step, maxSteps+1)) {
		t.Error("the bound of a drawing does not hold")
	}
}
