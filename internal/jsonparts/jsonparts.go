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
	flat, _ := flatten(reflect.ValueOf(whole))
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the caller of MarshalJSON does, if it is to be done
	err := e.Encode(flat.Interface())
	return text.Bytes(), err
}

// Unmarshal reads JSON into the struct with parts that whole points to. The options are of the decoder, such as
// (*json.Decoder).DisallowUnknownFields.
func Unmarshal(text []byte, whole any, options ...func(*json.Decoder)) error {
	d := json.NewDecoder(bytes.NewReader(text))
	for _, option := range options {
		option(d)
	}
	to := reflect.ValueOf(whole).Elem()
	flat, indexes := flatten(to) // fields that are not in the JSON stay as they are
	err := d.Decode(flat.Addr().Interface())
	for i, index := range indexes {
		to.FieldByIndex(index).Set(flat.Field(i))
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

// flatten returns a struct without parts that has the fields of a whole, and their indexes in that.
func flatten(whole reflect.Value) (flat reflect.Value, indexes [][]int) {
	known, ok := flatTypes.Load(whole.Type())
	if !ok {
		var made flatType
		var fields []reflect.StructField
		for _, f := range fieldsOf(whole.Type()) {
			fields = append(fields, reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag})
			made.indexes = append(made.indexes, f.Index)
		}
		made.kind = reflect.StructOf(fields)
		known, _ = flatTypes.LoadOrStore(whole.Type(), made)
	}
	of := known.(flatType)
	flat = reflect.New(of.kind).Elem()
	for i, index := range of.indexes {
		flat.Field(i).Set(whole.FieldByIndex(index))
	}
	return flat, of.indexes
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
