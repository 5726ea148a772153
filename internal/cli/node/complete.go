// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/printable"
)

// lastPlaces are the numbers of the last scan.
func lastPlaces() (list []string) {
	kept, err := lastScan()
	if err != nil {
		return nil
	}
	for _, p := range placesInOrder(kept.Report.Faults) {
		list = append(list, fmt.Sprintf("%s\t%s %s", strconv.Itoa(p.number), p.faults[0].Code, p.subjectText()))
	}
	return list
}

// lastPods are the pods of the last scan.
func lastPods() (list []string) {
	kept, err := lastScan()
	if err != nil {
		return nil
	}
	for _, f := range kept.Report.Faults {
		if name := f.Pod.Namespace + "/" + f.Pod.Name; f.Pod.Name != "" && printable.Quoted(name) == name && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// blockDevices are the devices of the machine by the kernel's names.
func blockDevices() (list []string) {
	names, _ := entryNames("/sys/class/block") // without them nothing is completed
	for _, name := range names {
		list = append(list, "/dev/"+strings.ReplaceAll(name, "!", "/"))
	}
	return list
}
