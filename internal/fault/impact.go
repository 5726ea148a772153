// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// Impact says when a fault hurts, and which objects. Impacts are stable: they appear in statuses and in JSON.
type Impact string

// Impacts, the worst first.
const (
	// ImpactNow: a pod cannot use the volume now, or a container of it cannot start.
	ImpactNow Impact = "Now"
	// ImpactTerminating: it keeps a pod from going that is being deleted, and of which no container runs any more.
	ImpactTerminating Impact = "Terminating"
	// ImpactNextStart: the container runs, and its next start fails or gets old content.
	ImpactNextStart Impact = "NextStart"
	// ImpactDetach: a device cannot be detached from the node.
	ImpactDetach Impact = "Detach"
	// ImpactCleanup: the kubelet cannot remove the directory of a pod that is gone.
	ImpactCleanup Impact = "Cleanup"
)

// Impacts lists every impact, the worst first. The caller owns the slice.
func Impacts() []Impact {
	return []Impact{ImpactNow, ImpactTerminating, ImpactNextStart, ImpactDetach, ImpactCleanup}
}

// Heal is the person or program that repairs a fault. These words are stable: they appear in statuses and in JSON.
type Heal string

// Ways to a repair, the easiest first.
const (
	// HealAutomatic: the agent repairs it without a request.
	HealAutomatic Heal = "Automatic"
	// HealSafe: kubediag can repair it on request, and neither data nor work is lost.
	HealSafe Heal = "Safe"
	// HealDriver: the volume's driver has to mount the volume again, or the pod has to be evicted.
	HealDriver Heal = "Driver"
	// HealPerson: a person has to decide or to change something.
	HealPerson Heal = "Person"
)

// Heals lists every way to a repair, the easiest first. The caller owns the slice.
func Heals() []Heal { return []Heal{HealAutomatic, HealSafe, HealDriver, HealPerson} }
