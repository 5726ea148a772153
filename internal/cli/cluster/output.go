// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// format is how a verb writes. The empty one is for people.
type format string

// Formats that more than one verb knows.
const (
	forPeople = ""
	wide      = "wide"
	inJSON    = "json"
	inYAML    = "yaml"
	asName    = "name"
	markdown  = "markdown"
)

// addFormat gives a verb its flag -o.
func addFormat(cmd *cobra.Command, formats ...string) *format {
	f, list := new(format), strings.Join(formats, ", ")
	verb.AddFormat(cmd, f, "Output format. One of: ("+list+")", "must be one of "+list, formats...)
	return f
}

// printer writes objects for programs.
type printer struct {
	printers.ResourcePrinter
	kind schema.GroupVersionKind
}

// newPrinter makes the printer of a format for objects of a kind.
func newPrinter(f format, kind schema.GroupVersionKind) *printer {
	p := &printer{kind: kind}
	switch f {
	case inJSON:
		p.ResourcePrinter = &printers.JSONPrinter{}
	case inYAML:
		p.ResourcePrinter = &printers.YAMLPrinter{}
	default:
		p.ResourcePrinter = &printers.NamePrinter{}
	}
	return p
}

// object writes one object. No character of it reaches a terminal that the terminal would act on.
func (p *printer) object(w io.Writer, o runtime.Object) error {
	o = o.DeepCopyObject()
	if o.GetObjectKind().GroupVersionKind().Empty() {
		o.GetObjectKind().SetGroupVersionKind(p.kind)
	}
	var b bytes.Buffer
	if err := p.PrintObj(o, &b); err != nil {
		return fmt.Errorf("print %s: %w", p.kind.Kind, err)
	}
	return verb.Write(w, printable.Text(b.String()))
}

// each writes objects one after the other.
func (p *printer) each(w io.Writer, kind schema.GroupVersionKind, list []*v1.MountFault) error {
	one := &printer{p.ResourcePrinter, kind}
	for _, f := range list {
		var err error
		if _, asJSON := p.ResourcePrinter.(*printers.JSONPrinter); asJSON {
			err = one.event(w, change{watch.Added, f})
		} else {
			err = one.object(w, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// event writes a change as a JSON object on a line, as kubectl does with --output-watch-events.
func (p *printer) event(w io.Writer, now change) error {
	o := now.object.DeepCopyObject()
	o.GetObjectKind().SetGroupVersionKind(p.kind)
	text, err := json.Marshal(struct {
		Type   watch.EventType `json:"type"`
		Object runtime.Object  `json:"object"`
	}{now.kind, o})
	if err != nil {
		return fmt.Errorf("print %s: %w", p.kind.Kind, err)
	}
	return verb.Write(w, printable.Text(string(text)+"\n"))
}

// writeJSON writes the report of a verb with no character that a terminal would act on.
func writeJSON(w io.Writer, report any) error {
	text, err := json.MarshalIndent(report, "", "    ")
	if err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return verb.Write(w, printable.Text(string(text)+"\n"))
}
