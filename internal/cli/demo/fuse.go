// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// volumeDiagnosis is the Diagnosis of the second act.
const volumeDiagnosis = `apiVersion: diagnosis.kubediag.org/v1
kind: Diagnosis
metadata:
  name: volume-diagnosis
  namespace: ` + podNamespace + `
spec:
  operationSet: volume-health-op-set
  nodeName: ` + nodeName + `
  podReference:
    namespace: ` + podNamespace + `
    name: ` + volumePodName + `
`

// The content of the volume before its daemon dies, and after the driver has mounted it again.
const (
	oldModel = "epoch 41"
	newModel = "epoch 42"
)

// fuseAct kills the daemon of a FUSE volume under a running container, and has the dead mounts replaced. There is no Diagnosis
// if this user may not make FUSE file systems.
func fuseAct(ctx context.Context, s *story) (*v1.Diagnosis, error) {
	s.beginAct("Act 2: a FUSE daemon is killed under a running container (every kubelet)")
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		s.below("Not played, as this user cannot make a FUSE file system here: %s", err)
		return nil, nil
	}
	device.Close()
	v, err := newDemoVolume(s.dir)
	if err != nil {
		return nil, err
	}
	defer v.close()
	if err := breakVolume(ctx, s, v); err != nil {
		return nil, fmt.Errorf("cause the fault: %w", err)
	}
	node, err := kubelet.Local(v.root)
	if err != nil {
		return nil, err
	}
	runner := &subprocess.Runner{}
	r := &diagnosisRun{story: s}
	d, err := r.run(ctx, v.root, "volume-diagnosis", registry.Deps{Pods: v, Runtime: v, Volumes: &volume.Inspector{
		Kubelet: node, Prober: &probe.Prober{Runner: runner}, Runtime: v, Pods: v, Runner: runner,
	}}, operations.VolumeHealth, volumeDiagnosis)
	if err != nil {
		return nil, err
	}
	content, err := v.read()
	if err != nil || content != newModel {
		return nil, fmt.Errorf("the container reads %q, not the new content: %w", content, err)
	}
	s.printStep(good, "Replaced without a restart: process %d reads %q", v.container.pid(), content)
	return d, nil
}

// breakVolume plays the life of the volume up to where its driver has mounted it again.
func breakVolume(ctx context.Context, s *story, v *demoVolume) error {
	if err := v.serve(ctx, oldModel); err != nil {
		return err
	}
	var err error
	if v.container, err = startChild(ctx, roleContainer, v.point, v.staging, v.data); err != nil {
		return err
	}
	content, err := v.read()
	if err != nil {
		return err
	}
	s.printStep(good, "Pod %s (process %d) reads %q from a FUSE volume", volumePodName, v.container.pid(), content)
	v.daemon.kill()
	if _, err = v.read(); !errors.Is(err, sys.ENOTCONN) {
		return fmt.Errorf("the volume answers: %w", err)
	}
	s.printStep(bad, "Daemon killed. Reads fail: %s", reason(err))
	if err := detach(v.staging); err != nil {
		return err
	}
	if err := v.serve(ctx, newModel); err != nil {
		return err
	}
	if _, err = v.read(); !errors.Is(err, sys.ENOTCONN) {
		return fmt.Errorf("the container has the new mount: %w", err)
	}
	s.printStep(plain, "The driver mounts the volume again, and the pod's mounts stay dead")
	return nil
}
