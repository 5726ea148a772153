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
	"sync"
)

// Marshal returns a struct in JSON as encoding/json writes it if its parts are embedded.
func Marshal(whole any) ([]byte, error) {
	from := reflect.ValueOf(whole)
	flat := flatTypeOf(from.Type())
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the caller of MarshalJSON does, if it is to be done
	err := e.Encode(flat.copyOf(from).Interface())
	return text.Bytes(), err
}

// Unmarshal reads the JSON of a struct with parts into the one that whole points to.
func Unmarshal(text []byte, whole any) error {
	return Decode(json.NewDecoder(bytes.NewReader(text)), whole)
}

// Decode is Unmarshal with a decoder, which may refuse unknown fields.
func Decode(d *json.Decoder, whole any) error {
	to := reflect.ValueOf(whole).Elem()
	flat := flatTypeOf(to.Type())
	read := flat.copyOf(to) // fields that are not in the JSON stay as they are
	err := d.Decode(read.Addr().Interface())
	for i, index := range flat.indexes {
		to.FieldByIndex(index).Set(read.Field(i))
	}
	return err
}

// flatType is the type of a struct without parts that has the fields of a whole.
type flatType struct {
	kind    reflect.Type
	indexes [][]int // of the fields in the whole
}

// flatTypes has the flat types by that of the whole. Making one takes ten times as long as using it.
var flatTypes sync.Map

func flatTypeOf(whole reflect.Type) flatType {
	if known, ok := flatTypes.Load(whole); ok {
		return known.(flatType)
	}
	var flat flatType
	var fields []reflect.StructField
	for _, f := range fieldsOf(whole) {
		fields = append(fields, reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag})
		flat.indexes = append(flat.indexes, f.Index)
	}
	flat.kind = reflect.StructOf(fields)
	flatTypes.Store(whole, flat)
	return flat
}

// copyOf returns a value that has the fields of a whole.
func (t flatType) copyOf(whole reflect.Value) reflect.Value {
	flat := reflect.New(t.kind).Elem()
	for i, index := range t.indexes {
		flat.Field(i).Set(whole.FieldByIndex(index))
	}
	return flat
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
