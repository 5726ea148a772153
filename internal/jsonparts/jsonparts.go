// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package jsonparts writes and reads structs that have named parts in Go and are flat in JSON.
//
// A field with the tag `json:",inline"` is such a part: a struct, whose fields stand in JSON in the place of the part. encoding/json does not
// know the tag, so a struct with parts needs a MarshalJSON, and an UnmarshalJSON if it is read. They are these functions.
// A part may have parts and embedded structs. No two fields of a whole have the same name, neither in Go nor in JSON.
package jsonparts

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
)

// Marshal returns a struct in JSON as encoding/json writes it if its parts are embedded.
func Marshal(whole any) ([]byte, error) {
	from := reflect.ValueOf(whole)
	flat := newFlat(from.Type())
	flat.fill(from)
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the caller of MarshalJSON does, if it is to be done
	err := e.Encode(flat.value.Interface())
	return text.Bytes(), err
}

// Unmarshal reads the JSON of a struct with parts into the one that whole points to.
func Unmarshal(text []byte, whole any) error {
	return Decode(json.NewDecoder(bytes.NewReader(text)), whole)
}

// Decode is Unmarshal with a decoder, which may refuse unknown fields.
func Decode(d *json.Decoder, whole any) error {
	to := reflect.ValueOf(whole).Elem()
	flat := newFlat(to.Type())
	flat.fill(to) // fields that are not in the JSON stay as they are
	err := d.Decode(flat.value.Addr().Interface())
	for i, f := range flat.fields {
		to.FieldByIndex(f.Index).Set(flat.value.Field(i))
	}
	return err
}

// flatStruct is a struct with the fields of a whole and its parts.
type flatStruct struct {
	value  reflect.Value
	fields []reflect.StructField // of the whole
}

func newFlat(whole reflect.Type) flatStruct {
	fields := fieldsOf(whole)
	own := make([]reflect.StructField, len(fields))
	for i, f := range fields {
		own[i] = reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag}
	}
	return flatStruct{reflect.New(reflect.StructOf(own)).Elem(), fields}
}

// fill sets the fields to those of a whole.
func (s flatStruct) fill(whole reflect.Value) {
	for i, f := range s.fields {
		s.value.Field(i).Set(whole.FieldByIndex(f.Index))
	}
}

// fieldsOf lists the exported fields of a struct and its parts in their order, each with its index from the whole.
func fieldsOf(t reflect.Type) (all []reflect.StructField) {
	for f := range t.Fields() {
		if tag := f.Tag.Get("json"); tag != ",inline" && (!f.Anonymous || tag != "") {
			if f.IsExported() {
				all = append(all, f)
			}
			continue
		}
		for _, inner := range fieldsOf(f.Type) {
			inner.Index = slices.Concat(f.Index, inner.Index)
			all = append(all, inner)
		}
	}
	return all
}
