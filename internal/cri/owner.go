// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotFound is returned for an ID without a container and a sandbox of the runtime.
var ErrNotFound = errors.New("container not found")

// Propagation is the way in which mounts pass between the node and a container, in the words of the Pod's spec.
type Propagation string

// Propagations.
const (
	// PropagationNone: a mount or an unmount of the host after the container's start does not reach it.
	PropagationNone Propagation = "None"
	// PropagationHostToContainer: a mount or an unmount of the host reaches the container.
	PropagationHostToContainer Propagation = "HostToContainer"
	// PropagationBidirectional: the reverse as well.
	PropagationBidirectional Propagation = "Bidirectional"
)

// propagations by the word of the runtime; unknown ones are empty.
var propagations = map[runtimeapi.MountPropagation]Propagation{
	runtimeapi.MountPropagation_PROPAGATION_PRIVATE:           PropagationNone,
	runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER: PropagationHostToContainer,
	runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:     PropagationBidirectional,
}

// Mount is something that a container gets from the node: a volume, or a file of the kubelet's such as /etc/hosts.
type Mount struct {
	// HostPath is empty for a mount that comes out of an image.
	HostPath string
	// ContainerPath is the path of the request: symbolic links of the image are not followed in it.
	ContainerPath string
	ReadOnly      bool
	// Propagation is None as well if a runtime, such as docker, does not report it.
	Propagation Propagation
}

// Owner is the container of a process, and its pod.
type Owner struct {
	ContainerID string
	// Container is the name in the pod's spec; empty for the pod's sandbox.
	Container string
	// The pod's, as the kubelet labels it. All empty if no kubelet asked for the container.
	PodUID, PodNamespace, PodName string
	// Image is the image of the container, as the runtime calls it; empty for a sandbox.
	Image string
	// Created is zero if the runtime does not know.
	Created time.Time
	// PID is the container's first process, in the PID namespace of the runtime; 0 if the runtime does not say.
	PID    int
	Mounts []Mount
}

// Container returns the runtime's record of the container, or of the pod's sandbox, with that whole ID. ErrNotFound
// if it has neither, ErrUnavailable if it cannot be reached.
func (c *Client) Container(ctx context.Context, id string) (Owner, error) {
	if id == "" { // which runtimes take for any
		return Owner{}, fmt.Errorf("%w: the ID is empty", ErrNotFound)
	}
	return c.owner(ctx, []string{id})
}

// Owner returns the container of a process, from the text of its /proc/PID/cgroup: the outermost that the
// runtime knows. A process that may make cgroups can name a cgroup inside of its own like another container, but no cgroup
// around it. ErrNotFound if the runtime knows no such container, or the process is in no container; ErrUnavailable if the
// runtime cannot be reached.
func (c *Client) Owner(ctx context.Context, cgroup string) (Owner, error) {
	ids := ContainerIDs(cgroup)
	if len(ids) == 0 {
		return Owner{}, fmt.Errorf("%w: the process is in none", ErrNotFound)
	}
	return c.owner(ctx, ids)
}

// owner tries the ids in order.
func (c *Client) owner(ctx context.Context, ids []string) (Owner, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return Owner{}, err
	}
	defer conn.close()
	for _, id := range ids {
		for _, ask := range []func(context.Context, string) (Owner, error){conn.container, conn.sandbox} {
			owner, err := ask(ctx, id)
			if err == nil {
				return owner, nil
			}
			if !errors.Is(err, ErrNotFound) {
				return Owner{}, fmt.Errorf("ask for container %q: %w", id, err)
			}
		}
	}
	return Owner{}, fmt.Errorf("%w: the runtime does not know %q", ErrNotFound, ids)
}

// container first lists the container: runtimes differ in their errors for a missing one.
func (c *connection) container(ctx context.Context, id string) (Owner, error) {
	list := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}}
	var listed runtimeapi.ListContainersResponse
	if err := c.call(ctx, "ListContainers", list, &listed); err != nil {
		return Owner{}, err
	}
	// Some runtimes take parts of IDs for IDs, and others do not know the filter.
	if !slices.ContainsFunc(listed.GetContainers(), func(l *runtimeapi.Container) bool { return l.GetId() == id }) {
		return Owner{}, ErrNotFound
	}
	return c.described(ctx, id)
}

// described is the container with that ID. ErrNotFound if it is gone.
func (c *connection) described(ctx context.Context, id string) (Owner, error) {
	var response runtimeapi.ContainerStatusResponse
	err := c.call(ctx, "ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true}, &response)
	if status.Code(err) == codes.NotFound {
		return Owner{}, ErrNotFound // since then
	}
	if err != nil {
		return Owner{}, err
	}
	s := response.GetStatus()
	owner := labelled(id, s.GetLabels())
	owner.Image, owner.Created, owner.Mounts = s.GetImage().GetImage(), moment(s.GetCreatedAt()), mountsOf(s)
	var first struct {
		PID int `json:"pid"`
	}
	if json.Unmarshal([]byte(response.GetInfo()["info"]), &first) == nil { // the verbose answer of a runtime that names its first process
		owner.PID = first.PID
	}
	return owner, nil
}

func mountsOf(s *runtimeapi.ContainerStatus) (mounts []Mount) {
	for _, m := range s.GetMounts() {
		mounts = append(mounts, Mount{m.GetHostPath(), m.GetContainerPath(), m.GetReadonly(), propagations[m.GetPropagation()]})
	}
	return mounts
}

func (c *connection) sandbox(ctx context.Context, id string) (Owner, error) {
	list := &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: id}}
	var listed runtimeapi.ListPodSandboxResponse
	if err := c.call(ctx, "ListPodSandbox", list, &listed); err != nil {
		return Owner{}, err
	}
	for _, s := range listed.GetItems() {
		if s.GetId() == id {
			owner := labelled(id, s.GetLabels())
			owner.Created = moment(s.GetCreatedAt())
			return owner, nil
		}
	}
	return Owner{}, ErrNotFound
}

func labelled(id string, labels map[string]string) Owner {
	return Owner{
		ContainerID: id, Container: labels[labelContainer],
		PodUID: labels[labelPodUID], PodNamespace: labels[labelPodNamespace], PodName: labels[labelPodName],
	}
}

// Carrier returns the mount of the container that has carried in the mount at point, a path as the container sees
// it: the longest ContainerPath that contains point. If two are the same, the later one lies on top. ok is
// false if no mount contains it, also because the image has a symbolic link there.
func (o Owner) Carrier(point string) (mount Mount, ok bool) {
	point, longest := path.Clean("/"+point), -1
	for _, m := range o.Mounts {
		at := path.Clean("/" + m.ContainerPath)
		inside := at == "/" || point == at || strings.HasPrefix(point, at+"/") // compares whole components
		if inside && len(at) >= longest {
			mount, ok, longest = m, true, len(at)
		}
	}
	return mount, ok
}
