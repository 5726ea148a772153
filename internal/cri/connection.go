// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// callTimeout bounds one call, connecting included.
	callTimeout = 10 * time.Second
	// maxMessage bounds an answer: the records of one container, or of all if a runtime ignores filters.
	maxMessage = 16 << 20
)

// ErrUnavailable is returned if the runtime cannot be reached, or does not speak CRI.
var ErrUnavailable = errors.New("container runtime is unavailable")

// versions of the protocol, the newest first.
var versions = []string{"v1", "v1alpha2"}

// connection is one connection to a runtime, for one piece of work.
type connection struct {
	grpc *grpc.ClientConn
	// version is the version that the runtime speaks, empty at first.
	version string
}

func (c *Client) dial(ctx context.Context) (*connection, error) {
	socket, err := c.Socket(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// The address is not a URL to gRPC: through a process' root it may hold anything.
	conn, err := grpc.NewClient("passthrough:///runtime",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %q: %w", socket, err)
	}
	return &connection{grpc: conn}, nil
}

func (c *connection) close() { c.grpc.Close() }

// call makes a call in the version that the runtime speaks. A first connection that fails ends the call without a second try.
func (c *connection) call(ctx context.Context, method string, in, out proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if c.version != "" {
		return c.invoke(ctx, c.version, method, in, out)
	}
	var err error
	for _, version := range versions {
		err = c.invoke(ctx, version, method, in, out)
		if status.Code(err) != codes.Unimplemented {
			c.version = version
			return err
		}
	}
	return fmt.Errorf("%w: it speaks neither of %q: %w", ErrUnavailable, versions, err)
}

func (c *connection) invoke(ctx context.Context, version, method string, in, out proto.Message) error {
	err := c.grpc.Invoke(ctx, "/runtime."+version+".RuntimeService/"+method, in, out)
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
