// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
)

// errRetriesUnknown is returned if the program does not show how a kubelet handles, at its start, the volumes of pods that are
// gone.
var errRetriesUnknown = errors.New("not known whether this kubelet tries only once")

// RetriesCleanupOnce is about a volume that the kubelet, when it starts, finds in the directory of a pod that is gone,
// and that is not mounted. It reports whether this kubelet tries only once to finish with it: 1.18 does, and then
// forgets the volume. 1.36 takes it up again, and goes on trying until its driver answers; a program that can do either
// counts as such. With a volume that it has mounted itself, each kubelet goes on trying. The answer is read from the
// kubelet's own program, as in ReplacesStaleBinds. It returns an error if there is no kubelet process, or its program has
// no known text.
func (n *Node) RetriesCleanupOnce() (bool, error) {
	retries, err := n.hasMarker(retriesMarker, retriesOnceMarker, errRetriesUnknown)
	return err == nil && !retries, err
}

// clockTicks is the number of ticks in a second. The kernel gives the start time of a process in ticks.
const clockTicks = 100

// Started returns when the kubelet's process has started, by the clock as it is set now.
func (n *Node) Started() (time.Time, error) {
	if !n.Since.IsZero() {
		return n.Since, nil
	}
	if n.PID == 0 {
		return time.Time{}, errors.New("read start of kubelet: there is no kubelet process")
	}
	content, err := readFile(path.Join(path.Dir(n.process.dir), "uptime"))
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	first, _, _ := strings.Cut(content, " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read for how long the machine is up: %w", err)
	}
	at, err := strconv.ParseInt(n.process.started, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read start of kubelet: %w", err)
	}
	return now.Add(time.Duration(at)*time.Second/clockTicks - time.Duration(up*float64(time.Second))), nil
}
