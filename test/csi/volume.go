// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/test/install"
)

// volumeManifest is a volume and the claim of the same name to it.
const volumeManifest = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: %[1]s}
  csi:
    driver: ` + Name + `
    volumeHandle: %[2]s
    volumeAttributes: {directory: %[3]q}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: default}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Gi}}
`

// AddVolume makes a volume, and a claim of that name to it in the namespace default. Its pods get the directory of the
// file system, which has to be there before they start.
func (d *Driver) AddVolume(t testing.TB, name, directory string) {
	t.Helper()
	d.env.Kubectl(t, VolumeManifest(name, directory), "apply", "-f", "-")
}

// VolumeManifest is such a volume and its claim.
func VolumeManifest(name, directory string) string {
	return fmt.Sprintf(volumeManifest, name, handle(name), directory)
}

// handle is the driver's name of a volume.
func handle(volume string) string { return "handle-of-" + volume }

// readersManifest has containers that read a file of a volume all the time, and say what they got when that is not what
// they got before. The one named part has a subPath of the volume instead of all of it.
const readersManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1%[6]s
      containers:
      - name: ` + Whole + `
        image: ` + install.Busybox + `
        imagePullPolicy: Never
        command: &read [/bin/sh, -c, 'while :; do now=$(cat /data/%[4]s 2>&1); [ "$now" = "$was" ] || echo "$now"; was=$now; sleep 0.1; done']
        volumeMounts: [{name: data, mountPath: /data}]
      - name: ` + Part + `
        image: ` + install.Busybox + `
        imagePullPolicy: Never
        command: *read
        volumeMounts: [{name: data, mountPath: /data, subPath: %[5]s}]
      volumes:
      - name: data
        persistentVolumeClaim: {claimName: %[2]s}
`

// Containers of a pod that Readers starts.
const (
	Whole = "whole" // has the volume at /data
	Part  = "part"  // has a subPath of the volume at /data
)

// Readers are pods that read from a volume.
type Readers struct {
	// Name is that of their Deployment, and the value of their label app.
	Name string
	// Volume is the name of the volume.
	Volume string
	// Pods is how many there are.
	Pods int
	// File is what they read: a file in the volume, and one in its directory SubPath.
	File, SubPath string
	// OwnUsers gives each pod a user namespace of its own.
	OwnUsers bool
}

// Start starts readers, waits until all of them run, and gives their pods.
func (d *Driver) Start(t testing.TB, r Readers) (pods []corev1.Pod) {
	t.Helper()
	var users string
	if r.OwnUsers {
		users = "\n      hostUsers: false"
	}
	d.env.Kubectl(t, fmt.Sprintf(readersManifest, r.Name, r.Volume, r.Pods, r.File, r.SubPath, users), "apply", "-f", "-")
	d.env.Wait(t, "the readers to run", func(ctx context.Context) bool {
		var list corev1.PodList
		err := d.env.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{"app": r.Name})
		pods = list.Items
		return err == nil && len(pods) == r.Pods && ready(pods)
	})
	return pods
}

// Await waits until the newest line that a container of a reader has said is text.
func (d *Driver) Await(t testing.TB, pod *corev1.Pod, container, text string) {
	t.Helper()
	d.env.Wait(t, fmt.Sprintf("container %s of pod %s to say %q", container, pod.Name, text), func(context.Context) bool {
		return d.env.Kubectl(t, "", "logs", "--tail=1", "-n", pod.Namespace, pod.Name, "-c", container) == text+"\n"
	})
}

func ready(pods []corev1.Pod) bool {
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready {
				return false
			}
		}
		if len(p.Status.ContainerStatuses) == 0 {
			return false
		}
	}
	return true
}
