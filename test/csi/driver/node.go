// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubediag.org/kubediag/test/csi/staged"
)

// driver answers the kubelet, one call at a time.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	name, node string
	command    []string // of a daemon
	dir        string   // of the driver's own, on the node

	mu sync.Mutex
}

// GetPluginInfo names the driver.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities says that there is no controller.
func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe says that the driver is ready.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// NodeGetInfo names the node.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities says that volumes are staged.
func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	rpc := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csi.NodeGetCapabilitiesResponse{
		Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}},
	}, nil
}

// NodeStageVolume mounts a volume for the node, unless it is mounted and alive.
func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.NodeStageVolumeResponse{}, logCall("stage", r, d.stage(r.GetVolumeId(), r.GetStagingTargetPath()))
}

// NodeUnstageVolume unmounts a volume, dead or alive. Its daemon ends when no copy of the mount is left.
func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := unmount(r.GetStagingTargetPath())
	if err == nil {
		err = staged.Forget(d.dir, r.GetVolumeId())
	}
	return &csi.NodeUnstageVolumeResponse{}, logCall("unstage", r, err)
}

// NodePublishVolume binds the directory of the volume that its attribute "directory" names, which must be there. A
// volume that is dead is mounted again first, as the driver for CephFS does it: a kubelet asks for that only where no
// other pod on the node has the volume.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.stage(r.GetVolumeId(), r.GetStagingTargetPath())
	if err == nil {
		source := filepath.Join(r.GetStagingTargetPath(), r.GetVolumeContext()["directory"])
		err = publish(source, r.GetTargetPath(), r.GetReadonly())
	}
	return &csi.NodePublishVolumeResponse{}, logCall("publish", r, err)
}

// NodeUnpublishVolume takes the bind away again.
func (d *driver) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := unmount(r.GetTargetPath())
	if err == nil {
		err = os.Remove(r.GetTargetPath())
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return &csi.NodeUnpublishVolumeResponse{}, logCall("unpublish", r, err)
}

func publish(source, target string, readonly bool) error {
	if _, err := os.Stat(source); err != nil {
		return err
	}
	if alive(target) {
		return nil
	}
	if err := unmount(target); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %q: %w", source, err)
	}
	if !readonly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// logCall writes a call down and gives its error the form of a call's.
func logCall(what string, request fmt.Stringer, err error) error {
	log.Println(what, request, err)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
