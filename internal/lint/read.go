// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/manifests"
)

// maxFile bounds one file, in bytes.
const maxFile = 64 << 20

// groups are the API groups whose kinds are read. The kinds of others may have the same name and another form.
var groups = []string{"", "apps", "extensions", "batch"}

// noKind is the kind of a document that is no object of Kubernetes, such as values of a chart.
const noKind = "document that is no object"

// Workload is an object of a manifest that has a template of pods.
type Workload struct {
	File string
	// Document counts the documents of the file from 1, Line is the first line of this one.
	Document, Line        int
	Kind, Namespace, Name string
	Spec                  *corev1.PodSpec // of its pods

	lines lines
	field string // the way from the document to the object
}

// Manifests has the objects of the manifests that were read.
type Manifests struct {
	Workloads []Workload
	// PassedOver counts the objects that have no pods, by kind.
	PassedOver map[string]int

	immutable map[Content]bool
}

// Located is a finding with its place in the files.
type Located struct {
	File     string `json:"file"`
	Document int    `json:"document"`
	// Line is the line of the first mount at risk, or the first line of the document if that is not known.
	Line int `json:"line"`
	Finding
}

// Read adds the objects of a file, which is YAML or JSON of one or more documents. A document that is broken gives an
// error with file, document and line, and the others are read.
func (m *Manifests) Read(file string, r io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return fmt.Errorf("read %q: %w", file, err)
	}
	if len(content) > maxFile {
		return fmt.Errorf("read %q: it is larger than %d MiB", file, maxFile>>20)
	}
	if m.PassedOver == nil {
		m.PassedOver, m.immutable = map[string]int{}, map[Content]bool{}
	}
	var errs []error
	for split, err := range manifests.Documents(content) {
		d := document{file, split}
		if err == nil {
			err = m.document(d)
		} else {
			err = d.locate(err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check returns the risks of all workloads, in their order. Workloads that mount file systems for others, and content
// that is immutable, count for all.
func (m *Manifests) Check(o Options) []Located {
	o.Immutable = func(c Content) bool { return m.immutable[c] }
	for _, w := range m.Workloads {
		o.MountDirs.Add(MountDirs(w.Spec)...)
	}
	var all []Located
	for _, w := range m.Workloads {
		for _, f := range Check(w.Kind, w.Namespace, w.Name, w.Spec, o) {
			line := w.lines[w.field+f.Mounts[0].Field] // 0: it is not known
			all = append(all, Located{File: w.File, Document: w.Document, Line: max(line, w.Line), Finding: f})
		}
	}
	return all
}

// document is one document of a file.
type document struct {
	file string
	manifests.Document
}

// yamlLine matches a line in the errors of the reader of YAML.
var yamlLine = regexp.MustCompile(`line (\d+)`)

// locate adds the file, the line and the document to an error.
func (d document) locate(err error) error {
	line, text := d.Line, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	if found := yamlLine.FindStringSubmatch(text); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil {
			line += min(n-1, bytes.Count(bytes.TrimSpace(d.Text), []byte("\n")))
			text = strings.TrimPrefix(strings.Replace(text, found[0], "", 1), ": ")
		}
	}
	return fmt.Errorf("%s:%d: document %d: %s", d.file, line, d.Number, strings.TrimSpace(text))
}

// document takes in one document. JSON may have several objects, one after the other.
func (m *Manifests) document(d document) error {
	at := place{lines: lines{}} // none if the document can be read as JSON alone
	var node yaml.Node
	if yaml.Unmarshal(d.Text, &node) == nil && len(node.Content) > 0 {
		at.lines.walk(node.Content[0], "", d.Line-1)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(d.Text), []byte("{")) {
		text, err := sigsyaml.YAMLToJSON(d.Text)
		if err == nil {
			err = m.add(d, text, at)
		}
		if err != nil {
			return d.locate(err)
		}
		return nil
	}
	decoder := stdjson.NewDecoder(bytes.NewReader(d.Text))
	for {
		var text stdjson.RawMessage
		err := decoder.Decode(&text)
		if errors.Is(err, io.EOF) {
			return nil
		}
		offset := int(decoder.InputOffset()) // of the next object, or of the error
		if syntax, ok := errors.AsType[*stdjson.SyntaxError](err); ok {
			offset = int(syntax.Offset)
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			offset = len(d.Text)
		}
		line := d.Line + bytes.Count(d.Text[:min(offset, len(d.Text))], []byte("\n"))
		if err == nil {
			err = m.add(d, text, at)
		}
		if err != nil {
			d.Line = line
			return d.locate(err)
		}
		at.lines = nil // they belong to the first object
	}
}

// place is the place of an object in its document.
type place struct {
	lines lines
	field string
	// kind and version hold for an item without its own.
	kind, version string
}

// object has the fields that are read of an object of any kind.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Immutable         bool                 `json:"immutable"`
	Items             []stdjson.RawMessage `json:"items"`
}

// add takes in one object, or the items of a list.
func (m *Manifests) add(doc document, text []byte, at place) error {
	if text = bytes.TrimSpace(text); bytes.Equal(text, []byte("null")) {
		return nil
	}
	if !bytes.HasPrefix(text, []byte("{")) {
		m.PassedOver[noKind]++ // a patch of kustomize is a list
		return nil
	}
	var kind metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &kind); err != nil {
		return err
	}
	if kind.Kind == "" && at.kind != "" {
		kind = metav1.TypeMeta{Kind: at.kind, APIVersion: at.version}
	}
	group, err := schema.ParseGroupVersion(kind.APIVersion)
	switch {
	case err != nil:
		return fmt.Errorf("apiVersion: %w", err)
	case kind == metav1.TypeMeta{}:
		m.PassedOver[noKind]++
		return nil
	case kind.Kind == "":
		return errors.New("kind: it is missing")
	case strings.HasSuffix(kind.Kind, "List"):
		return m.list(doc, text, at, kind)
	case templates[kind.Kind] == nil || !slices.Contains(groups, group.Group):
		m.PassedOver[kind.Kind]++
		// Content that cannot change is noted.
		if kind.APIVersion != "v1" || kind.Kind != "ConfigMap" && kind.Kind != "Secret" {
			return nil
		}
		var o object
		if err := json.UnmarshalCaseSensitivePreserveInts(text, &o); err != nil {
			return err
		}
		if o.Immutable {
			m.immutable[Content{kind.Kind, o.Namespace, o.Name}] = true
		}
		return nil
	}
	return m.workload(doc, text, at, kind.Kind)
}

// list takes in the items of a list, whose kind they have if they do not say their own.
func (m *Manifests) list(doc document, text []byte, at place, kind metav1.TypeMeta) error {
	var o object
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &o); err != nil {
		return err
	}
	for i, item := range o.Items {
		in := place{lines: at.lines, field: fmt.Sprintf("%sitems[%d].", at.field, i)}
		if kind.Kind != "List" {
			in.kind, in.version = strings.TrimSuffix(kind.Kind, "List"), kind.APIVersion
		}
		if strings.HasSuffix(in.kind, "List") {
			return errors.New("items: it is a list of lists")
		}
		if err := m.add(doc, item, in); err != nil {
			return fmt.Errorf("%sitems[%d]: %w", at.field, i, err)
		}
	}
	return nil
}

func (m *Manifests) workload(d document, text []byte, at place, kind string) error {
	var o object
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &o); err != nil {
		return err
	}
	for _, name := range templates[kind] {
		var fields map[string]stdjson.RawMessage
		if err := json.UnmarshalCaseSensitivePreserveInts(text, &fields); err != nil {
			return err
		}
		if text = fields[name]; text == nil {
			return fmt.Errorf("%s: %s is missing", kind, specField(kind))
		}
	}
	spec := &corev1.PodSpec{}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, spec); err != nil {
		return fmt.Errorf("%s: %w", specField(kind), err)
	}
	w := Workload{
		File: d.file, Document: d.Number, Line: d.Line, Kind: kind, Namespace: o.Namespace, Name: o.Name, Spec: spec,
		lines: at.lines, field: at.field,
	}
	if w.Name == "" {
		w.Name = o.GenerateName
	}
	m.Workloads = append(m.Workloads, w)
	return nil
}

// lines are the lines of the fields of a document, by the way to each.
type lines map[string]int

// walk notes a node and all below it. A node with an alias is noted at its own place alone.
func (l lines) walk(node *yaml.Node, at string, offset int) {
	l[at] = node.Line + offset
	switch node.Kind {
	case yaml.SequenceNode:
		for i, item := range node.Content {
			l.walk(item, fmt.Sprintf("%s[%d]", at, i), offset)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			name := node.Content[i].Value
			if at != "" {
				name = at + "." + name
			}
			l.walk(node.Content[i+1], name, offset)
		}
	case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
	}
}
