// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// idleFile keeps the observations of IdleRecoverer. Counters begin at 0 when the node boots, so it counts for one boot.
type idleFile struct {
	// Boot is the kernel's name of the boot.
	Boot    string       `json:"boot"`
	Devices []idleSample `json:"devices"`
}

// idleSample is a device's counters and when they were first seen with these values.
type idleSample struct {
	Device   fault.Device      `json:"device"`
	Activity blockdev.Activity `json:"activity"`
	// Since is when the counters were first seen so, in nanoseconds since the boot.
	Since time.Duration `json:"since"`
}

// readFile reads the file, if that was not done yet, and drops devices that have gone. A file that is not there, is broken or is of another boot
// says nothing: then each device is seen for the first time. A time that is still to come says nothing either.
func (h *IdleRecoverer) readFile(devices []blockdev.Device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.samples
	if seen == nil && h.File != "" {
		seen = map[fault.Device]idleSample{}
		content, err := os.ReadFile(h.File)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read what was seen of devices: %w", err)
		}
		var earlier idleFile
		if err == nil {
			boot, err := sys.BootID()
			if err != nil {
				return err
			}
			if err := json.Unmarshal(content, &earlier); err != nil || earlier.Boot != boot {
				earlier = idleFile{}
			}
		}
		for _, s := range earlier.Devices {
			if s.Since >= 0 && s.Since <= h.sinceBoot() {
				seen[s.Device] = s
			}
		}
	}
	kept := map[fault.Device]idleSample{}
	for _, d := range devices {
		if s, ok := seen[device.Reference(d)]; ok {
			kept[device.Reference(d)] = s
		}
	}
	h.samples = kept
	return nil
}

// writeFile replaces the file. It need not outlive a crash of the node, which begins another boot.
func (h *IdleRecoverer) writeFile() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.File == "" {
		return nil
	}
	boot, err := sys.BootID()
	if err != nil {
		return err
	}
	kept := idleFile{Boot: boot, Devices: slices.AppendSeq([]idleSample{}, maps.Values(h.samples))}
	content, err := json.Marshal(kept)
	if err == nil {
		err = os.WriteFile(h.File+".part", content, 0o600)
	}
	if err == nil {
		err = os.Rename(h.File+".part", h.File)
	}
	if err != nil {
		return fmt.Errorf("keep what was seen of devices: %w", err)
	}
	return nil
}
