// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// idleFile keeps the observations of IdleRecoverer. Counters begin at 0 when the node boots, so it counts for one boot.
type idleFile struct {
	// Boot is the kernel's name of the boot.
	Boot    string       `json:"boot"`
	Devices []idleSample `json:"devices"`
}

type idleSample struct {
	Device   fault.Device      `json:"device"`
	Activity blockdev.Activity `json:"activity"`
	// Since is when the counters were first seen so, in nanoseconds since the boot.
	Since time.Duration `json:"since"`
}

// readSamples reads the file. One that is not there, is broken or is of another boot says nothing: then each device is seen
// for the first time. A time after now says nothing either.
func readSamples(name string, now time.Duration) (map[fault.Device]counterSample, error) {
	seen := map[fault.Device]counterSample{}
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return seen, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was seen of devices: %w", err)
	}
	boot, err := sys.BootID()
	if err != nil {
		return nil, err
	}
	var kept idleFile
	if err := json.Unmarshal(content, &kept); err != nil || kept.Boot != boot {
		kept = idleFile{}
	}
	for _, s := range kept.Devices {
		if s.Since >= 0 && s.Since <= now {
			seen[s.Device] = counterSample{s.Activity, s.Since}
		}
	}
	return seen, nil
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
	kept := idleFile{Boot: boot, Devices: []idleSample{}}
	for device, s := range h.samples {
		kept.Devices = append(kept.Devices, idleSample{device, s.activity, s.since})
	}
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
