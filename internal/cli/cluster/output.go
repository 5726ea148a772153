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

// Formats that only verbs of this program know.
const (
	formatText     verb.Format = "" // for people
	formatWide     verb.Format = "wide"
	formatName     verb.Format = "name"
	formatMarkdown verb.Format = "markdown"
)

// addFormat gives a verb its flag -o.
func addFormat(cmd *cobra.Command, formats ...verb.Format) *verb.Format {
	f, list := new(verb.Format), strings.Join(verb.Distinct(formats, func(f verb.Format) string { return string(f) }), ", ")
	verb.AddFormat(cmd, f, "Output format. One of: ("+list+")", "must be one of "+list, formats...)
	return f
}

// objectPrinter writes objects for programs.
type objectPrinter struct {
	printers.ResourcePrinter
	kind schema.GroupVersionKind
}

// newPrinter makes the printer of a format for objects of one of our kinds.
func newPrinter(f verb.Format, kind string) *objectPrinter {
	p := &objectPrinter{kind: v1.GroupVersion.WithKind(kind)}
	switch f {
	case verb.JSON:
		p.ResourcePrinter = &printers.JSONPrinter{}
	case verb.YAML:
		p.ResourcePrinter = &printers.YAMLPrinter{}
	default:
		p.ResourcePrinter = &printers.NamePrinter{}
	}
	return p
}

// printObject writes one object. No character of it reaches a terminal that the terminal would act on.
func (p *objectPrinter) printObject(w io.Writer, o runtime.Object) error {
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

// printChange writes the object of a change. In JSON it writes the change on a line, as kubectl does with
// --output-watch-events.
func (p *objectPrinter) printChange(w io.Writer, now objectChange) error {
	if _, asJSON := p.ResourcePrinter.(*printers.JSONPrinter); !asJSON {
		return p.printObject(w, now.object)
	}
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
