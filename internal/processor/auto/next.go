// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import "kubediag.org/kubediag/internal/fault"

// nextSteps say what a person does about a fault that is not repaired.
var nextSteps = map[fault.Code]string{
	fault.DeletedVolumeSource: "delete the pod once its driver works, so that the volume is mounted for the new one",
	fault.DisconnectedFUSE:    "have the driver mount the volume again and create another Diagnosis, or delete the pod",
	fault.HeldDevice:          "end what uses the device, or unmount it where it is held; kubediag holders, on the node, shows where",
	fault.HungMount: "have its daemon or server answer again; if it never will, create a Diagnosis with the parameter " +
		"param.recover.kubernetes.volume_rebind.abort \"true\", which loses what is not stored yet",
	fault.MissingBindSource:  "create the missing file or directory, or change the volume in the pod's template",
	fault.OrphanedPodVolumes: "look at what is left in the directory before you remove it by hand",
	fault.SourceTypeMismatch: "change subPath, mountPath or the type of the hostPath in the pod's template",
	fault.StaleFileHandle:    "restore the export on the server, or delete the pod",
	fault.StaleSubPath:       "delete the pod: the new one binds the current file",
}
