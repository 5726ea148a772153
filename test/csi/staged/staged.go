// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package staged is what the CSI driver for tests writes down in its directory on the node: for itself, since it may be
// killed at any time, and for the tests, which kill its daemons.
package staged

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Files in the driver's directory.
const (
	// Leave keeps a driver that starts from mounting anything again.
	Leave = "leave"
	// Registered holds the process ID of the driver that the kubelet has registered last.
	Registered = "registered"
	// Log is the output of drivers and daemons.
	Log = "log"
)

// Volume is a volume that is staged.
type Volume struct {
	Handle string `json:"handle"`
	// Path is the staging path.
	Path string `json:"path"`
	// PID is the ID of the daemon's process on the node.
	PID int `json:"pid"`
	// Mounted is when that had mounted it.
	Mounted time.Time `json:"mounted"`
}

// Dir is the directory of the driver called name below the kubelet's root directory.
func Dir(root, name string) string { return filepath.Join(root, "plugins", name) }

// Save writes v down in the driver's directory.
func (v Volume) Save(dir string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode staged volume: %w", err)
	}
	name := file(dir, v.Handle)
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		return fmt.Errorf("write staged volume: %w", err)
	}
	return os.Rename(name+".new", name) // so that no process ever reads half of it
}

// Load reads the volume of that handle; the error is fs.ErrNotExist if it is not staged.
func Load(dir, handle string) (Volume, error) { return load(file(dir, handle)) }

// All reads all volumes.
func All(dir string) ([]Volume, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.volume"))
	var all []Volume
	for _, name := range names {
		v, lerr := load(name)
		all, err = append(all, v), errors.Join(err, lerr)
	}
	return all, err
}

// Forget forgets a volume, which need not be known.
func Forget(dir, handle string) error {
	if err := os.Remove(file(dir, handle)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget staged volume: %w", err)
	}
	return nil
}

func load(name string) (v Volume, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return v, fmt.Errorf("read staged volume: %w", err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("decode staged volume: %w", err)
	}
	return v, nil
}

// file is where a volume is written down. A handle may hold any characters.
func file(dir, handle string) string {
	return filepath.Join(dir, fmt.Sprintf("%x.volume", sha256.Sum256([]byte(handle))))
}
