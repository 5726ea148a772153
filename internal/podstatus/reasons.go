// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"regexp"
	"strings"
)

// moment is when a kubelet gives a reason, seen from the mounts of the container or the pod.
type moment int

const (
	// either: before its mounts are made or after. A reason that is not in the tables is of this kind.
	either moment = iota
	// before: no mount of it has been made yet, so no mount is the cause.
	before
	// after: its mounts are being made, or are made.
	after
)

// waitingReasons are the reasons of waiting containers that kubelets from 1.18 to 1.37 write, from pkg/kubelet/images,
// pkg/kubelet/container, pkg/kubelet/kuberuntime and the errors of cri-api.
var waitingReasons = map[string]moment{
	"ErrImageNeverPull":         before,
	"ErrImagePull":              before,
	"ImageInspectError":         before,
	"ImagePullBackOff":          before,
	"InvalidImageName":          before,
	"RegistryUnavailable":       before,
	"SecurityProfileInvalid":    before, // the runtime gets the profile as it gets an image
	"SignatureValidationFailed": before,
	"VerifyNonRootError":        before,

	// The environment and the user are looked up before the mounts, and a subPath or a hostPath is prepared under the same
	// reason: see configMessages.
	"CreateContainerConfigError": either,

	"CreateContainerError":   after,
	"ImageVolumeMountFailed": after,
	"PostStartHookError":     after,
	"PreCreateHookError":     after,
	"PreStartHookError":      after,
	"RROUnsupported":         after,
	"RunContainerError":      after,
	"RunInitContainerError":  after,
	"CrashLoopBackOff":       after,

	"ConfigPodSandboxError": either,
	"CreatePodSandboxError": either,
	"KillContainerError":    either,
	"KillPodSandboxError":   either,
	"RemoveContainerError":  either,
	"ResizePodInPlaceError": either,
	"SetupNetworkError":     either,
	"TeardownNetworkError":  either,
}

// podReasons are the reasons of a whole pod. A kubelet gives the reasons before mounts when it refuses to admit the pod. The others end
// a pod that may run: an eviction may come of data that was written beside a volume.
var podReasons = map[string]moment{
	"AppArmor":                             before,
	"InitContainerRestartPolicyForbidden":  before,
	"InsufficientResourceError":            before,
	"InvalidNodeInfo":                      before,
	"NodeAffinity":                         before,
	"NodeName":                             before,
	"NodePorts":                            before,
	"NodeShutdown":                         before,
	"NodeUnschedulable":                    before,
	"NoNewPrivs":                           before,
	"PodFeatureUnsupported":                before,
	"PodLevelResourcesNotSupported":        before,
	"PodOSNotSupported":                    before,
	"PodOSSelectorNodeLabelDoesNotMatch":   before,
	"ProcMount":                            before,
	"SupplementalGroupsPolicyNotSupported": before,
	"SysctlForbidden":                      before,
	"TaintToleration":                      before,
	"TopologyAffinityError":                before,
	"UnexpectedAdmissionError":             before,

	"DeadlineExceeded":              either,
	"Evicted":                       either,
	"NodeLost":                      either,
	"Preempting":                    either,
	"Shutdown":                      either,
	"Terminated":                    either,
	"UnknownReason":                 either,
	"VolumeAttachmentLimitExceeded": after,
}

// outOf begins the reasons of pods that a kubelet has no resources for.
const outOf = "OutOf"

// configMessages are the messages with CreateContainerConfigError that are about the environment, the image or the user of
// the container. Any other message, also an unknown one, may be about a mount.
var configMessages = []*regexp.Regexp{
	regexp.MustCompile(`^(secrets?|configmaps?) "[^"]*" not found$`),
	regexp.MustCompile(`^(secrets?|configmaps?) "[^"]*" is forbidden: `),
	regexp.MustCompile(`^object "[^"]*"/"[^"]*" not registered$`),
	regexp.MustCompile(`^couldn't find key .+ in (Secret|ConfigMap) [^ ]+$`),
	regexp.MustCompile(`^couldn't get (secret|configMap) [^ ]+, no kubeClient defined$`),
	regexp.MustCompile(`^failed to sync (secret|configmap) cache: `),
	regexp.MustCompile(`^services have not yet been read at least once, cannot construct envvars$`),
	regexp.MustCompile(`^failed to list services when setting up env vars$`),
	regexp.MustCompile(`^container has runAsNonRoot and image (will run as root|has non-numeric user|has an invalid user id)\b`),
	regexp.MustCompile(`^container's runAsUser breaks non-root policy\b`),
	regexp.MustCompile(`^unsupported supplementalGroupsPolicy: `),
	regexp.MustCompile(`^unable to find target container `),
}

// whenWaiting returns when a kubelet gives the reason of a waiting container.
func whenWaiting(reason, message string) moment {
	if reason == "CreateContainerConfigError" {
		message = strings.Join(strings.Fields(message), " ")
		for _, known := range configMessages {
			if known.MatchString(message) {
				return before
			}
		}
	}
	return waitingReasons[reason]
}
