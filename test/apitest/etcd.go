// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Stored is an object as etcd has it.
type Stored struct{ Key, Value []byte }

// ReadEtcd returns the one object at a key of the server's etcd.
func (e *Env) ReadEtcd(ctx context.Context, key string) (Stored, error) {
	var found struct{ Kvs []Stored }
	if err := e.callEtcd(ctx, "range", map[string]any{"key": []byte(key)}, &found); err != nil {
		return Stored{}, err
	}
	if len(found.Kvs) != 1 {
		return Stored{}, fmt.Errorf("etcd has %d objects at %q", len(found.Kvs), key)
	}
	return found.Kvs[0], nil
}

// WriteEtcd writes objects past the API server, as the restore of a backup does: 128 at most, and 1.5 MiB.
func (e *Env) WriteEtcd(ctx context.Context, objects ...Stored) error {
	var puts []any
	for _, o := range objects {
		puts = append(puts, map[string]any{"requestPut": map[string]any{"key": o.Key, "value": o.Value}})
	}
	return e.callEtcd(ctx, "txn", map[string]any{"success": puts}, nil)
}

// ClearEtcd deletes the objects below a key that ends with a slash.
func (e *Env) ClearEtcd(ctx context.Context, below string) error {
	end := []byte(below)
	end[len(end)-1]++
	return e.callEtcd(ctx, "deleterange", map[string]any{"key": []byte(below), "range_end": end}, nil)
}

// callEtcd calls a method of etcd's JSON gateway.
func (e *Env) callEtcd(ctx context.Context, method string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, e.Etcd+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(post)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("etcd %s: %s: %w", method, answer.Status, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s: %.500s", method, answer.Status, text)
	}
	if response == nil {
		return nil
	}
	return json.Unmarshal(text, response)
}
