// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10<<10)
	many := map[string]string{}
	for _, key := range strings.Split("abcdefgh", "") {
		many[key] = strings.Repeat("x", 4000)
	}
	pod := func(namespace, name, container string) Cause {
		return Cause{Pod: &v1.PodReference{Namespace: namespace, Name: name, Container: container}}
	}
	for name, tc := range map[string]struct {
		cause  Cause
		reason string
	}{
		"nothing named":        {Cause{}, ""},
		"pod":                  {pod("team", "web-0.x", "c"), ""},
		"node of 10 KiB":       {Cause{Node: long}, v1.ReasonInvalidTarget},
		"node with a path":     {Cause{Node: "../n1"}, v1.ReasonInvalidTarget},
		"pod of 10 KiB":        {pod("team", long, ""), v1.ReasonInvalidTarget},
		"namespace with a dot": {pod("te.am", "web", ""), v1.ReasonInvalidTarget},
		"container with space": {pod("team", "web", "a b"), v1.ReasonInvalidTarget},
		"parameter of 10 KiB":  {Cause{Parameters: map[string]string{"a": long}}, v1.ReasonInvalidParameter},
		"32 KiB of parameters": {Cause{Parameters: many}, v1.ReasonInvalidParameter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r *Rejection
			err := tc.cause.Check()
			if (err == nil) != (tc.reason == "") || err != nil && (!errors.As(err, &r) || r.Reason != tc.reason || len(r.Message) > maxMessageBytes) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"a": "b\x1b[31m", "empty": "", "long": strings.Repeat("ü", 9999), "\xff": "\xff\xfe"}
	for i := range 100 {
		fields["more"+strings.Repeat("x", i)] = strings.Repeat("y", 500)
	}
	text := Excerpt(fields)
	var back map[string]string
	if err := json.Unmarshal([]byte(text), &back); err != nil || len(text) > maxExcerptBytes || !utf8.ValidString(text) {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if back["a"] != "b [31m" || len(back["long"]) > maxExcerptValue || len(back) < 5 {
		t.Errorf("excerpt = %v", back)
	}
}

// One bad Trigger stops no other, and a signal is offered to all that it matches.
func TestRules(t *testing.T) {
	t.Parallel()
	var rules Rules[string]
	all := &record{}
	for name, match := range map[string]Match[string]{
		"all":  func(string) (Cause, bool, error) { return Cause{Key: "k"}, true, nil },
		"none": func(string) (Cause, bool, error) { return Cause{}, false, nil },
		"bad": func(string) (Cause, bool, error) {
			return Cause{}, true, Reject(v1.ReasonLabelMissing, "no label")
		},
		"invalid": func(string) (Cause, bool, error) { return Cause{Node: "a b"}, true, nil },
		"full":    func(string) (Cause, bool, error) { return Cause{}, true, nil },
		"other":   nil,
	} {
		trigger := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
		installed, err := rules.Install(trigger, func(*v1.Trigger) (Match[string], error) { return match, nil })
		if installed != (match != nil) || err != nil {
			t.Errorf("%s: installed %t, %v", name, installed, err)
		}
	}
	n, err := rules.Apply(all, "signal")
	if n != 4 || !errors.Is(err, errFull) || strings.Join(all.offered, ",") != "all" || len(all.rejected) != 2 {
		t.Errorf("matched %d, %v, %+v", n, err, all)
	}
	for _, name := range []string{"all", "none", "bad", "invalid", "full"} {
		rules.Remove(name)
	}
	if !rules.Empty() {
		t.Error("rules are left")
	}
}

type record struct{ offered, rejected []string }

func (r *record) Offer(trigger string, _ Cause) error {
	if trigger == "full" {
		return errFull
	}
	r.offered = append(r.offered, trigger)
	return nil
}

func (r *record) Reject(trigger string, _ Kind, _ *Rejection) {
	r.rejected = append(r.rejected, trigger)
}
