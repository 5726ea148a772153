// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package jsonparts_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/jsonparts"
)

// document has a part, with a struct that is embedded and a part of its own.
type document struct {
	Name   string     `json:"name"`
	Mount  mount      `json:",inline"`
	Copies []document `json:"copies,omitempty"`
	hidden int
}

type mount struct {
	device
	Point  string `json:"point"`
	Source source `json:",inline"`
}

type device struct {
	Number int `json:"number,omitempty"`
}

type source struct {
	Source string
	Left   bool `json:"-"`
}

func (d document) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(d) }

func (d *document) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, d) }

const documentText = `{"name":"a\u003cb","number":3,"point":"","Source":"NL","copies":[{"name":"c","point":"t","Source":""}]}`

func example() document {
	return document{
		Name: "a<b", Mount: mount{device: device{3}, Source: source{Source: "NL"}},
		Copies: []document{{Name: "c", Mount: mount{Point: "t"}}},
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	written := example()
	written.hidden, written.Mount.Source.Left = 1, true
	text, err := json.Marshal(written)
	if diff := cmp.Diff(documentText, string(text)); diff != "" || err != nil {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	if err := e.Encode(written); err != nil || !strings.Contains(plain.String(), `"a<b"`) {
		t.Errorf("got %s and %v, want as the encoder says", &plain, err)
	}
	if _, err := json.Marshal(struct{ Of *document }{}); err != nil {
		t.Error(err)
	}
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()
	var got document
	if err := json.Unmarshal([]byte(documentText), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), got, cmp.AllowUnexported(document{}, mount{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A field that is not in the JSON stays, as it does for encoding/json.
	if err := json.Unmarshal([]byte(`{"point":"u","other":1}`), &got); err != nil || got.Mount.Point != "u" || got.Name != "a<b" {
		t.Errorf("got %+v and %v", got, err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"unknown":       {`{"name":"a","other":1}`, `unknown field "other"`},
		"part by name":  {`{"Mount":{}}`, `unknown field "Mount"`},
		"left out":      {`{"Left":true}`, `unknown field "Left"`},
		"another type":  {`{"number":"a"}`, "cannot unmarshal string into Go struct field .number of type int"},
		"no object":     {`[]`, "cannot unmarshal array"},
		"cut off":       {`{"name":`, "unexpected EOF"},
		"in a part too": {`{"copies":[{"number":"a"}]}`, "cannot unmarshal string"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := jsonparts.Unmarshal([]byte(c.text), &document{}, (*json.Decoder).DisallowUnknownFields); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
